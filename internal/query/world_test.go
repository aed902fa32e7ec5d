package query_test

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

// noon is the time of most tests: 2025-11-21 12:20 UTC, a little into an hour.
var (
	midnight = time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	noon     = midnight + 12*hour + 20*minute
)

// retention is the server's default: raw 7 d, 1h 90 d, 6h 1 y, 24h 5 y.
var retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}

// read records one read of the store.
type read struct {
	Bucket metric.Bucket
	IDs    blocks.Range
	FromMs int64
	ToMs   int64
}

// spy records the reads of a store.
type spy struct {
	storage.Store
	mu     sync.Mutex
	reads  []read
	slices int // how often the store was asked for them
	// before, unless nil, is called ahead of each read of raw chunks.
	before func(ctx context.Context) error
	chunks int // raw chunks that were yielded
	// after, unless nil, is called once at the end of the next read of raw chunks.
	after func()
}

func (s *spy) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	s.mu.Lock()
	s.slices++
	s.mu.Unlock()
	return s.Store.Slices(ctx, b, fromMs, toMs)
}

func (s *spy) note(b metric.Bucket, ids blocks.Range, fromMs, toMs int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads = append(s.reads, read{b, ids, fromMs, toMs})
}

func (s *spy) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	s.note(metric.Raw, ids, fromMs, toMs)
	return func(yield func(storage.RawChunk, error) bool) {
		if s.before != nil {
			if err := s.before(ctx); err != nil {
				yield(storage.RawChunk{}, err)
				return
			}
		}
		s.Store.RawChunks(ctx, ids, fromMs, toMs)(func(ch storage.RawChunk, err error) bool {
			s.mu.Lock()
			s.chunks++
			s.mu.Unlock()
			return yield(ch, err)
		})
		s.mu.Lock()
		after := s.after
		s.after = nil
		s.mu.Unlock()
		if after != nil {
			after()
		}
	}
}

func (s *spy) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	s.note(level, ids, fromMs, toMs)
	return s.Store.Rollups(ctx, level, ids, fromMs, toMs)
}

// world is a store with samples, a record of these samples, and a querier.
type world struct {
	t     testing.TB
	base  *querytest.World
	store *spy
	clock *clock.Simulated
	index *query.Index
	q     *query.Querier
	ids   *blocks.IDs
	// samples are all samples put, by series and time. All expectations are computed from them.
	samples map[metric.ScheduleID]map[int64]float64
}

// onEachStore runs a test on the model and on Pebble.
func onEachStore(t *testing.T, test func(t *testing.T, w *world)) {
	onEachStoreKeeping(t, retention, test)
}

// onEachStoreKeeping is onEachStore with a given retention.
func onEachStoreKeeping(t *testing.T, keep storage.Retention, test func(t *testing.T, w *world)) {
	t.Run("model", func(t *testing.T) { test(t, newWorld(t, querytest.Settings(), keep)) })
	t.Run("pebble", func(t *testing.T) { test(t, newPebbleWorld(t, querytest.Settings(), keep)) })
}

