package promquery

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
)

// TestQueriesShareMemory: what all queries hold together, with their results, is bounded, and is given back.
func TestQueriesShareMemory(t *testing.T) {
	const mb = 1 << 20
	w := newWorld(t, "model", retention, now)
	w.wide("m", 40) // 10 MB
	var samples []metric.Sample
	for i := range 100 {
		samples = append(samples, metric.Sample{Schedule: w.ID(querytest.Named("n", metric.Label{Name: "i", Value: fmt.Sprint(i)})), TimeMs: now - second, Value: 1})
	}
	w.Put(samples...)
	clients := admission.NewClients(nil)
	one, other := clients.Of("192.0.2.1:1"), clients.Of("192.0.2.2:1")
	memory := admission.NewBudget(48*mb, 24*mb)
	engine, queryable := New(w.Querier, Options{Memory: memory})
	exec := func(of admission.Client, expr string) (promql.Query, error) {
		ctx := admission.WithClient(t.Context(), of)
		q, err := engine.NewRangeQuery(ctx, queryable, nil, expr, time.UnixMilli(now), time.UnixMilli(now+4*minute), time.Second)
		require.NoError(t, err)
		return q, q.Exec(ctx).Err
	}
	whole := func() {
		t.Helper()
		claim := memory.Claim(admission.Client{})
		require.True(t, claim.Grow(48*mb), "all has been given back")
		claim.Release()
	}

	// A result is held until its query is closed.
	first, err := exec(one, "m")
	require.NoError(t, err)
	second, err := exec(one, "m")
	require.NoError(t, err)
	third, err := exec(one, "m")
	require.ErrorIs(t, err, admission.ErrNoRoom, "one client holds half")
	third.Close()
	third, err = exec(other, "m")
	require.NoError(t, err)
	fourth, err := exec(other, "m")
	require.NoError(t, err)
	none, err := exec(admission.Client{}, "m")
	require.ErrorIs(t, err, admission.ErrNoRoom)
	require.ErrorContains(t, err, "narrow the selectors")
	none.Close()
	first.Close()
	fifth, err := exec(one, "m")
	require.NoError(t, err)
	for _, q := range []promql.Query{second, third, fourth, fifth} {
		q.Close()
		q.Close()
	}
	whole()

	// A result holds less than its evaluation did.
	var small []promql.Query
	for range 10 {
		q, err := exec(one, "sum(m)")
		require.NoError(t, err)
		small = append(small, q)
	}
	for _, q := range small {
		q.Close()
	}

	// What there will never be room for is told from what there is none for now.
	alone, err := exec(one, `label_replace(m,"a","0","","") or label_replace(m,"a","1","","")`)
	require.ErrorContains(t, err, "one client may hold")
	alone.Close()
	whole()

	// Points count, also those that only the engine holds.
	engine, queryable = New(w.Querier, Options{Memory: admission.NewSharedBudget(mb, mb)})
	for expr, fits := range map[string]bool{`n{i=~"1.?"}`: true, "n{i!~'1.?'} * 2": false, "n == 1": false} {
		q, err := engine.NewRangeQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now), time.UnixMilli(now+4*minute), 100*time.Millisecond)
		require.NoError(t, err)
		err = q.Exec(t.Context()).Err
		if fits {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "larger step", expr)
		}
		q.Close()
	}
}

// TestQueriesClaimBeforeTheyAreEvaluated: a query without series takes memory as well, for its steps and for those of
// its subqueries.
func TestQueriesClaimBeforeTheyAreEvaluated(t *testing.T) {
	const mb = 1 << 20
	w := newWorld(t, "model", retention, now)
	memory := admission.NewBudget(48*mb, 24*mb)
	engine, queryable := New(w.Querier, Options{Memory: memory})
	begin := func(expr string) promql.Query {
		q, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
		require.NoError(t, err)
		return q
	}
	free := func(bytes int64) bool {
		claim := memory.Claim(admission.Client{})
		defer claim.Release()
		return claim.Grow(bytes)
	}
	for _, expr := range []string{"max_over_time(vector(1)[600s:1ms])", "max_over_time(vector(time())[600s:1ms])", "max_over_time(none[600s:1ms]) or max_over_time(none[1200s:1ms])"} {
		first := begin(expr)
		require.False(t, free(40*mb), "claimed before it is evaluated: %s", expr)
		second, third := begin(expr), begin(expr)
		for _, q := range []promql.Query{second, third} {
			q.Close()
		}
		require.NoError(t, first.Exec(t.Context()).Err, expr)
		first.Close()
		require.True(t, free(40*mb), expr)
	}
	held := memory.Claim(admission.Client{})
	require.True(t, held.Grow(40*mb))
	q := begin("max_over_time(vector(time())[800s:1ms])")
	require.ErrorIs(t, q.Exec(t.Context()).Err, admission.ErrNoRoom)
	q.Close()
	held.Release()
	q = begin("max_over_time(vector(time())[2000s:1ms])")
	require.ErrorContains(t, q.Exec(t.Context()).Err, "one client may hold")
	q.Close()
	require.True(t, free(40*mb))

	// What the engine does not count has no part in the limit at which it ends a query.
	engine, queryable = New(w.Querier, Options{Memory: memory, MaxSamples: 1_200_000})
	q = begin("max_over_time(vector(time())[1000s:1ms])")
	require.False(t, free(20*mb))
	q.Close()
}

// TestListsShareMemory: a list of series has its part of the memory until it is closed.
func TestListsShareMemory(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	for i := range 10_000 {
		w.ID(querytest.Named("m", metric.Label{Name: "i", Value: fmt.Sprint(i)}))
	}
	memory := admission.NewBudget(4<<20, 2<<20)
	_, queryable := New(w.Querier, Options{Memory: memory})
	list := func(ctx context.Context) (promstorage.Querier, error) {
		q, err := queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		set := q.Select(ctx, true, &promstorage.SelectHints{Start: math.MinInt64, End: now, Func: "series"}, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"))
		return q, set.Err()
	}
	first, err := list(t.Context())
	require.NoError(t, err)
	second, err := list(t.Context())
	require.NoError(t, err)
	third, err := list(t.Context())
	require.ErrorIs(t, err, admission.ErrNoRoom)
	require.NoError(t, third.Close())
	require.NoError(t, first.Close())
	third, err = list(t.Context())
	require.NoError(t, err)
	require.NoError(t, second.Close())
	require.NoError(t, third.Close())
	claim := memory.Claim(admission.Client{})
	require.True(t, claim.Grow(4<<20))
}
