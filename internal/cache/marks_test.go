package cache_test

import (
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

// TestPutTakesBack: a mark that is so slow that its slice closes meanwhile goes into the next
// slice, and leaves nothing in a slice that may be complete.
func TestPutTakesBack(t *testing.T) {
	noon := time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(noon.Add(30 * time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk))
	c := cache.New(store, clk, 1, cache.DefaultTiming())
	slow := 2
	store.Add(storagetest.Rule{Op: "Write", Times: slow, After: func() error {
		clk.Set(clk.Now().Add(time.Hour))
		return nil
	}})
	late := storage.Mark{Start: 4, TimeMs: noon.Add(-3 * time.Hour).UnixMilli(), Kind: storage.MarkLate}
	require.NoError(t, c.Put(t.Context(), 0, metric.Raw, []storage.Mark{late}))
	for hours := range slow + 2 {
		k := storage.SliceKey{StartMs: noon.Add(time.Duration(hours) * time.Hour).UnixMilli()}
		n := 0
		for m, err := range store.Marks(t.Context(), storage.IndexPartition{SliceKey: k}) {
			require.NoError(t, err)
			require.Equal(t, late.TimeMs, m.TimeMs)
			n++
		}
		want := 0
		if hours == slow {
			want = 1
		}
		require.Equal(t, want, n, "slice of %d h past noon", hours)
	}
}

// TestPutOverABeginning: a run of the slice begins while marks are written to it, by a clock that is ahead. The marks
// go to a slice whose run has not begun. If nobody can say whether it has, Put fails.
func TestPutOverABeginning(t *testing.T) {
	noon := time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(noon.Add(30 * time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk))
	c := cache.New(store, clk, 1, cache.DefaultTiming())
	store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
		return store.BeginSlice(t.Context(), storage.SliceKey{StartMs: noon.UnixMilli()})
	}})
	late := storage.Mark{Start: 4, TimeMs: noon.Add(-3 * time.Hour).UnixMilli(), Kind: storage.MarkLate}
	require.NoError(t, c.Put(t.Context(), 0, metric.Raw, []storage.Mark{late}))
	require.Empty(t, marksOf(t, store, noon))
	require.Len(t, marksOf(t, store, noon.Add(time.Hour)), 1)

	store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
		store.Fail("Slices", blocks.Range{}, 1, storage.ErrUnavailable)
		return nil
	}})
	require.ErrorIs(t, c.Put(t.Context(), 0, metric.Raw, []storage.Mark{late}), storage.ErrUnavailable)
}

// TestBringBack: marks ahead of the clock are copied once, and again when this process has put more
// into the same index partition. Marks for slices to come are copied when those have come.
func TestBringBack(t *testing.T) {
	noon := time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(noon.Add(30 * time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, storage.Retention{3 * 24 * time.Hour}, clk))
	c := cache.New(store, clk, 1, cache.DefaultTiming())
	late := func(start metric.ScheduleID, hoursAgo int) storage.Mark {
		return storage.Mark{Start: start, TimeMs: noon.Add(-time.Duration(hoursAgo) * time.Hour).UnixMilli(), Kind: storage.MarkLate}
	}
	put := func(marks ...storage.Mark) {
		t.Helper()
		clk.Jump(20 * time.Hour)
		require.NoError(t, c.Put(t.Context(), 0, metric.Raw, marks))
		clk.Jump(-20 * time.Hour)
	}
	ahead := storage.SliceKey{StartMs: noon.Add(20 * time.Hour).UnixMilli()}
	type place struct {
		start  metric.ScheduleID
		timeMs int64
	}
	marks := func(hour time.Time) map[place]int {
		t.Helper()
		out := make(map[place]int)
		for shard := range 2 {
			p := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: hour.UnixMilli()}, Shard: shard}
			for m, err := range store.Marks(t.Context(), p) {
				require.NoError(t, err)
				require.Equal(t, storage.MarkLate, m.Kind)
				require.Equal(t, hour.Add(time.Hour).UnixMilli(), m.DueMs)
				out[place{m.Start, m.TimeMs}]++
			}
		}
		return out
	}
	bringBack := func() {
		t.Helper()
		require.NoError(t, c.BringBack(t.Context(), ahead))
	}
	start := metric.ScheduleID(0)
	for blocks.ShardOf(start, 2) != 0 {
		start += 4
	}
	a, b, over, expired := late(start, 3), late(start+4, 3), late(start, -5), late(start, 96)
	later := noon.Add(5 * time.Hour)
	at := func(m storage.Mark) place { return place{m.Start, m.TimeMs} }
	put(a, over, expired)

	store.Fail("CheckFit", blocks.Range{}, 1, storage.ErrSettings)
	require.ErrorIs(t, c.BringBack(t.Context(), ahead), storage.ErrSettings)
	require.Empty(t, marks(noon))
	reads := 0
	store.Add(storagetest.Rule{Op: "Marks", Times: 2, Before: func() error {
		if reads++; reads == 2 {
			return storage.ErrUnavailable
		}
		return nil
	}})
	require.ErrorIs(t, c.BringBack(t.Context(), ahead), storage.ErrUnavailable, "the second shard is away")
	bringBack()
	bringBack()
	require.Equal(t, map[place]int{at(a): 1, at(expired): 1}, marks(noon))
	put(b)
	bringBack()
	bringBack()
	require.Equal(t, map[place]int{at(a): 1, at(b): 1, at(expired): 1}, marks(noon))

	// A mark that is written while the others are read is brought back the next time.
	store.Add(storagetest.Rule{Op: "Marks", Times: 1, After: func() error {
		put(a)
		return nil
	}})
	put(over)
	bringBack()
	n := marks(noon)[at(a)]
	bringBack()
	require.Greater(t, marks(noon)[at(a)], n)
	require.Equal(t, map[place]int{at(a): 2, at(b): 1, at(over): 2, at(expired): 1}, marks(noon.Add(20*time.Hour)), "nothing is deleted")

	clk.Set(later.Add(-time.Minute))
	bringBack()
	require.Empty(t, marks(later.Add(-time.Hour)))
	clk.Set(later)
	bringBack()
	bringBack()
	require.Equal(t, 2, marks(later)[at(over)])

	// A slice that is about to begin is run soon.
	clk.Set(noon.Add(19*time.Hour + 59*time.Minute))
	require.NoError(t, cache.New(store, clk, 2, cache.DefaultTiming()).BringBack(t.Context(), ahead))
	require.Empty(t, marks(noon.Add(19*time.Hour)))
}
