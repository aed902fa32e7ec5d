package deletion_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/deletion"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

// integration/acceptance tests what happens to rows, to closed slices, and when processes die.
type world struct {
	*testing.T
	store  *storagetest.Faulty
	clk    clock.Clock
	index  *query.Index
	q      *query.Querier
	ingest *ingest.Ingest
	log    bytes.Buffer
}

func newWorld(t *testing.T, clk clock.Clock, opts query.Options) *world {
	t.Helper()
	w := &world{T: t, clk: clk, index: query.NewIndex()}
	w.store = storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 128}},
	}, nil, clk))
	e := engine.New(engine.Options{Store: w.store, Clock: clk, Writer: 1})
	e.Start(t.Context(), registry.Options{OnNew: w.index.Add}, ingest.Options{})
	t.Cleanup(func() { require.NoError(t, e.Drain()) })
	w.ingest = e.Ingest
	w.q = query.New(query.Parts{Store: w.store, Index: w.index, Settings: w.store.Settings(), Clock: clk}, opts)
	return w
}

func (w *world) report(name string, values map[time.Time]float64) {
	w.Helper()
	rep := ingest.Report{Source: "web-1"}
	for at, v := range values {
		rep.Measurements = append(rep.Measurements, ingest.Measurement{Metric: name, TimeMs: at.UnixMilli(), Value: v})
	}
	res, err := w.ingest.Append(w.Context(), []ingest.Report{rep})
	require.NoError(w, err)
	require.Equal(w, len(values), res.Accepted)
}

type always struct{}

func (always) KeptFrom(int64) int64 { return math.MinInt64 }

func (w *world) deleter(in deletion.Ingest) *deletion.Deleter {
	return deletion.New(deletion.Parts{Querier: w.q, Ingest: in, Kept: always{}, Clock: w.clk, Logger: slog.New(slog.NewTextHandler(&w.log, nil))})
}

func set(t *testing.T, selector string) []*labels.Matcher {
	t.Helper()
	ms, err := parser.NewParser(parser.Options{}).ParseMetricSelector(selector)
	require.NoError(t, err)
	return ms
}

// No reader of raw sees what was taken back: neither exports, points, summaries nor latest values.
func TestReaders(t *testing.T) {
	w := newWorld(t, clock.NewSimulated(noon), query.Options{})
	at := func(m int) time.Time { return noon.Add(time.Duration(m-60) * time.Minute) }
	w.report("cpu", map[time.Time]float64{at(10): 1, at(20): 2, at(30): math.Inf(1), at(40): 3})
	w.report("mem", map[time.Time]float64{at(20): 5})
	gone, err := w.deleter(w.ingest).Delete(t.Context(), at(20).UnixMilli(), at(40).UnixMilli()+1, set(t, "cpu"), set(t, "none"))
	require.NoError(t, err)
	require.Equal(t, deletion.Result{Series: 1, Samples: 3, Rows: 3, Warnings: gone.Warnings}, gone, "one row of each level")
	require.Empty(t, gone.Warnings)
	require.Contains(t, w.log.String(), "series=1 samples=3")

	all := []query.Selector{set(t, `{source="web-1"}`)}
	start, end := at(0).UnixMilli(), at(60).UnixMilli()
	exported, err := w.q.Export(t.Context(), all, start, end)
	require.NoError(t, err)
	got := map[string][]metric.Sample{}
	for s, err := range exported.All() {
		require.NoError(t, err)
		got[s.Labels.Get(metric.NameLabel)] = slices.Clone(s.Samples)
	}
	require.Equal(t, map[string][]metric.Sample{
		"cpu": {{Schedule: 0, TimeMs: at(10).UnixMilli(), Value: 1}},
		"mem": {{Schedule: 1, TimeMs: at(20).UnixMilli(), Value: 5}},
	}, got)

	points, err := w.q.Points(t.Context(), all, query.Range{StartMs: start, EndMs: end, N: 2})
	require.NoError(t, err)
	for p, err := range points.All() {
		require.NoError(t, err)
		require.EqualValues(t, 1, p.Points[0].Count)
		require.Zero(t, p.Points[1].Count)
	}
	sums, err := w.q.Summary(t.Context(), all[:1], start, end)
	require.NoError(t, err)
	for s, err := range sums.All() {
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Count)
	}
	latest, err := w.q.Latest(t.Context(), []query.Selector{set(t, "cpu")}, time.Hour)
	require.NoError(t, err)
	n := 0
	for l, err := range latest.All() {
		require.NoError(t, err)
		require.Equal(t, at(10).UnixMilli(), l.TimeMs)
		n++
	}
	require.Equal(t, 1, n)

	// A series without data has no lines. It stays listed if no time is asked for.
	known, err := w.q.LabelValues(t.Context(), start, math.MaxInt64, new(query.Warnings), metric.NameLabel)
	require.NoError(t, err)
	require.Equal(t, []string{"cpu", "mem"}, known)
	_, err = w.deleter(w.ingest).Delete(t.Context(), math.MinInt64/1000, math.MaxInt64/1000, set(t, "cpu"))
	require.NoError(t, err)
	known, err = w.q.LabelValues(t.Context(), start, math.MaxInt64, new(query.Warnings), metric.NameLabel)
	require.NoError(t, err)
	require.Equal(t, []string{"mem"}, known)
	n, err = w.q.Gone(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	latest, err = w.q.Latest(t.Context(), []query.Selector{set(t, "cpu")}, time.Hour)
	require.NoError(t, err)
	for l, err := range latest.All() {
		t.Fatal(l, err)
	}
	ids, err := w.index.Select(t.Context(), set(t, "cpu"))
	require.NoError(t, err)
	require.Len(t, ids, 1)
}