func newPebbleWorld(t testing.TB, settings storage.Settings, keep storage.Retention) *world {
	clk := clock.NewSimulated(time.UnixMilli(noon))
	st, err := pebble.Open("quern", pebble.Options{Settings: settings, Policy: storage.Policy{Retention: keep}.Always, Clock: clk, FS: vfs.NewMem()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	return newWorldOn(t, st, clk, keep)
}

func newWorld(t testing.TB, settings storage.Settings, keep storage.Retention) *world {
	clk := clock.NewSimulated(time.UnixMilli(noon))
	return newWorldOn(t, storagetest.NewModel(settings, keep, clk), clk, keep)
}

func newWorldOn(t testing.TB, st storage.Store, clk *clock.Simulated, keep storage.Retention) *world {
	w := &world{t: t, store: &spy{Store: st}, clock: clk, samples: make(map[metric.ScheduleID]map[int64]float64)}
	w.base = querytest.NewOn(t, w.store, clk)
	w.index, w.ids = w.base.Index, w.base.Chunks
	w.q = query.New(query.Parts{Store: w.store, Index: w.index, Settings: st.Settings(), WholeFrom: st.WholeFrom, Clock: clk}, query.Options{})
	return w
}

// series adds a series with the given id.
func (w *world) series(id metric.ScheduleID, name, source string) {
	w.index.Add([]storage.Schedule{{ID: id, Labels: metric.Labels{
		{Name: metric.NameLabel, Value: name}, {Name: metric.SourceLabel, Value: source},
	}}})
}

// parts are what a querier of the world works with.
func (w *world) parts() query.Parts {
	return query.Parts{Store: w.store, Index: w.index, Settings: w.store.Settings(), WholeFrom: w.store.WholeFrom, Clock: w.clock}
}

func (w *world) ladder() metric.Ladder { return w.store.Settings().Ladder }

// put stores samples in one flush: a chunk for each block and slice.
func (w *world) put(samples ...metric.Sample) {
	w.t.Helper()
	for _, s := range samples {
		if w.samples[s.Schedule] == nil {
			w.samples[s.Schedule] = make(map[int64]float64)
		}
		w.samples[s.Schedule][s.TimeMs] = s.Value
	}
	w.base.Put(samples...)
}

// fill puts a sample of each series at every step; value returns its value.
func (w *world) fill(ids []metric.ScheduleID, fromMs, toMs, stepMs int64, value func(id metric.ScheduleID, tMs int64) float64) {
	w.t.Helper()
	for sliceMs := fromMs; sliceMs < toMs; sliceMs += hour {
		var all []metric.Sample
		for _, id := range ids {
			for t := sliceMs; t < min(sliceMs+hour, toMs); t += stepMs {
				all = append(all, metric.Sample{Schedule: id, TimeMs: t, Value: value(id, t)})
			}
		}
		w.put(all...)
	}
}

// within returns the finite samples of a series in [fromMs, toMs), sorted by time.
func (w *world) within(id metric.ScheduleID, fromMs, toMs int64) []metric.Sample {
	var out []metric.Sample
	for t, v := range w.samples[id] {
		if fromMs <= t && t < toMs && !math.IsNaN(v) && !math.IsInf(v, 0) {
			out = append(out, metric.Sample{Schedule: id, TimeMs: t, Value: v})
		}
	}
	slices.SortFunc(out, metric.CompareSamples)
	return out
}

// grind writes the rows of a level that start in [fromMs, toMs), computed from the raw samples. It
// completes the slices that the rows cover, and opens the slices of the next bucket, as a run does.
func (w *world) grind(level metric.Bucket, fromMs, toMs int64) {
	w.t.Helper()
	all := make(map[metric.ScheduleID][]metric.Sample)
	for id := range w.samples {
		all[id] = w.within(id, fromMs, toMs)
	}
	w.base.Grind(level, fromMs, toMs, all)
}

func (w *world) sel(s string) []query.Selector {
	w.t.Helper()
	sels, err := query.ParseSelectors(w.t.Context(), []string{s})
	require.NoError(w.t, err)
	return sels
}

// collect reads a whole result.
func collect[T any](t testing.TB, r *query.Result[T], err error) []T {
	t.Helper()
	require.NoError(t, err)
	var out []T
	for v, err := range r.All() {
		require.NoError(t, err)
		out = append(out, v)
	}
	return out
}

// checkPoints reads points and checks them against the raw samples.
func (w *world) checkPoints(sel string, rng query.Range) []query.SeriesPoints {
	w.t.Helper()
	r, err := w.q.Points(w.t.Context(), w.sel(sel), rng)
	got := collect(w.t, r, err)
	require.Empty(w.t, r.Warnings())
	for _, s := range got {
		require.Len(w.t, s.Points, rng.N)
		for i, p := range s.Points {
			// A bucket is defined by i <= (t-start)*n/(end-start) < i+1.
			var count uint64
			var sum, least, most float64
			for _, x := range w.within(s.ID, rng.StartMs, rng.EndMs) {
				if (x.TimeMs-rng.StartMs)*int64(rng.N)/(rng.EndMs-rng.StartMs) != int64(i) {
					continue
				}
				if count == 0 {
					least, most = x.Value, x.Value
				}
				count++
				sum += x.Value
				least, most = min(least, x.Value), max(most, x.Value)
			}
			at := fmt.Sprintf("series %d, bucket %d", s.ID, i)
			require.Equal(w.t, count, p.Count, at)
			if count == 0 {
				continue
			}
			require.InDelta(w.t, sum, p.Sum, 1e-6, at)
			require.InDelta(w.t, sum/float64(count), p.Avg(), 1e-6, at)
			require.Equal(w.t, least, p.Min, at)
			require.Equal(w.t, most, p.Max, at)
		}
	}
	return got
}

// took returns the reads since its last call, without those of the planner.
func (w *world) took() []read {
	w.store.mu.Lock()
	defer w.store.mu.Unlock()
	out := w.store.reads
	w.store.reads = nil
	return out
}

// buckets returns the buckets of reads in order of time, without adjacent duplicates.
func buckets(reads []read) []metric.Bucket {
	slices.SortStableFunc(reads, func(a, b read) int { return cmp.Compare(a.FromMs, b.FromMs) })
	var out []metric.Bucket
	for _, r := range reads {
		out = append(out, r.Bucket)
	}
	return slices.Compact(out)
}

func wave(id metric.ScheduleID, tMs int64) float64 {
	return float64(id) + float64(tMs/second%977) - 300
}
