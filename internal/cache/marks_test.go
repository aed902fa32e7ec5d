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
	store := storagetest.NewFaulty(storagetest.NewModel(settings(4), nil, clk))
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
		for m, err := range store.Marks(t.Context(), storage.IndexPartition{SliceKey: k}, storage.MarkKey{}, 0) {
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
	store := storagetest.NewFaulty(storagetest.NewModel(settings(4), nil, clk))
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
