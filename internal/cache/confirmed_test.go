package cache_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// doubting is a store that does not confirm a clock that is ahead.
type doubting struct {
	storage.Store
	until time.Time
}

func (d doubting) Confirms(_ context.Context, now clock.Reading) error {
	if now.Time().After(d.until) {
		return storage.ErrUnavailable
	}
	return nil
}

// TestIDsOfConfirmedClock: chunks, late marks and places that are refused while the clock is ahead leave no id that later
// ones ascend from.
func TestIDsOfConfirmedClock(t *testing.T) {
	_, store, clk := setUp(4)
	c := cache.New(doubting{store, eleven.Add(time.Hour)}, clk, 1, cache.DefaultTiming())
	w := cache.NewWriter(c)
	block := blocks.Range{End: 4}
	clk.Jump(3 * time.Hour)
	require.ErrorIs(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, block, 1)}), storage.ErrUnavailable)
	late := storage.Mark{TimeMs: eleven.UnixMilli(), Kind: storage.MarkLate}
	require.ErrorIs(t, c.Put(t.Context(), 0, metric.Raw, []storage.Mark{late}), storage.ErrUnavailable)
	_, err := c.Place(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)

	clk.Jump(-3 * time.Hour)
	now := clk.Now().UnixMilli()
	require.NoError(t, w.Settle(t.Context()))
	place, err := c.Place(t.Context())
	require.NoError(t, err)
	require.Equal(t, now, place.Next().TimeMs())
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, block, 1)}))
	require.NoError(t, c.Put(t.Context(), 0, metric.Raw, []storage.Mark{late}))
	n := 0
	for chunk, err := range store.RawChunks(t.Context(), block, 0, math.MaxInt64/4) {
		require.NoError(t, err)
		require.Equal(t, now, chunk.ID.TimeMs())
		n++
	}
	require.Equal(t, 1, n)
	marks := marksOf(t, store, eleven)
	require.Len(t, marks, 2)
	for _, m := range marks {
		require.Equal(t, now, m.ID.TimeMs())
	}
}
