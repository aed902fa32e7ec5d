package cache_test

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var eleven = time.Date(2025, time.November, 21, 11, 0, 0, 0, time.UTC)

func settings(blockSize int) storage.Settings {
	return storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: blockSize, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: blockSize}},
	}
}

// setUp returns a protocol at 11:59 over an index of one shard.
func setUp(blockSize int) (*cache.Cache, *storagetest.Faulty, *clock.Simulated) {
	clk := clock.NewSimulated(eleven.Add(59 * time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(settings(blockSize), nil, clk))
	return cache.New(store, clk, 1, cache.DefaultTiming()), store, clk
}

// group returns a group with one sample of the hour for each of n schedules of a block.
func group(hour time.Time, block blocks.Range, n int) cache.BlockSamples {
	g := cache.BlockSamples{Slice: metric.DefaultLadder().SliceAt(metric.Raw, hour.UnixMilli()), Block: block}
	for i := range n {
		g.Samples = append(g.Samples, metric.Sample{Schedule: block.Start + metric.ScheduleID(i), TimeMs: hour.UnixMilli(), Value: 1})
	}
	return g
}

func marksOf(t *testing.T, s storage.Store, hour time.Time) []storage.Mark {
	t.Helper()
	var out []storage.Mark
	for m, err := range s.Marks(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: hour.UnixMilli()}}, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		out = append(out, m)
	}
	return out
}

var errBoom = errors.New("boom")

// TestSealOverTheRunIsTakenBack: a seal that ends only when the run may have deleted the mark
// leaves no mark where no run looks again.
func TestSealOverTheRunIsTakenBack(t *testing.T) {
	c, store, clk := setUp(4)
	w := cache.NewWriter(c)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(4, 4), 1)}))
	noon := eleven.Add(time.Hour)
	clk.Set(noon.Add(time.Minute))
	store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
		clk.Set(noon.Add(2 * time.Minute))
		return store.BeginSlice(t.Context(), storage.SliceKey{StartMs: eleven.UnixMilli()})
	}})
	require.NoError(t, w.Seal(t.Context()))
	require.Empty(t, marksOf(t, store, eleven))
	marks := marksOf(t, store, noon)
	require.Len(t, marks, 1)
	require.Equal(t, storage.MarkLate, marks[0].Kind)
	require.Equal(t, eleven.UnixMilli(), marks[0].TimeMs)
}

// TestLateSchedulesAreForgotten is invariant 7: ingest's memory of late marks is bounded, and it
// marks again what it has forgotten.
func TestLateSchedulesAreForgotten(t *testing.T) {
	const block, bound = 32, 1 << 18
	c, store, _ := setUp(block)
	w := cache.NewWriter(c)
	var groups []cache.BlockSamples
	for start := 0; len(groups)*(block+1) <= bound+block; start += block {
		groups = append(groups, group(eleven.Add(-time.Hour), blocks.BlockAt(metric.ScheduleID(start), block), block))
	}
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.Len(t, marksOf(t, store, eleven), 1, "it is remembered")
	require.NoError(t, w.Flush(t.Context(), groups[1:]))
	require.Len(t, marksOf(t, store, eleven), len(groups))
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.Len(t, marksOf(t, store, eleven), len(groups)+1, "there were too many others since")
}

// TestLateMarksOverARunAreKept: a run of the current slice begins, by a clock that is ahead, and deletes the marks that
// are there. However many late marks there are from then on, none is forgotten before it is put elsewhere.
func TestLateMarksOverARunAreKept(t *testing.T) {
	const block, bound = 32, 1 << 18
	c, store, _ := setUp(block)
	w := cache.NewWriter(c)
	var groups []cache.BlockSamples
	for start := 0; len(groups)*(block+1) <= bound+block; start += block {
		groups = append(groups, group(eleven.Add(-time.Hour), blocks.BlockAt(metric.ScheduleID(start), block), block))
	}
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.NoError(t, store.BeginSlice(t.Context(), storage.SliceKey{StartMs: eleven.UnixMilli()}))
	require.NoError(t, grindEleven(t, store))
	require.NoError(t, w.Flush(t.Context(), groups[1:]))
	require.NoError(t, w.Flush(t.Context(), groups[2:3]))
	require.NoError(t, w.Settle(t.Context()))
	starts := make(map[metric.ScheduleID]bool)
	for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
		starts[m.Start] = true
	}
	require.Len(t, starts, len(groups))
}

// TestLateMarksAreOnePerBlock: however the series of a block come late, the block costs one mark in
// the index of the current slice. An import brings the series one after the other.
func TestLateMarksAreOnePerBlock(t *testing.T) {
	const size = 128
	for _, series := range []int{3, 32, 33, size} {
		t.Run(strconv.Itoa(series), func(t *testing.T) {
			c, store, clk := setUp(size)
			w := cache.NewWriter(c)
			hour := eleven.Add(-7 * 24 * time.Hour)
			late := func(id int) []cache.BlockSamples {
				g := group(hour, blocks.BlockAt(0, size), 1)
				g.Samples[0].Schedule = metric.ScheduleID(id)
				return []cache.BlockSamples{g}
			}
			for id := range series {
				require.NoError(t, w.Flush(t.Context(), late(series-1-id)))
			}
			marks := marksOf(t, store, eleven)
			require.Len(t, marks, 1)
			work := cache.Work{Marks: marks}
			require.True(t, work.Late())
			require.Equal(t, series > 32, work.Whole())
			if !work.Whole() {
				require.Len(t, work.Schedules(), series)
			}
			n := store.Count("Write")
			store.Forget()
			require.NoError(t, w.Flush(t.Context(), late(1)))
			require.Equal(t, []storage.PlacedMark(nil), writtenMarks(store), "what is marked is not marked again")
			require.LessOrEqual(t, n, series)

			// In the next slice a new mark begins.
			clk.Set(clk.Now().Add(time.Hour))
			require.NoError(t, w.Flush(t.Context(), late(2)))
			marks = marksOf(t, store, eleven.Add(time.Hour))
			require.Len(t, marks, 1)
			require.Equal(t, []metric.ScheduleID{2}, marks[0].Schedules)
		})
	}
}

