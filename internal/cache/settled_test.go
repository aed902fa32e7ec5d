package cache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func idsOf(t *testing.T, s storage.Store, hour time.Time) (out []blocks.ID) {
	t.Helper()
	for c, err := range s.RawChunks(t.Context(), blocks.BlockAt(0, 4), hour.UnixMilli(), hour.UnixMilli()+1) {
		require.NoError(t, err)
		out = append(out, c.ID)
	}
	return out
}

// TestPlaceThatHasPassed: chunks of an old place would come before what has been packed since, so they are refused before they
// are written. If the write itself takes that long, it fails.
func TestPlaceThatHasPassed(t *testing.T) {
	samples := []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 2)}
	for during, want := range map[bool]int{false: 0, true: 1} {
		c, store, clk := setUp(4)
		clk.Set(eleven.Add(30 * time.Minute))
		w := cache.NewWriter(c)
		at, err := c.Place(t.Context())
		require.NoError(t, err)
		pass := func() error {
			clk.Set(clk.Now().Add(31 * time.Second))
			return nil
		}
		if during {
			store.Add(storagetest.Rule{Op: "Write", Times: 1, After: pass})
		} else {
			require.NoError(t, pass())
		}
		require.ErrorIs(t, w.FlushAt(t.Context(), samples, at), blocks.ErrStale)
		require.Len(t, idsOf(t, store, eleven), want)
		again, err := c.Place(t.Context())
		require.NoError(t, err)
		require.NoError(t, w.FlushAt(t.Context(), samples, again))
	}
}

// TestSlowFlush: of a flush that took so long that another process may have packed chunks with greater ids, the samples are
// written again with new ids. A store that only one process writes to has no such chunks.
func TestSlowFlush(t *testing.T) {
	for several, want := range map[bool]int{false: 1, true: 2} {
		clk := clock.NewSimulated(eleven.Add(30 * time.Minute))
		var st storage.Store = storagetest.NewModel(settings(4), nil, clk)
		if several {
			st = storagetest.NewLWWModel(settings(4), nil, clk)
		}
		store := storagetest.NewFaulty(st)
		w := cache.NewWriter(cache.New(store, clk, 1, cache.DefaultTiming()))
		began := clk.Now().UnixMilli()
		store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error {
			clk.Set(clk.Now().Add(31 * time.Second))
			return nil
		}})
		require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 2)}))
		ids := idsOf(t, store, eleven)
		require.Len(t, ids, want)
		if several {
			require.Greater(t, ids[1].TimeMs()-began, int64(30_000))
		}
	}
}
