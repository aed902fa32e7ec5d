package query_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// exported combines the pieces of an export.
func exported(t *testing.T, w *world, sel string, startMs, endMs int64) (map[metric.ScheduleID][]metric.Sample, []string) {
	t.Helper()
	out := make(map[metric.ScheduleID][]metric.Sample)
	r, err := w.q.Export(t.Context(), w.sel(sel), startMs, endMs)
	require.NoError(t, err)
	for s, err := range r.All() {
		require.NoError(t, err)
		require.NotEmpty(t, s.Samples)
		out[s.ID] = append(out[s.ID], s.Samples...)
		require.NotEmpty(t, s.Labels)
	}
	return out, r.Warnings()
}

func TestExport(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		seed := uint64(7)
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		for id := range metric.ScheduleID(20) {
			w.series(id, "cpu", fmt.Sprint("web-", id))
		}
		for range 300 {
			var all []metric.Sample
			seen := make(map[metric.Sample]bool)
			for range 20 {
				s := metric.Sample{Schedule: metric.ScheduleID(rnd.IntN(20)), TimeMs: midnight + rnd.Int64N(300)*minute}
				if seen[s] {
					continue
				}
				seen[s] = true
				s.Value = rnd.NormFloat64()
				all = append(all, s)
			}
			// Samples are out of order, and many are sent again with another value.
			w.put(all...)
		}
		w.put(metric.Sample{Schedule: 4, TimeMs: midnight + hour, Value: math.Inf(1)})
		w.took()
		from, to := midnight+17*minute, midnight+4*hour
		got, warnings := exported(t, w, "cpu", from, to)
		require.Empty(t, warnings)
		require.Len(t, w.took(), 3, "one read for each group, however many series")
		for id := range metric.ScheduleID(20) {
			var want []metric.Sample
			for at, v := range w.samples[id] {
				if from <= at && at < to {
					want = append(want, metric.Sample{Schedule: id, TimeMs: at, Value: v})
				}
			}
			slices.SortFunc(want, metric.CompareSamples)
			require.Equal(t, want, got[id])
		}
	})
}

// TestSamplesBeyondTheLimit: samples that were accepted under a higher limit, or by a clock that
// was ahead, are exported, computed with, found and deleted.
func TestSamplesBeyondTheLimit(t *testing.T) {
	onEachStoreKeeping(t, nil, func(t *testing.T, w *world) {
		for id := range metric.ScheduleID(3) {
			w.series(id, "cpu", fmt.Sprint("web-", id))
		}
		limit := 40 * 24 * time.Hour
		w.put(metric.Sample{Schedule: 1, TimeMs: noon, Value: 1}, metric.Sample{Schedule: 1, TimeMs: noon + 30*day, Value: 2})
		seen := query.NewSightings(false)
		all := func(q *query.Querier) (times []int64) {
			w.q = q
			got, warnings := exported(t, w, "cpu", midnight, noon+100*day)
			require.Empty(t, warnings)
			for _, s := range got[1] {
				times = append(times, s.TimeMs)
			}
			latest, err := q.Latest(t.Context(), w.sel("cpu"), time.Hour)
			require.NoError(t, err)
			for l, err := range latest.All() {
				require.NoError(t, err)
				require.Equal(t, times[len(times)-1], l.TimeMs)
			}
			sums, err := q.Summary(t.Context(), w.sel("cpu"), midnight, noon+100*day)
			require.NoError(t, err)
			for s, err := range sums.All() {
				require.NoError(t, err)
				require.EqualValues(t, len(times), s.Count)
			}
			groups, err := q.Groups(t.Context(), w.sel("cpu")...)
			require.NoError(t, err)
			var read []int64
			for _, g := range groups {
				require.NoError(t, g.Samples(t.Context(), math.MinInt64, math.MaxInt64, new(query.Warnings), nil, func(_ int, samples []metric.Sample) error {
					for _, s := range samples {
						read = append(read, s.TimeMs)
					}
					return nil
				}))
			}
			require.Equal(t, times, read, "what a deletion reads")
			left, err := q.Left(t.Context(), []metric.ScheduleID{0, 1, 2})
			require.NoError(t, err)
			require.Equal(t, []metric.ScheduleID{1}, left)
			return times
		}
		settings := w.store.Settings()
		lowered := query.New(query.Parts{
			Store: w.store, Index: w.index, Settings: settings, Clock: w.clock,
		}, query.Options{FutureLimit: time.Minute, Sightings: seen})
		require.Equal(t, []int64{noon, noon + 30*day}, all(query.New(query.Parts{
			Store: w.store, Index: w.index, Settings: settings, Clock: w.clock,
		}, query.Options{FutureLimit: limit})))
		require.Equal(t, []int64{noon, noon + 30*day}, all(lowered), "the limit was lowered")
		w.clock.Set(time.UnixMilli(noon - 20*day))
		require.Equal(t, []int64{noon, noon + 30*day}, all(lowered), "the clock is set back")
		require.Equal(t, []int64{noon, noon + 30*day}, all(query.New(query.Parts{
			Store: w.store, Index: w.index, Settings: settings, Clock: w.clock,
		}, query.Options{})), "and the process started again")

		// A clock that was ahead accepted it, and is corrected at once.
		late := metric.Sample{Schedule: 1, TimeMs: noon + 60*day, Value: 3}
		w.put(late)
		seen.Saw([]metric.Sample{late})
		require.Equal(t, []int64{noon, noon + 30*day, noon + 60*day}, all(lowered))
	})
}

