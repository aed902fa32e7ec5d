package limits_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
)

// TestRate: over any time, a client uses what its rate allows, and at most one request and one second's worth more.
func TestRate(t *testing.T) {
	now := time.Hour
	ctx := limits.WithRate(t.Context(), limits.NewRate(100, func() time.Duration { return now }))
	require.NoError(t, limits.Spend(ctx, 50))
	require.NoError(t, limits.Spend(ctx, 50))
	require.NoError(t, limits.MaySpend(ctx))
	require.NoError(t, limits.Spend(ctx, 1000)) // a request is taken as a whole
	var early *limits.RateError
	require.ErrorAs(t, limits.Spend(ctx, 1), &early)
	require.Equal(t, limits.RateError{PerSecond: 100, After: 10 * time.Second}, *early)
	require.ErrorAs(t, limits.MaySpend(ctx), &early)
	now += 10 * time.Second
	require.NoError(t, limits.MaySpend(ctx))

	began, used := now, 0
	for range 10_000 {
		now += 7 * time.Millisecond
		if limits.Spend(ctx, 30) == nil {
			used += 30
		}
	}
	allowed := 100 * (now - began).Seconds()
	require.LessOrEqual(t, float64(used), allowed+100+30)
	require.Greater(t, float64(used), allowed-30)

	require.NoError(t, limits.Spend(t.Context(), 1<<40))
	require.NoError(t, limits.MaySpend(limits.WithRate(t.Context(), nil)))
}

// TestClientsByToken: who has a token is one client from all addresses, with limits of its own, which are never more than
// a client's share.
func TestClientsByToken(t *testing.T) {
	clients := limits.NewClients(limits.Loopback())
	small := limits.TokenClient("a", 1)
	large := limits.TokenClient("b", 100)
	ctx := limits.WithClient(t.Context(), small)
	require.Equal(t, small, clients.For(ctx, "127.0.0.1:1"))
	require.Equal(t, clients.ByAddress("192.0.2.1:1"), clients.For(t.Context(), "192.0.2.1:2"))

	turns := limits.NewTurns(limits.TurnOptions{N: 4, Name: "queries", Clients: clients})
	give, err := turns.Take(ctx, "127.0.0.1:1")
	require.NoError(t, err)
	defer give()
	// A second one of the token waits, from wherever it comes, and those of others go ahead.
	waiting := make(chan func())
	go func() {
		give, err := turns.Take(ctx, "192.0.2.1:1")
		if err == nil {
			waiting <- give
		}
		close(waiting)
	}()
	for range 2 { // these end with the turns
		_, err := turns.Take(limits.WithClient(t.Context(), large), "127.0.0.1:1")
		require.NoError(t, err)
	}
	select {
	case <-waiting:
		t.Fatal("the token has two turns")
	default:
	}
	give()
	(<-waiting)()
}
