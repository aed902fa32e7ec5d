package promquery

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
)

// asksEnds is a context that ends when it has been asked some times whether it has.
type asksEnds struct {
	context.Context
	left int
}

func (c *asksEnds) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// joins is a label_join of labels named n0 and so on.
func joins(n int) string {
	var from []string
	for i := range n {
		from = append(from, fmt.Sprintf("%q", fmt.Sprintf("n%d", i)))
	}
	return `label_join(m, "x", ",", ` + strings.Join(from, ",") + ")"
}

// TestWeighingEndsWithTheQuery: weighing label_join looks at all series for each of its labels.
func TestWeighingEndsWithTheQuery(t *testing.T) {
	const names = 100
	w := newWorld(t, "model", retention, now)
	for i := range 1000 {
		var ls []metric.Label
		for n := i % 10; n < names; n += 10 {
			ls = append(ls, metric.Label{Name: fmt.Sprintf("n%d", n), Value: "v"})
		}
		w.ID(querytest.Named("m", append(ls, metric.Label{Name: "i", Value: fmt.Sprint(i)})...))
	}
	m := labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m")
	looked := func(ctx context.Context, work *query.Work, names int) (int, error) {
		engine, queryable := New(w.Querier, Options{})
		q, err := engine.NewInstantQuery(t.Context(), queryable, nil, joins(names), time.UnixMilli(now))
		require.NoError(t, err)
		defer q.Close()
		weigher := q.(*preparedQuery).prep.weigher
		groups, err := w.Querier.Groups(t.Context(), query.Selector{m})
		require.NoError(t, err)
		f := &found{groups: groups}
		f.series, f.scattered, err = seriesOf(t.Context(), groups, func(metric.Labels) (*labels.Labels, error) { return nil, nil })
		require.NoError(t, err)
		for matcher := range selectorsOf(q) {
			weigher.add(ctx, work, []*labels.Matcher{matcher}, f)
		}
		err = weigher.weigh()
		return len(f.labelled), err
	}
	n, err := looked(t.Context(), new(query.Work), names)
	require.NoError(t, err)
	require.Equal(t, names, n)

	n, err = looked(&asksEnds{t.Context(), names / 2}, new(query.Work), names)
	require.ErrorIs(t, err, context.Canceled)
	require.Less(t, n, names/2)

	// What nobody has is not looked at.
	n, err = looked(t.Context(), new(query.Work), 2000)
	require.NoError(t, err)
	require.Equal(t, names, n)

	// It counts with what the selectors look at.
	work := new(query.Work)
	for err == nil {
		err = work.Add(t.Context(), 1_000_000)
	}
	var bad *query.RequestError
	n, err = looked(t.Context(), work, names)
	require.ErrorAs(t, err, &bad)
	require.Zero(t, n)
}

// selectorsOf yields the first matchers of a query's selectors.
func selectorsOf(q promql.Query) iter.Seq[*labels.Matcher] {
	return func(yield func(*labels.Matcher) bool) {
		parser.Inspect(q.Statement(), func(n parser.Node, _ []parser.Node) error {
			if sel, ok := n.(*parser.VectorSelector); ok {
				yield(sel.LabelMatchers[0])
			}
			return nil
		})
	}
}

// TestSubqueriesCountTheirSteps: the engine keeps something of each step of a subquery, also where there are no series.
func TestSubqueriesCountTheirSteps(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	opts := Options{MaxSamples: 1_000_000}
	at := time.UnixMilli(now)
	nested := func(depth, steps int) string {
		expr := "none @ 0"
		for range depth - 1 {
			expr = "(none @ 0) or max_over_time((" + expr + ")[1ms:1ms])"
		}
		return fmt.Sprintf("max_over_time((%s)[%dms:1ms])", expr, steps)
	}
	beside := func(op string, n int) string {
		return strings.Repeat("max_over_time(none[400s:1ms]) "+op+" ", n-1) + "max_over_time(none[400s:1ms])"
	}
	for _, expr := range []string{nested(3, 400_000), nested(20, 60_000), nested(1, 1_000_001), "-(" + nested(3, 400_000) + ")"} {
		took, err := w.heavy(opts, expr, at, at, 0)
		require.ErrorContains(t, err, "use larger steps", "%.100s", expr)
		require.Less(t, took, int64(opts.MaxSamples*sampleBytes/4), "%.100s", expr)
	}
	// Those that are evaluated one after the other are not held together.
	for _, expr := range []string{nested(1, 900_000), nested(2, 400_000), beside("or", 10), beside("+", 10)} {
		_, err := w.heavy(opts, expr, at, at, 0)
		require.NoError(t, err, "%.100s", expr)
	}
}