// TestEndIsAskedForOnce: not every query asks the store how far its samples reach.
func TestEndIsAskedForOnce(t *testing.T) {
	w := newWorld(t, querytest.Settings(), nil)
	w.series(1, "cpu", "web")
	w.put(metric.Sample{Schedule: 1, TimeMs: noon, Value: 1})
	for range 5 {
		_, _ = exported(t, w, "cpu", midnight, noon+72*hour)
		_, _ = exported(t, w, "cpu", midnight, noon+hour)
	}
	require.Equal(t, 1, w.store.slices)
	w.clock.Set(w.clock.Now().Add(10 * time.Minute))
	_, _ = exported(t, w, "cpu", midnight, noon+hour)
	require.Equal(t, 1, w.store.slices)
	_, _ = exported(t, w, "cpu", midnight, noon+72*hour)
	require.Equal(t, 2, w.store.slices)
	for _, r := range w.store.reads {
		require.LessOrEqual(t, r.ToMs, w.clock.Now().Add(24*time.Hour).UnixMilli()+1)
	}
}

func TestExportInPieces(t *testing.T) {
	w := newWorld(t, querytest.Settings(), nil)
	w.series(1, "cpu", "web")
	w.fill([]metric.ScheduleID{1}, midnight, midnight+12*hour, second, wave)
	r, err := w.q.Export(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	atMs, pieces := midnight, 0
	for s, err := range r.All() {
		require.NoError(t, err)
		require.LessOrEqual(t, len(s.Samples), 10_000)
		for _, x := range s.Samples {
			require.Equal(t, atMs, x.TimeMs)
			atMs += second
		}
		pieces++
	}
	require.Equal(t, midnight+12*hour, atMs)
	require.Equal(t, 5, pieces)
}

func TestDamagedChunkIsLeftOutAndNamed(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.series(1, "cpu", "web")
		w.put(metric.Sample{Schedule: 1, TimeMs: midnight, Value: 1})
		w.put(metric.Sample{Schedule: 1, TimeMs: midnight + 2*hour, Value: 2})
		id := w.ids.Next(noon)
		require.NoError(t, w.store.Write(t.Context(), &storage.Batch{
			Open: []storage.SliceKey{{StartMs: midnight + hour}},
			Raw:  []storage.RawChunk{{SliceMs: midnight + hour, Chunk: storage.Chunk{ID: id, Data: []byte("no chunk at all")}}},
		}))
		reg := prometheus.NewRegistry()
		w.q = query.New(w.parts(), query.Options{Metrics: reg})
		got, warnings := exported(t, w, "cpu", midnight, noon)
		require.Len(t, got[1], 2)
		require.Len(t, warnings, 1)
		require.Contains(t, warnings[0], "raw chunk "+id.String()+" of group 0 in the slice of 2025-11-21T01:00:00Z")

		r, err := w.q.Points(t.Context(), w.sel("cpu"), query.Range{StartMs: midnight, EndMs: midnight + 3*hour, N: 1})
		require.Equal(t, uint64(2), collect(t, r, err)[0].Points[0].Count)
		require.Len(t, r.Warnings(), 1)
		require.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP quern_query_damaged_chunks_total Damaged raw chunks skipped in answers, counted at each read.
# TYPE quern_query_damaged_chunks_total counter
quern_query_damaged_chunks_total 2
`), "quern_query_damaged_chunks_total"))
	})
}

func TestManyWarningsAreCounted(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(1, "cpu", "web")
	b := &storage.Batch{}
	for range 50 {
		b.Raw = append(b.Raw, storage.RawChunk{SliceMs: midnight, Chunk: storage.Chunk{ID: w.ids.Next(noon), Data: []byte("none")}})
	}
	require.NoError(t, w.store.Write(t.Context(), b))
	_, warnings := exported(t, w, "cpu", midnight, noon)
	require.Len(t, warnings, 21)
	require.Equal(t, "and 30 more", warnings[20])
}

func TestRollupRows(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		for id := range metric.ScheduleID(20) {
			w.series(id, "cpu", fmt.Sprint("web-", id))
		}
		w.fill([]metric.ScheduleID{0, 7, 8, 19}, midnight-day, midnight+12*hour, minute, wave)
		w.grind(1, midnight-day, midnight+12*hour)
		w.grind(2, midnight-day, midnight+12*hour)
		for _, c := range []struct {
			level metric.Bucket
			from  int64
			to    int64
			want  int
		}{
			{1, midnight, midnight + 12*hour, 12},
			{1, midnight + 1, midnight + 12*hour, 11},
			{1, midnight, midnight + 12*hour + 1, 12},
			{2, midnight - day, noon, 6},
			{3, midnight - day, noon, 0},
			{1, midnight - 500*day, midnight - 400*day, 0},
		} {
			r, err := w.q.Rollups(t.Context(), w.sel("cpu"), c.level, c.from, c.to)
			last := make(map[metric.ScheduleID]int64)
			n := make(map[metric.ScheduleID]int)
			for _, row := range collect(t, r, err) {
				want, _ := querytest.RollupOf(w.within(row.Schedule, row.TimeMs, row.TimeMs+w.ladder().WidthMs(c.level)))
				require.Equal(t, want, row.Rollup)
				require.Greater(t, row.TimeMs, last[row.Schedule])
				require.Equal(t, fmt.Sprint("web-", row.Schedule), row.Labels.Get("source"))
				last[row.Schedule] = row.TimeMs
				n[row.Schedule]++
			}
			for _, id := range []metric.ScheduleID{0, 7, 8, 19} {
				require.Equal(t, c.want, n[id])
			}
		}
		for _, level := range []metric.Bucket{-1, 0, 4} {
			_, err := w.q.Rollups(t.Context(), w.sel("cpu"), level, midnight, noon)
			var bad *query.RequestError
			require.ErrorAs(t, err, &bad)
		}
	})
}

// A damaged row is left out and named; the rows after it are returned.
func TestDamagedRowIsLeftOutAndNamed(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(1, "cpu", "web")
	w.series(2, "cpu", "web-2")
	w.fill([]metric.ScheduleID{1, 2}, midnight-day, midnight, minute, wave)
	w.grind(1, midnight-day, midnight)
	require.NoError(t, w.store.WriteRollups(t.Context(), 0, 1, []metric.RollupRow{{Schedule: 1, TimeMs: midnight - 20*hour, Damaged: true}}))
	r, err := w.q.Rollups(t.Context(), w.sel("cpu"), 1, midnight-day, midnight)
	require.Len(t, collect(t, r, err), 2*24-1)
	require.Equal(t, []string{`the 1h row at 2025-11-20T04:00:00Z of cpu{source="web"} is damaged, and was skipped`}, r.Warnings())
	p, err := w.q.Summary(t.Context(), w.sel(`cpu{source="web"}`), midnight-8*day, midnight)
	require.Len(t, collect(t, p, err), 1)
}

func TestTooManySeries(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	for id := range metric.ScheduleID(20) {
		w.series(id, "cpu", fmt.Sprint("web-", id))
	}
	q := query.New(w.parts(), query.Options{MaxSeries: 19})
	for name, ask := range map[string]func() error{
		"points": func() error {
			_, err := q.Points(t.Context(), w.sel("cpu"), query.Range{StartMs: midnight, EndMs: noon, N: 2})
			return err
		},
		"summary":  func() error { _, err := q.Summary(t.Context(), w.sel("cpu"), midnight, noon); return err },
		"baseline": func() error { _, err := q.Baseline(t.Context(), w.sel("cpu"), midnight, noon); return err },
		"latest":   func() error { _, err := q.Latest(t.Context(), w.sel("cpu"), time.Hour); return err },
		"groups":   func() error { _, err := q.Groups(t.Context(), w.sel("cpu")...); return err },
	} {
		var bad *query.RequestError
		err := ask()
		require.ErrorAs(t, err, &bad, name)
		require.ErrorContains(t, err, "match 20 series, more than the limit of 19", name)
	}
}

// everySample is a store that has one sample and one row of each series, and holds none of them.
type everySample struct {
	query.Store
	sketch []byte
}

func (s everySample) RawChunks(_ context.Context, ids blocks.Range, _, _ int64) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		var samples []metric.Sample
		for id := ids.Start; id < ids.End; id++ {
			samples = append(samples, metric.Sample{Schedule: id, TimeMs: midnight, Value: 1})
		}
		yield(storage.RawChunk{Group: ids.Start, SliceMs: midnight, Chunk: storage.Chunk{Data: blocks.AppendSamples(nil, samples)}}, nil)
	}
}

func (s everySample) Rollups(_ context.Context, _ metric.Bucket, ids blocks.Range, _, _ int64) iter.Seq2[metric.RollupRow, error] {
	return func(yield func(metric.RollupRow, error) bool) {
		for id := ids.Start; id < ids.End; id++ {
			row := metric.RollupRow{Schedule: id, TimeMs: midnight, Rollup: metric.Rollup{Count: 1, Sum: 1, Min: 1, Max: 1, First: 1, Last: 1, Sketch: s.sketch}}
			if !yield(row, nil) {
				return
			}
		}
	}
}

// TestStreamsOfManySeries: raw samples and rows are read of any number of series. A stream holds a few bytes for each.
func TestStreamsOfManySeries(t *testing.T) {
	const n, limit = 100_000, 1000
	settings := querytest.Settings()
	settings.GroupSize, settings.Epochs[0].BlockSize = 128, 128
	w := newWorld(t, settings, nil)
	all := make([]storage.Schedule, n)
	for id := range all {
		all[id] = storage.Schedule{ID: metric.ScheduleID(id), Labels: metric.Labels{
			{Name: metric.NameLabel, Value: "cpu"}, {Name: "n", Value: strconv.Itoa(id)},
		}}
	}
	w.index.Add(all)
	var sk sketch.Sketch
	sk.Add(1)
	parts := w.parts()
	parts.Store = everySample{w.store, sk.AppendEncoded(nil)}
	q := query.New(parts, query.Options{MaxSeries: limit})
	samples, err := q.Export(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	checkStream(t, samples, n)
	rows, err := q.Rollups(t.Context(), w.sel("cpu"), 1, midnight, noon)
	require.NoError(t, err)
	checkStream(t, rows, n)
}

// checkStream reads a result of n values, and checks what is held meanwhile.
func checkStream[T any](t *testing.T, r *query.Result[T], n int) {
	t.Helper()
	seen, first, most := 0, uint64(0), uint64(0)
	for _, err := range r.All() {
		require.NoError(t, err)
		switch seen++; {
		case seen == 1:
			first = inUse()
		case seen%(n/3) == 0:
			most = max(most, inUse())
		}
	}
	require.Equal(t, n, seen)
	require.Less(t, most, first+uint64(n)*24)
}

// What a reader may hold bounds a slice while it is put together: what differs counts, and what is
// repeated, or is not asked for, does not.
func TestSamplesAreCountedAsTheyLoad(t *testing.T) {
	const perChunk, most = 20_000, 130_000
	w := newWorld(t, querytest.Settings(), retention)
	for id := range metric.ScheduleID(3) {
		w.series(id, "cpu", fmt.Sprint(id))
	}
	chunk := func(id metric.ScheduleID, fromMs int64) {
		samples := make([]metric.Sample, perChunk)
		for i := range samples {
			samples[i] = metric.Sample{Schedule: id, TimeMs: fromMs + int64(i)}
		}
		w.put(samples...)
	}
	for i := range int64(30) {
		chunk(0, midnight)            // the same
		chunk(1, midnight+i*perChunk) // 600,000 of an hour
		chunk(2, midnight+i*perChunk%hour)
	}
	type outcome struct {
		peak, chunks, samples int
		held                  int
		err                   error
	}
	read := func(sel string, fromMs, toMs int64) (o outcome) {
		tooMany := errors.New("too many")
		groups, err := w.q.Groups(t.Context(), w.sel(sel)...)
		require.NoError(t, err)
		w.store.chunks = 0
		for _, g := range groups {
			o.err = g.Samples(t.Context(), fromMs, toMs, new(query.Warnings), func(n int) error {
				o.held += n
				if o.peak = max(o.peak, o.held); o.held > most {
					return tooMany
				}
				return nil
			}, func(_ int, samples []metric.Sample) error {
				require.Zero(t, o.held)
				o.samples += len(samples)
				return nil
			})
		}
		o.chunks = w.store.chunks
		if o.err != nil {
			require.ErrorIs(t, o.err, tooMany)
		}
		return o
	}

	same := read(`cpu{source="0"}`, midnight, midnight+hour)
	require.NoError(t, same.err)
	require.Equal(t, perChunk, same.samples)
	require.Equal(t, perChunk, same.peak)

	all := read(`cpu{source="1"}`, midnight, midnight+hour)
	require.Error(t, all.err)
	require.Zero(t, all.samples)
	require.Less(t, all.peak, 2*most+perChunk)
	require.Less(t, all.chunks, 60, "it ends when it is too much")

	part := read(`cpu{source=~"1|2"}`, midnight+minute, midnight+2*minute)
	require.NoError(t, part.err, "only what is asked for counts")
	require.EqualValues(t, 2*minute, part.samples)
}

// A dense slice has many samples: of two series, 6 ms apart.
const (
	densePerChunk, denseChunks = 20_000, 40
	denseStepMs                = 6
)

// newDenseWorld makes a world with a dense slice.
func newDenseWorld(t testing.TB) *world {
	w := newWorld(t, querytest.Settings(), retention)
	for id := range metric.ScheduleID(2) {
		w.series(id, "cpu", fmt.Sprint(id))
	}
	for i := range int64(denseChunks) {
		samples := make([]metric.Sample, 0, densePerChunk)
		for id := range metric.ScheduleID(2) {
			for n := range int64(densePerChunk / 2) {
				at := i*densePerChunk/2 + n
				samples = append(samples, metric.Sample{Schedule: id, TimeMs: midnight + at*denseStepMs, Value: float64(at % 1000)})
			}
		}
		require.NoError(t, w.store.Write(t.Context(), &storage.Batch{
			Open: []storage.SliceKey{{Bucket: metric.Raw, StartMs: midnight}},
			Raw:  []storage.RawChunk{{SliceMs: midnight, Chunk: storage.Chunk{ID: w.ids.Next(midnight), Data: blocks.AppendSamples(nil, samples)}}},
		}))
	}
	return w
}

// denseReads read the dense slice in each way that there is. They end with the error of the read.
func (w *world) denseReads() map[string]func(ctx context.Context, q *query.Querier) (any, error) {
	from, to := midnight-hour, midnight+2*hour
	return map[string]func(ctx context.Context, q *query.Querier) (any, error){
		"export": func(ctx context.Context, q *query.Querier) (any, error) {
			pieces, err := gathered(q.Export(ctx, w.sel("cpu"), from, to))
			all := make([][]metric.Sample, 2)
			for _, s := range pieces {
				all[s.ID] = append(all[s.ID], s.Samples...)
			}
			return all, err
		},
		"points": func(ctx context.Context, q *query.Querier) (any, error) {
			return gathered(q.Points(ctx, w.sel("cpu"), query.Range{StartMs: from, EndMs: to, N: 70}))
		},
		"summary": func(ctx context.Context, q *query.Querier) (any, error) {
			return gathered(q.Summary(ctx, w.sel("cpu"), from, to))
		},
		"latest": func(ctx context.Context, q *query.Querier) (any, error) {
			return gathered(q.Latest(ctx, w.sel("cpu"), query.MaxLookback))
		},
		"deletion": func(ctx context.Context, q *query.Querier) (any, error) {
			groups, err := q.Groups(ctx, w.sel("cpu")...)
			if err != nil {
				return nil, err
			}
			all := make([][]metric.Sample, 2)
			return all, groups[0].Samples(ctx, from, to, new(query.Warnings), nil, func(i int, samples []metric.Sample) error {
				all[i] = append(all[i], samples...)
				return nil
			})
		},
	}
}

// TestDenseSlicesAreReadInParts: a slice with more samples than a request may hold is read in
// parts, and the answer is the same.
func TestDenseSlicesAreReadInParts(t *testing.T) {
	w := newDenseWorld(t)
	for name, read := range w.denseReads() {
		t.Run(name, func(t *testing.T) {
			ask := func(most int) (answer any, held uint64) {
				q := query.New(query.Parts{
					Store: w.store, Index: w.index, Settings: w.store.Settings(), Clock: w.clock,
				}, query.Options{MaxSamples: most, Parallel: 1})
				before := inUse()
				var measure func()
				measure = func() { // at the end of each read, when most is held
					held = max(held, inUse()-before)
					w.store.after = measure
				}
				w.store.after = measure
				answer, err := read(t.Context(), q)
				require.NoError(t, err)
				w.store.after = nil
				return answer, held
			}
			all, whole := ask(10_000_000)
			again, inParts := ask(100_000)
			require.Equal(t, all, again)
			if name != "export" && name != "deletion" { // of those the test holds the answer
				t.Logf("%d bytes at a time, %d in parts", whole, inParts)
				require.Less(t, inParts, whole/2)
			}
			some, ok := all.([][]metric.Sample)
			if !ok {
				return
			}
			for _, samples := range some {
				require.Len(t, samples, denseChunks*densePerChunk/2)
				for i, s := range samples {
					if want := midnight + int64(i)*denseStepMs; s.TimeMs != want {
						require.Equal(t, want, s.TimeMs)
					}
				}
			}
		})
	}
}

// gathered returns the values of a result. The samples of exports are copied, as they are valid only until
// the next value.
func gathered[T any](r *query.Result[T], err error) ([]T, error) {
	if err != nil {
		return nil, err
	}
	var out []T
	for v, err := range r.All() {
		if err != nil {
			return nil, err
		}
		if piece, ok := any(&v).(*query.Samples); ok {
			piece.Samples = slices.Clone(piece.Samples)
		}
		out = append(out, v)
	}
	if warnings := r.Warnings(); len(warnings) > 0 || len(out) == 0 {
		return nil, fmt.Errorf("%d values, with warnings: %q", len(out), warnings)
	}
	return out, nil
}

// inUse returns the bytes that are in use. Pools release what they have at the second collection.
func inUse() uint64 {
	var m runtime.MemStats
	for range 2 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
