// Package querytest has a store with series, samples and rows for tests of what reads them.
package querytest

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

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/storage/storagetest"
)

// Settings returns settings with small blocks and groups.
func Settings() storage.Settings {
	return storage.Settings{
		Ladder:          metric.DefaultLadder(),
		GroupSize:       8,
		IndexPartitions: 4,
		Epochs:          blocks.Epochs{{BlockSize: 4}},
	}
}

// Spy counts the reads of a store.
type Spy struct {
	storage.Store
	RollupReads, SliceReads atomic.Int64
	// OnRaw and OnRollups, unless nil, are called before raw chunks or roll-up rows are read.
	OnRaw, OnRollups func()
}

// RawChunks implements storage.Store.
func (s *Spy) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	if s.OnRaw != nil {
		s.OnRaw()
	}
	return s.Store.RawChunks(ctx, ids, fromMs, toMs)
}

// Rollups implements storage.Store.
func (s *Spy) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	s.RollupReads.Add(1)
	if s.OnRollups != nil {
		s.OnRollups()
	}
	return s.Store.Rollups(ctx, level, ids, fromMs, toMs)
}

// Slices implements storage.Store.
func (s *Spy) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	s.SliceReads.Add(1)
	return s.Store.Slices(ctx, b, fromMs, toMs)
}

// World is a store with a querier.
type World struct {
	Store   *Spy
	Querier *query.Querier
	Index   *query.Index
	// Chunks makes the ids of chunks.
	Chunks *blocks.IDs

	t testing.TB

	mu     sync.Mutex
	series map[string]metric.ScheduleID
}

// Stores are the kinds of stores that tests run on.
var Stores = map[string]func(t testing.TB, keep storage.Retention, clk clock.Clock) storage.Store{
	"model": func(_ testing.TB, keep storage.Retention, clk clock.Clock) storage.Store {
		return storagetest.NewModel(Settings(), keep, clk)
	},
	"pebble": func(t testing.TB, keep storage.Retention, clk clock.Clock) storage.Store {
		st, err := pebble.Open("quern", pebble.Options{Settings: Settings(), Policy: storage.Policy{Retention: keep}.Always, Clock: clk, FS: vfs.NewMem()})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		return st
	},
}

// New makes a world of a kind of store, whose clock is at nowMs.
func New(t testing.TB, kind string, keep storage.Retention, nowMs int64) *World {
	clk := clock.NewSimulated(time.UnixMilli(nowMs))
	return NewOn(t, Stores[kind](t, keep, clk), clk)
}

// NewOn makes a world on a store.
func NewOn(t testing.TB, st storage.Store, clk clock.Clock) *World {
	w := &World{
		Store: &Spy{Store: st}, Index: query.NewIndex(), Chunks: blocks.NewIDs(1),
		t: t, series: make(map[string]metric.ScheduleID),
	}
	w.Querier = query.New(query.Parts{Store: w.Store, Index: w.Index, Settings: st.Settings(), WholeFrom: st.WholeFrom, Clock: clk}, query.Options{})
	return w
}

// ID returns the id of the series with the given labels, which it adds if it is new.
func (w *World) ID(ls metric.Labels) metric.ScheduleID {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := string(ls.AppendKey(nil))
	id, ok := w.series[key]
	if !ok {
		id = metric.ScheduleID(len(w.series))
		w.series[key] = id
		w.Index.Add([]storage.Schedule{{ID: id, Labels: ls}})
	}
	return id
}

// Named returns the labels of a metric.
func Named(name string, more ...metric.Label) metric.Labels {
	ls, err := metric.NewLabels(append(more, metric.Label{Name: metric.NameLabel, Value: name})...)
	if err != nil {
		panic(err)
	}
	return ls
}

// Put stores samples in one flush: a chunk for each block and slice.
func (w *World) Put(samples ...metric.Sample) {
	w.t.Helper()
	require.NoError(w.t, w.Store.Write(w.t.Context(), w.Flush(&storage.Batch{}, samples)))
}

