package limits

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

// waits is a clock that records how long it was asked to sleep, and moves on by that.
type waits struct {
	*clock.Simulated
	slept time.Duration
}

func (c *waits) Sleep(ctx context.Context, d time.Duration) error {
	if d > 0 {
		c.slept += d
		c.Set(c.Now().Add(d))
	}
	return context.Cause(ctx)
}

func TestPace(t *testing.T) {
	clk := &waits{Simulated: clock.NewSimulated(time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC))}
	p := NewPace(clk, 100)
	for range 10 {
		require.NoError(t, p.Wait(t.Context(), 50))
	}
	require.Equal(t, 4500*time.Millisecond, clk.slept)
	clk.Set(clk.Now().Add(time.Hour))
	before := clk.slept
	require.NoError(t, p.Wait(t.Context(), 50))
	require.NoError(t, p.Wait(t.Context(), 50))
	require.Equal(t, before+500*time.Millisecond, clk.slept, "an idle hour is not made up for")
	for _, by := range []time.Duration{-time.Hour, 2 * time.Hour} {
		clk.Jump(by)
		require.NoError(t, p.Wait(t.Context(), 50))
	}
	require.Equal(t, before+1500*time.Millisecond, clk.slept, "whatever the clock is set to")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Wait(ctx, 1), context.Canceled)
}
