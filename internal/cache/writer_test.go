package cache_test

import (
	"errors"
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

// setUp is a protocol at 11:59 on an index of one shard.
func setUp(blockSize int) (*cache.Cache, *storagetest.Faulty, *clock.Simulated) {
	clk := clock.NewSimulated(eleven.Add(59 * time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: blockSize, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: blockSize}},
	}, nil, clk))
	return cache.New(store, clk, 1, cache.DefaultTiming()), store, clk
}

// group is a sample of the hour for each of n schedules of a block.
func group(hour time.Time, block blocks.Range, n int) cache.Group {
	g := cache.Group{Slice: metric.DefaultLadder().SliceAt(metric.Raw, hour.UnixMilli()), Block: block}
	for i := range n {
		g.Samples = append(g.Samples, metric.Sample{Schedule: block.Start + metric.ScheduleID(i), TimeMs: hour.UnixMilli(), Value: 1})
	}
	return g
}

func marksOf(t *testing.T, s storage.Store, hour time.Time) []storage.Mark {
	t.Helper()
	var out []storage.Mark
	for m, err := range s.Marks(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: hour.UnixMilli()}}) {
		require.NoError(t, err)
		out = append(out, m)
	}
	return out
}

var errBoom = errors.New("boom")

// failOverTheRun has a flush of the block at 4 fail when the run of its slice may have begun.
func failOverTheRun(t *testing.T) (*cache.Writer, *storagetest.Faulty) {
	t.Helper()
	c, store, clk := setUp(4)
	w := cache.NewWriter(c)
	store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
		clk.Set(eleven.Add(time.Hour + 2*time.Minute))
		return errBoom
	}})
	require.ErrorIs(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(4, 4), 1)}), errBoom)
	return w, store
}

// Nobody knows what a flush left that failed when its slice's run may have begun: the next one marks its
// blocks, though the samples do not come again, so that rows and raw samples agree.
func TestFailureOverTheRunIsMarked(t *testing.T) {
	w, store := failOverTheRun(t)

	noon := eleven.Add(time.Hour)
	require.NoError(t, w.Flush(t.Context(), []cache.Group{group(noon, blocks.Of(0, 4), 1)}))
	marks := marksOf(t, store, noon)
	require.Len(t, marks, 2)
	late := marks[1]
	require.Equal(t, storage.Mark{Start: 4, TimeMs: eleven.UnixMilli(), Kind: storage.MarkLate, ID: late.ID, DueMs: noon.Add(time.Hour).UnixMilli()}, late)

	require.NoError(t, w.Flush(t.Context(), []cache.Group{group(noon, blocks.Of(0, 4), 1)}))
	require.Len(t, marksOf(t, store, noon), 2, "once")
	require.Empty(t, marksOf(t, store, eleven), "nobody may look there again")
}

// The same where no flush comes after it.
func TestFailureOverTheRunIsSettled(t *testing.T) {
	w, store := failOverTheRun(t)
	store.Fail("Write", blocks.Range{}, 1, errBoom)
	require.ErrorIs(t, w.Settle(t.Context()), errBoom)

	require.NoError(t, w.Settle(t.Context()))
	require.NoError(t, w.Settle(t.Context()))
	marks := marksOf(t, store, eleven.Add(time.Hour))
	require.Len(t, marks, 1)
	require.Equal(t, eleven.UnixMilli(), marks[0].TimeMs)
	require.Empty(t, marksOf(t, store, eleven), "nobody may look there again")
}

// A flush that was so slow that a run may have begun takes its mark back, or if it cannot the next flush does.
func TestFailureToTakeBackIsMadeGood(t *testing.T) {
	for _, op := range []string{"Write", "DeleteMarks"} {
		t.Run(op, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
				clk.Set(eleven.Add(time.Hour + 2*time.Minute))
				store.Add(storagetest.Rule{Op: op, Times: 1, Before: func() error { return errBoom }})
				return nil
			}})
			g := []cache.Group{group(eleven, blocks.Of(4, 4), 1)}
			require.ErrorIs(t, w.Flush(t.Context(), g), errBoom)
			require.Len(t, marksOf(t, store, eleven), 1)
			require.NoError(t, w.Flush(t.Context(), g))
			require.Empty(t, marksOf(t, store, eleven))
			require.NotEmpty(t, marksOf(t, store, eleven.Add(time.Hour)))
		})
	}
}

// A seal that is done only when the run may have deleted the mark leaves none where nobody looks again.
func TestSealOverTheRunIsTakenBack(t *testing.T) {
	c, store, clk := setUp(4)
	w := cache.NewWriter(c)
	require.NoError(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(4, 4), 1)}))
	noon := eleven.Add(time.Hour)
	clk.Set(noon.Add(time.Minute))
	store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
		clk.Set(noon.Add(2 * time.Minute))
		return nil
	}})
	require.NoError(t, w.Seal(t.Context()))
	require.Empty(t, marksOf(t, store, eleven))
	marks := marksOf(t, store, noon)
	require.Len(t, marks, 1)
	require.Equal(t, storage.MarkLate, marks[0].Kind)
	require.Equal(t, eleven.UnixMilli(), marks[0].TimeMs)
}

// Invariant 7: what ingest remembers of late schedules is bounded, and what it has forgotten it marks again.
func TestLateSchedulesAreForgotten(t *testing.T) {
	const block, bound = blocks.MaxBlockSize, 1 << 18
	c, store, _ := setUp(block)
	w := cache.NewWriter(c)
	var groups []cache.Group
	for start := 0; start <= bound; start += block {
		groups = append(groups, group(eleven.Add(-time.Hour), blocks.Of(metric.ScheduleID(start), block), block))
	}
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.Len(t, marksOf(t, store, eleven), 1, "it is remembered")
	require.NoError(t, w.Flush(t.Context(), groups[1:]))
	require.Len(t, marksOf(t, store, eleven), len(groups))
	require.NoError(t, w.Flush(t.Context(), groups[:1]))
	require.Len(t, marksOf(t, store, eleven), len(groups)+1, "there were too many others since")
}

// Invariant 7: of a flood of marks for one block a run gathers a part at a time.
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
