package cache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/storage"
)

// After a later slice was ground, by a clock that was ahead, blocks are not sealed: the run of that slice may have
// ground late data that the cache lacks. The same holds while nobody can say.
func TestSealBehindALaterRun(t *testing.T) {
	for name, tc := range map[string]struct {
		ahead time.Duration
		away  bool
		want  storage.MarkKind
	}{
		"none":           {0, false, storage.MarkFresh},
		"the next":       {time.Hour, false, storage.MarkOpen},
		"years later":    {5 * 365 * 24 * time.Hour, false, storage.MarkOpen},
		"out of reach":   {0, true, storage.MarkOpen},
		"the one before": {-time.Hour, false, storage.MarkFresh},
	} {
		t.Run(name, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1)}))
			if tc.ahead != 0 {
				require.NoError(t, store.BeginSlice(t.Context(), storage.SliceKey{StartMs: eleven.Add(tc.ahead).UnixMilli()}))
			}
			if tc.away {
				store.Fail("NewestBegun", blocks.Range{}, 1, storage.ErrUnavailable)
			}
			clk.Set(eleven.Add(time.Hour + time.Minute))
			require.NoError(t, w.Seal(t.Context()))
			marks := marksOf(t, store, eleven)
			require.Len(t, marks, 1)
			require.Equal(t, tc.want, marks[0].Kind)
		})
	}
}

// TestSealThatCannotAsk: a seal whose question fails leaves its blocks open and says so.
func TestSealThatCannotAsk(t *testing.T) {
	c, store, clk := setUp(4)
	w := cache.NewWriter(c)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1)}))
	clk.Set(eleven.Add(time.Hour + time.Minute))
	store.Fail("NewestBegun", blocks.Range{}, 1, storage.ErrCorrupt)
	require.ErrorIs(t, w.Seal(t.Context()), storage.ErrCorrupt)
	require.Equal(t, storage.MarkOpen, marksOf(t, store, eleven)[0].Kind)
}