// Flush adds to a batch what one flush of ingest would write.
func (w *World) Flush(b *storage.Batch, samples []metric.Sample) *storage.Batch {
	type place struct {
		sliceMs int64
		block   metric.ScheduleID
	}
	settings := w.Store.Settings()
	byPlace := make(map[place][]metric.Sample)
	for _, s := range samples {
		sliceMs := settings.Ladder.SliceAt(metric.Raw, s.TimeMs).StartMs
		p := place{sliceMs, settings.Epochs.BlockAt(s.Schedule, sliceMs).Start}
		byPlace[p] = append(byPlace[p], s)
	}
	for p, all := range byPlace {
		slices.SortStableFunc(all, metric.CompareSamples)
		key := storage.SliceKey{Bucket: metric.Raw, StartMs: p.sliceMs}
		b.Open = append(b.Open, key)
		b.Raw = append(b.Raw, storage.RawChunk{
			Group:   blocks.BlockAt(p.block, settings.GroupSize).Start,
			SliceMs: p.sliceMs,
			Chunk:   storage.Chunk{ID: w.Chunks.Next(max(0, p.sliceMs)), Data: blocks.AppendSamples(nil, all)},
		})
	}
	return b
}

// Grind writes the rows of a level that start in [fromMs, toMs), computed from the samples of each
// series. It completes the slices that the rows cover.
func (w *World) Grind(level metric.Bucket, fromMs, toMs int64, samples map[metric.ScheduleID][]metric.Sample) {
	w.t.Helper()
	width := w.Querier.Ladder().WidthMs(level)
	for t := fromMs; t < toMs; t += width {
		var rows []metric.RollupRow
		for id, all := range samples {
			lo, _ := slices.BinarySearchFunc(all, t, func(s metric.Sample, t int64) int { return cmp.Compare(s.TimeMs, t) })
			hi, _ := slices.BinarySearchFunc(all, t+width, func(s metric.Sample, t int64) int { return cmp.Compare(s.TimeMs, t) })
			if r, ok := RollupOf(all[lo:hi]); ok || r.NonFinite {
				rows = append(rows, metric.RollupRow{Schedule: id, TimeMs: t, Rollup: r})
			}
		}
		slices.SortFunc(rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
		require.NoError(w.t, w.Store.WriteRollups(w.t.Context(), 0, level, rows))
		if level < w.Querier.Ladder().Top() {
			into := storage.SliceKey{Bucket: level, StartMs: w.Querier.Ladder().SliceAt(level, t).StartMs}
			require.NoError(w.t, w.Store.Write(w.t.Context(), &storage.Batch{Open: []storage.SliceKey{into}}))
		}
		require.NoError(w.t, w.Store.CompleteSlice(w.t.Context(), storage.SliceKey{Bucket: level - 1, StartMs: t}))
	}
}

// RollupOf returns the row of samples; ok is false if no sample is finite.
func RollupOf(samples []metric.Sample) (r metric.Rollup, ok bool) {
	nonFinite := slices.ContainsFunc(samples, func(s metric.Sample) bool {
		return (math.IsNaN(s.Value) || math.IsInf(s.Value, 0)) && !metric.IsMarker(s.Value)
	})
	samples = slices.DeleteFunc(slices.Clone(samples), func(s metric.Sample) bool { return math.IsNaN(s.Value) || math.IsInf(s.Value, 0) })
	if len(samples) == 0 {
		return metric.Rollup{NonFinite: nonFinite}, false
	}
	r = metric.Rollup{
		Count: uint64(len(samples)), Min: math.Inf(1), Max: math.Inf(-1),
		First: samples[0].Value, Last: samples[len(samples)-1].Value,
		FirstMs: samples[0].TimeMs, LastMs: samples[len(samples)-1].TimeMs, NonFinite: nonFinite,
	}
	var sk sketch.Sketch
	for i, s := range samples {
		r.Sum += s.Value
		r.Min = min(r.Min, s.Value)
		r.Max = max(r.Max, s.Value)
		sk.Add(s.Value)
		if i > 0 {
			r.Increase += StepTo(samples[i-1].Value, s.Value)
		}
	}
	r.Sketch = sk.AppendEncoded(nil)
	return r, true
}

// StepTo returns the growth of a counter between two samples.
func StepTo(before, v float64) float64 {
	if v < before {
		return v
	}
	return v - before
}