// A series without data makes room for another, of its source and in the store.
func TestDeletedSeriesDoNotCount(t *testing.T) {
	for _, limits := range []registry.Options{{MaxSeries: 2}, {MaxSeriesPerSource: 2}} {
		clk := clock.NewSimulated(noon)
		w := newWorld(t, clk, query.Options{})
		limits.OnNew, limits.Gone = w.index.Add, w.q.Gone
		e := engine.New(engine.Options{Store: w.store, Clock: clk, Writer: 2})
		e.Start(t.Context(), limits, ingest.Options{})
		t.Cleanup(func() { require.NoError(t, e.Drain()) })
		taken := func(name string) int {
			t.Helper()
			res, err := e.Ingest.Append(t.Context(), []ingest.Report{{Source: "web-1", Measurements: []ingest.Measurement{
				{Metric: name, TimeMs: clk.Now().UnixMilli(), Value: 1},
			}}})
			require.NoError(t, err)
			return res.Accepted
		}
		require.Equal(t, 1, taken("a"))
		require.Equal(t, 1, taken("b"))
		require.Zero(t, taken("c"))
		_, err := w.deleter(e.Ingest).Delete(t.Context(), math.MinInt64/1000, math.MaxInt64/1000, set(t, "a"))
		require.NoError(t, err)
		require.Zero(t, taken("c"), "it was counted less than a minute ago")
		clk.Set(clk.Now().Add(time.Minute))
		require.Equal(t, 1, taken("c"))
		require.Zero(t, taken("d"))

		// A series that comes back counts again, and no other has to go for it.
		require.Equal(t, 1, taken("a"))
		clk.Set(clk.Now().Add(time.Minute))
		require.Zero(t, taken("d"))
		require.Equal(t, 1, taken("b"))
	}
}

// A report cannot take anything back, whatever NaN it carries.
func TestReportsTakeNothingBack(t *testing.T) {
	w := newWorld(t, clock.NewSimulated(noon), query.Options{})
	w.report("cpu", map[time.Time]float64{noon: 1})
	w.report("cpu", map[time.Time]float64{noon: metric.Tombstone()})
	latest, err := w.q.Latest(t.Context(), []query.Selector{set(t, "cpu")}, time.Hour)
	require.NoError(t, err)
	n := 0
	for l, err := range latest.All() {
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(math.NaN()), math.Float64bits(l.Value))
		n++
	}
	require.Equal(t, 1, n)
}

// fake accepts deletions, or returns err.
type fake struct {
	batches []int
	err     error
	times   int // how often it fails
}

func (f *fake) Place(context.Context) (*blocks.Place, error) { return blocks.NewIDs(1).Place(0), nil }

func (f *fake) Delete(_ context.Context, _ *blocks.Place, samples []metric.Sample) error {
	if f.times != 0 {
		f.times--
		return f.err
	}
	f.batches = append(f.batches, len(samples))
	return nil
}

// many reports n samples of each of two series.
func (w *world) many(n int) {
	for _, name := range []string{"cpu", "mem"} {
		values := make(map[time.Time]float64, n)
		for i := range n {
			values[noon.Add(-time.Duration(i+1)*100*time.Millisecond)] = float64(i)
		}
		w.report(name, values)
	}
}

// Tombstones are written in batches of a bounded size, also for a series with more samples than
// that.
func TestBatches(t *testing.T) {
	w := newWorld(t, clock.NewSimulated(noon), query.Options{})
	w.many(70_000)
	f := &fake{}
	_, err := w.deleter(f).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	require.NoError(t, err)
	require.Equal(t, []int{65536, 65536, 140_000 - 2*65536}, f.batches)
}

// interrupted is ingest that does something before each batch of tombstones.
type interrupted struct {
	*ingest.Ingest
	meanwhile func()
}

