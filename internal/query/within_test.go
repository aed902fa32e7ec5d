package query_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// TestBoundIndex: whatever a bound request asks, the answer is that of a store which has only the series of the bound.
func TestBoundIndex(t *testing.T) {
	whole, part := newWorld(t, querytest.Settings(), nil), newWorld(t, querytest.Settings(), nil)
	b, err := bound.Parse([]string{`{team="t1"}`, `{team=~"t[2-3]",env!="e0"}`}, 0)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(5, 6))
	var all, within []metric.ScheduleID
	for id := range metric.ScheduleID(2000) {
		var ls []metric.Label
		for _, name := range []string{"team", "env", "host", metric.SourceLabel} {
			if rng.IntN(5) > 0 {
				ls = append(ls, metric.Label{Name: name, Value: fmt.Sprint(name[:1], rng.IntN(6))})
			}
		}
		s := []storage.Schedule{{ID: id, Labels: querytest.Named(fmt.Sprint("m", rng.IntN(10)), ls...)}}
		whole.index.Add(s)
		all = append(all, id)
		if b.Has(s[0].Labels.Get) {
			part.index.Add(s)
			within = append(within, id)
		}
	}
	require.NotEmpty(t, within)
	require.Less(t, len(within), len(all)/2)
	ctx := bound.WithBound(t.Context(), b)
	for _, texts := range [][]string{
		{`{__name__!=""}`}, {`m1`}, {`{team="t0"}`}, {`{team!="t1",__name__=~"m."}`}, {`m1`, `{team="t1"}`, `{env=~"e[0-3]"}`}, {`{team=~"t.*",host=""}`}, nil,
	} {
		var sels []query.Selector
		if texts != nil {
			sels = parsed(t, texts...)
		}
		same := func(what string, ask func(ctx context.Context, w *world) (any, error)) {
			t.Helper()
			want, err := ask(t.Context(), part)
			require.NoError(t, err)
			got, err := ask(ctx, whole)
			require.NoError(t, err)
			require.Equal(t, fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", got), "%s of %v", what, texts) // no series may be nil
		}
		same("series", func(ctx context.Context, w *world) (any, error) { return w.index.Select(ctx, sels...) })
		same("names", func(ctx context.Context, w *world) (any, error) { return w.index.LabelNames(ctx, sels...) })
		same("values", func(ctx context.Context, w *world) (any, error) { return w.index.LabelValues(ctx, "team", sels...) })
		same("numbers", func(ctx context.Context, w *world) (any, error) {
			c, err := w.q.Cardinality(ctx, 100, "", new(query.Warnings), sels...)
			c.ByBytes = nil // the memory of what others have, too
			for i := range c.ByValues {
				c.ByValues[i].Bytes = 0
			}
			return c, err
		})
		same("days", func(ctx context.Context, w *world) (any, error) {
			days, _, err := w.q.Days(ctx, 3, new(query.Warnings), sels...)
			return days, err
		})
		same("groups", func(ctx context.Context, w *world) (any, error) {
			groups, err := w.q.Groups(ctx, sels...)
			var ids []metric.ScheduleID
			for _, g := range groups {
				ids = append(ids, g.IDs()...)
			}
			return ids, err
		})
	}
	for name, ask := range map[string]func(ctx context.Context, w *world) (any, error){
		"number": func(ctx context.Context, w *world) (any, error) { return w.index.Within(ctx) },
		"values": func(ctx context.Context, w *world) (any, error) {
			out := map[string]int{}
			return out, w.q.EachValue(ctx, "team", func(value string, n int) { out[value] = n })
		},
		"sources": func(ctx context.Context, w *world) (any, error) {
			out := map[query.SourceName]int{}
			return out, w.q.EachSource(ctx, metric.SourceLabels{"host"}, func(name query.SourceName, n int) { out[name] = n })
		},
		"numbers by ids": func(ctx context.Context, w *world) (any, error) {
			ids := all
			if w == part {
				ids = within
			}
			c, err := w.q.CardinalityOf(ctx, 100, ids)
			return c.Series, err
		},
	} {
		want, err := ask(t.Context(), part)
		require.NoError(t, err)
		got, err := ask(ctx, whole)
		require.NoError(t, err)
		require.Equal(t, want, got, name)
	}
	require.Zero(t, whole.q.NewestMs(ctx))
}
