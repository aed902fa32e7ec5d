package admission_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/admission"
)

// TestRate: over any time, a client uses what its rate allows, and at most one request and one second's worth more.
func TestRate(t *testing.T) {
	now := time.Hour
	ctx := admission.WithRate(t.Context(), admission.NewRate(100, func() time.Duration { return now }))
	require.NoError(t, admission.Spend(ctx, 50))
	require.NoError(t, admission.Spend(ctx, 50))
	require.NoError(t, admission.MaySpend(ctx))
	require.NoError(t, admission.Spend(ctx, 1000)) // a request is taken as a whole
	var early *admission.RateError
	require.ErrorAs(t, admission.Spend(ctx, 1), &early)
	require.Equal(t, admission.RateError{PerSecond: 100, After: 10 * time.Second}, *early)
	require.ErrorAs(t, admission.MaySpend(ctx), &early)
	now += 10 * time.Second
	require.NoError(t, admission.MaySpend(ctx))

	began, used := now, 0
	for range 10_000 {
		now += 7 * time.Millisecond
		if admission.Spend(ctx, 30) == nil {
			used += 30
		}
	}
	allowed := 100 * (now - began).Seconds()
	require.LessOrEqual(t, float64(used), allowed+100+30)
	require.Greater(t, float64(used), allowed-30)

	require.NoError(t, admission.Spend(t.Context(), 1<<40))
	require.NoError(t, admission.MaySpend(admission.WithRate(t.Context(), nil)))
}

// TestClientsByToken: who has a token is one client from all addresses, with limits of its own, which are never more than
// a client's share.
func TestClientsByToken(t *testing.T) {
	clients := admission.NewClients(admission.Loopback())
	small := admission.OfToken("a", admission.Limits{Turns: 1, QueryBytes: 10})
	large := admission.OfToken("b", admission.Limits{Turns: 100, QueryBytes: 1000})
	ctx := admission.WithClient(t.Context(), small)
	require.Equal(t, small, clients.For(ctx, "127.0.0.1:1"))
	require.Equal(t, clients.Of("192.0.2.1:1"), clients.For(t.Context(), "192.0.2.1:2"))

	queries := admission.NewSharedBudget(100, 0)
	require.EqualValues(t, 10, queries.Share(small))
	require.EqualValues(t, 50, queries.Share(large))
	one, two, other := queries.Claim(small), queries.Claim(small), queries.Claim(large)
	require.True(t, one.Grow(6))
	require.False(t, two.Grow(6))
	require.True(t, other.Grow(50))
	require.False(t, other.Grow(1))
	forms := admission.NewBudget(100, 50)
	require.EqualValues(t, 50, forms.Share(small), "the limit is one of queries")

	turns := admission.NewTurns(admission.TurnOptions{N: 4, Name: "queries", Clients: clients})
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
		_, err := turns.Take(admission.WithClient(t.Context(), large), "127.0.0.1:1")
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
