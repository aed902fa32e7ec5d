package promquery

import (
	"cmp"
	"context"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/sketch"
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

// retention is the server's default retention.
var retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}

func settings() storage.Settings {
	return storage.Settings{
		Ladder:          metric.DefaultLadder(),
		GroupSize:       8,
		IndexPartitions: 4,
		Epochs:          blocks.Epochs{{BlockSize: 4}},
	}
}

// spy counts the reads of a store.
type spy struct {
	storage.Store
	rollups, slices atomic.Int64
	// onRaw, unless nil, is called before raw chunks are read.
	onRaw func()
}

func (s *spy) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	if s.onRaw != nil {
		s.onRaw()
	}
	return s.Store.RawChunks(ctx, ids, fromMs, toMs)
}

func (s *spy) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	s.rollups.Add(1)
	return s.Store.Rollups(ctx, level, ids, fromMs, toMs)
}

func (s *spy) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	s.slices.Add(1)
	return s.Store.Slices(ctx, b, fromMs, toMs)
}

// world is a store with a querier and a queryable.
type world struct {
	t         testing.TB
	store     *spy
	q         *query.Querier
	queryable *Queryable
	index     *query.Index
	chunks    *blocks.IDs

	mu     sync.Mutex
	series map[string]metric.ScheduleID
}

// stores are the kinds of stores that tests run on.
var stores = map[string]func(t testing.TB, keep storage.Retention, clk clock.Clock) storage.Store{
	"model": func(_ testing.TB, keep storage.Retention, clk clock.Clock) storage.Store {
		return storagetest.NewModel(settings(), keep, clk)
	},
	"pebble": func(t testing.TB, keep storage.Retention, clk clock.Clock) storage.Store {
		st, err := pebble.Open("quern", pebble.Options{Settings: settings(), Policy: storage.Policy{Retention: keep}.Always, Clock: clk, FS: vfs.NewMem()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		return st
	},
}

// newWorld makes a world whose clock is at nowMs.
func newWorld(t testing.TB, kind string, keep storage.Retention, nowMs int64) *world {
	clk := clock.NewSimulated(time.UnixMilli(nowMs))
	return newWorldOn(t, stores[kind](t, keep, clk), keep, clk)
}

func newWorldOn(t testing.TB, st storage.Store, keep storage.Retention, clk clock.Clock) *world {
	w := &world{
		t: t, store: &spy{Store: st}, index: query.NewIndex(), chunks: blocks.NewIDs(1),
		series: make(map[string]metric.ScheduleID),
	}
	w.q = query.New(w.store, w.index, st.Settings(), st.WholeFrom, clk, query.Options{})
	_, w.queryable = New(w.q, Options{})
	return w
}

// id returns the id of the series with the given labels, which it adds if it is new.
func (w *world) id(ls metric.Labels) metric.ScheduleID {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(ls.AppendKey(nil))
	id, ok := w.series[key]
	if !ok {
		id = metric.ScheduleID(len(w.series))
		w.series[key] = id
		w.index.Add([]storage.Schedule{{ID: id, Labels: ls}})
	}
	return id
}

func named(name string, more ...metric.Label) metric.Labels {
	ls, err := metric.NewLabels(append(more, metric.Label{Name: metric.NameLabel, Value: name})...)
	if err != nil {
		panic(err)
	}
	return ls
}

// put stores samples in one flush: a chunk for each block and slice.
func (w *world) put(samples ...metric.Sample) {
	w.t.Helper()
	require.NoError(w.t, w.store.Write(w.t.Context(), w.flush(&storage.Batch{}, samples)))
}

// flush adds to a batch what one flush of ingest would write.
func (w *world) flush(b *storage.Batch, samples []metric.Sample) *storage.Batch {
	type place struct {
		sliceMs int64
		block   metric.ScheduleID
	}
	settings := w.store.Settings()
	byPlace := make(map[place][]metric.Sample)
	for _, s := range samples {
		sliceMs := settings.Ladder.SliceAt(metric.Raw, s.TimeMs).StartMs
		p := place{sliceMs, blocks.Of(s.Schedule, settings.Epochs[0].BlockSize).Start}
		byPlace[p] = append(byPlace[p], s)
	}
	for p, all := range byPlace {
		slices.SortStableFunc(all, metric.CompareSamples)
		key := storage.SliceKey{Bucket: metric.Raw, StartMs: p.sliceMs}
		b.Open = append(b.Open, key)
		b.Raw = append(b.Raw, storage.RawChunk{
			Group:   blocks.Of(p.block, settings.GroupSize).Start,
			SliceMs: p.sliceMs,
			Chunk:   storage.Chunk{ID: w.chunks.Next(max(0, p.sliceMs)), Data: blocks.AppendSamples(nil, all)},
		})
	}
	return b
}

// grind writes the rows of a level that start in [fromMs, toMs), computed from the samples of each
// series. It completes the slices that the rows cover.
func (w *world) grind(level metric.Bucket, fromMs, toMs int64, samples map[metric.ScheduleID][]metric.Sample) {
	w.t.Helper()
	width := w.q.Ladder().WidthMs(level)
	for t := fromMs; t < toMs; t += width {
		var rows []metric.RollupRow
		for id, all := range samples {
			lo, _ := slices.BinarySearchFunc(all, t, func(s metric.Sample, t int64) int { return cmp.Compare(s.TimeMs, t) })
			hi, _ := slices.BinarySearchFunc(all, t+width, func(s metric.Sample, t int64) int { return cmp.Compare(s.TimeMs, t) })
			if r, ok := rollupOf(all[lo:hi]); ok {
				rows = append(rows, metric.RollupRow{Schedule: id, TimeMs: t, Rollup: r})
			}
		}
		slices.SortFunc(rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
		require.NoError(w.t, w.store.WriteRollups(w.t.Context(), 0, level, rows))
		if level < w.q.Ladder().Top() {
			into := storage.SliceKey{Bucket: level, StartMs: w.q.Ladder().SliceAt(level, t).StartMs}
			require.NoError(w.t, w.store.Write(w.t.Context(), &storage.Batch{Open: []storage.SliceKey{into}}))
		}
		require.NoError(w.t, w.store.CompleteSlice(w.t.Context(), storage.SliceKey{Bucket: level - 1, StartMs: t}))
	}
}

func rollupOf(samples []metric.Sample) (metric.Rollup, bool) {
	samples = slices.DeleteFunc(slices.Clone(samples), func(s metric.Sample) bool { return math.IsNaN(s.Value) || math.IsInf(s.Value, 0) })
	if len(samples) == 0 {
		return metric.Rollup{}, false
	}
	r := metric.Rollup{
		Count: uint64(len(samples)), Min: math.Inf(1), Max: math.Inf(-1),
		First: samples[0].Value, Last: samples[len(samples)-1].Value,
	}
	var sk sketch.Sketch
	for i, s := range samples {
		r.Sum += s.Value
		r.Min = min(r.Min, s.Value)
		r.Max = max(r.Max, s.Value)
		sk.Add(s.Value)
		if i > 0 {
			r.Increase += stepTo(samples[i-1].Value, s.Value)
		}
	}
	r.Sketch = sk.AppendEncoded(nil)
	return r, true
}

// stepTo returns the growth of a counter between two samples.
func stepTo(before, v float64) float64 {
	if v < before {
		return v
	}
	return v - before
}