func (i interrupted) Delete(ctx context.Context, at *blocks.Place, samples []metric.Sample) error {
	i.meanwhile()
	return i.Ingest.Delete(ctx, at, samples)
}

// A sample that is acknowledged while its series is being deleted stays, whatever batch the tombstone for the one that it
// replaces is in. All others go.
func TestSamplesThatArriveMeanwhile(t *testing.T) {
	w := newWorld(t, clock.NewSimulated(noon), query.Options{})
	w.many(70_000)
	kept := map[string]map[int64]float64{"cpu": {}, "mem": {}}
	n := 0
	res, err := w.deleter(interrupted{w.ingest, func() {
		for _, name := range []string{"cpu", "mem"} {
			for _, i := range []int{n, 69_999 - n} {
				at := noon.Add(-time.Duration(i+1) * 100 * time.Millisecond)
				w.report(name, map[time.Time]float64{at: -1})
				kept[name][at.UnixMilli()] = -1
			}
		}
		n++
	}}).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	require.NoError(t, err)
	require.EqualValues(t, 140_000, res.Samples)
	require.Equal(t, 3, n)
	require.Equal(t, kept, w.samples())

	// What is left goes with the next deletion.
	_, err = w.deleter(w.ingest).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	require.NoError(t, err)
	require.Empty(t, w.samples())
}

// samples returns what readers see, by metric and time.
func (w *world) samples() map[string]map[int64]float64 {
	w.Helper()
	found, err := w.q.Export(w.Context(), []query.Selector{set(w.T, `{source="web-1"}`)}, 0, noon.UnixMilli()+1)
	require.NoError(w, err)
	got := map[string]map[int64]float64{}
	for piece, err := range found.All() {
		require.NoError(w, err)
		name := piece.Labels.Get(metric.NameLabel)
		for _, s := range piece.Samples {
			if got[name] == nil {
				got[name] = map[int64]float64{}
			}
			got[name][s.TimeMs] = s.Value
		}
	}
	return got
}

// A failure ends a deletion at the first batch.
func TestFailures(t *testing.T) {
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, clock.System{}, query.Options{})
		now := time.Now()
		w.report("cpu", map[time.Time]float64{now: 1})
		del := func(ctx context.Context, f *fake) error {
			_, err := w.deleter(f).Delete(ctx, 0, now.UnixMilli()+1, set(t, "cpu"))
			return err
		}
		require.ErrorIs(t, del(t.Context(), &fake{times: 1, err: broken}), broken)
		require.Contains(t, w.log.String(), "err=broken")

		fail := func() error { return broken }
		w.store.Add(storagetest.Rule{Op: "RawChunks", Times: 1, Before: fail})
		require.ErrorIs(t, del(t.Context(), &fake{}), broken)
	})

	w := newWorld(t, clock.NewSimulated(noon), query.Options{})
	w.many(70_000)
	f := &fake{times: 1, err: broken}
	_, err := w.deleter(f).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	require.ErrorIs(t, err, broken)
	require.Empty(t, f.batches, "nothing is written after a failure")

	w = newWorld(t, clock.NewSimulated(noon), query.Options{MaxSeries: 1})
	w.report("cpu", map[time.Time]float64{noon: 1})
	w.report("mem", map[time.Time]float64{noon: 1})
	_, err = w.deleter(w.ingest).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	var wrong *query.RequestError
	require.ErrorAs(t, err, &wrong)
}

// slow is ingest whose tombstones take so long, some times, that their place in the order has passed.
type slow struct {
	interrupted
	clk   *clock.Simulated
	times *int
}

func (s slow) Delete(ctx context.Context, at *blocks.Place, samples []metric.Sample) error {
	if *s.times--; *s.times%2 == 0 && *s.times >= 0 {
		s.clk.Set(s.clk.Now().Add(time.Minute))
	}
	return s.interrupted.Delete(ctx, at, samples)
}

// TestPlaceHasPassed: a deletion that is too slow for its place takes a new one, and reads again what it has not deleted. It
// goes on as long as each place is good for some tombstones.
func TestPlaceHasPassed(t *testing.T) {
	clk := clock.NewSimulated(noon)
	w := newWorld(t, clk, query.Options{})
	w.many(70_000)
	times := 4
	res, err := w.deleter(slow{interrupted{w.ingest, func() {}}, clk, &times}).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	require.NoError(t, err)
	require.EqualValues(t, 140_000, res.Samples)
	require.Empty(t, w.samples())

	w = newWorld(t, clk, query.Options{})
	w.many(10)
	times = 1
	_, err = w.deleter(slow{interrupted{w.ingest, func() {}}, clk, &times}).Delete(t.Context(), 0, noon.UnixMilli(), set(t, `{source="web-1"}`))
	require.ErrorIs(t, err, blocks.ErrStale)
}