// TestLateSeriesOfOneFlush: a late mark of one flush names its series, unless these are too many: then it stands for their block.
func TestLateSeriesOfOneFlush(t *testing.T) {
	for _, series := range []int{32, 33} {
		c, store, _ := setUp(128)
		hour := eleven.Add(-7 * 24 * time.Hour)
		require.NoError(t, cache.NewWriter(c).Flush(t.Context(), []cache.BlockSamples{group(hour, blocks.BlockAt(0, 128), series)}))
		work := cache.Work{Marks: marksOf(t, store, eleven)}
		require.Equal(t, series > 32, work.Whole())
		if !work.Whole() {
			require.Len(t, work.Schedules(), series)
		}
	}
}

func writtenMarks(s *storagetest.Faulty) []storage.PlacedMark {
	var out []storage.PlacedMark
	for _, step := range s.Log() {
		if b, ok := step.Detail.(*storage.Batch); ok {
			out = append(out, b.Marks...)
		}
	}
	return out
}

// TestFloodOfMarksIsReadInParts is invariant 7: a run collects a flood of marks for one block part
// by part.
func TestFloodOfMarksIsReadInParts(t *testing.T) {
	const flood, bound = 10_000, 4096
	c, store, _ := setUp(4)
	b := &storage.Batch{}
	ids := blocks.NewIDs(1)
	for range flood {
		b.Marks = append(b.Marks, storage.PlacedMark{
			Partition: storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: eleven.UnixMilli()}},
			Mark:      storage.Mark{Start: 4, TimeMs: eleven.UnixMilli(), Kind: storage.MarkLate, ID: ids.Next(eleven.UnixMilli())},
		})
	}
	require.NoError(t, store.Write(t.Context(), b))
	n := 0
	for w, err := range c.Read(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: eleven.UnixMilli()}}) {
		require.NoError(t, err)
		require.LessOrEqual(t, len(w.Marks), bound)
		n += len(w.Marks)
	}
	require.Equal(t, flood, n)
}

// TestRetryKeepsItsMarks: however often a block is written in vain, though its marks are there, it has one mark in
// each index.
func TestRetryKeepsItsMarks(t *testing.T) {
	const attempts = 20
	noon := eleven.Add(time.Hour)
	for name, hour := range map[string]time.Time{"on time": eleven, "late": eleven.Add(-2 * 24 * time.Hour)} {
		t.Run(name, func(t *testing.T) {
			proto, store, clk := setUp(4)
			w := cache.NewWriter(proto)
			g := group(hour, blocks.BlockAt(4, 4), 1)
			store.Land(1+2*attempts, errBoom)
			require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{g}), errBoom)
			for range attempts {
				w.Hurry()
				require.ErrorIs(t, w.Settle(t.Context()), errBoom)
			}
			require.Len(t, marksOf(t, store, eleven), 1)
			clk.Set(noon.Add(2 * time.Minute))
			for range attempts {
				w.Hurry()
				require.ErrorIs(t, w.Settle(t.Context()), errBoom)
			}
			require.Len(t, marksOf(t, store, noon), 1)
			w.Hurry()
			require.NoError(t, w.Settle(t.Context()))
			require.Len(t, marksOf(t, store, noon), 1)
			require.False(t, w.Owes())
		})
	}
}

// TestRetriesAreBounded is invariant 7: the chunks that wait to be written again are bounded in
// bytes, however large the chunks are. All of them are stored in the end.
func TestRetriesAreBounded(t *testing.T) {
	const samples, bound = 60_000, 64 << 20
	c, store, _ := setUp(4)
	w := cache.NewWriter(c)
	g := group(eleven, blocks.BlockAt(0, 4), 1)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range samples - 1 {
		g.Samples = append(g.Samples, metric.Sample{TimeMs: g.Slice.StartMs + int64(i) + 1, Value: rng.Float64()})
	}
	store.Fail("Write", blocks.Range{}, -1, storage.ErrTimeout)
	n, most := 0, 0
	for wrote := true; wrote; n++ {
		g.Block = blocks.BlockAt(metric.ScheduleID(4*n), 4)
		for i := range g.Samples {
			g.Samples[i].Schedule = g.Block.Start
		}
		store.Forget()
		require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{g}), storage.ErrTimeout)
		if n%10 == 0 {
			require.ErrorIs(t, w.Settle(t.Context()), storage.ErrTimeout)
		}
		wrote = false
		for _, s := range store.Log() {
			b, _ := s.Detail.(*storage.Batch)
			if b == nil {
				continue
			}
			held := 0
			for _, c := range b.Raw {
				held += len(c.Data)
				wrote = wrote || c.Group == g.Block.Start
			}
			most = max(most, held)
		}
	}
	require.Greater(t, n, 10)
	require.Greater(t, most, bound/2)
	require.Less(t, most, bound+bound/10)
	store.Heal()
	require.NoError(t, w.Settle(t.Context()))
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{g}))
	for i := range n {
		require.Equal(t, 1, rawOf(t, store, blocks.BlockAt(metric.ScheduleID(4*i), 4), eleven))
	}
}
