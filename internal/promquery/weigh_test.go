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

	"github.com/quern/quern/internal/admission"
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
		f.series, err = seriesOf(t.Context(), groups, func(metric.ScheduleID, query.Packed) (*labels.Labels, error) { return nil, nil })
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

// TestCopiedPointsAreCounted: of a part that is the same at all steps, the engine makes a copy for each step.
func TestCopiedPointsAreCounted(t *testing.T) {
	const mb = 1 << 20
	w := newWorld(t, "model", retention, now)
	_, end := w.some(100, "x")
	start := end.Add(-9_999 * time.Millisecond)
	at := fmt.Sprintf("m @ %d", end.Unix())
	opts := Options{MaxSamples: 900_000, Lookback: time.Hour}
	for _, expr := range []string{at, "sum(" + at + ") or " + at, "max_over_time((" + at + ")[10s:1ms])"} {
		took, err := w.heavy(opts, expr, start, end, time.Millisecond)
		require.ErrorContains(t, err, "larger step", expr)
		require.Less(t, took, int64(opts.MaxSamples*sampleBytes), expr)
	}
	for _, expr := range []string{at, "sum(" + at + ")", "max_over_time(m[1h] @ " + fmt.Sprint(end.Unix()) + ")", at + " + " + at} {
		_, err := w.heavy(Options{MaxSamples: 4_000_000, Lookback: time.Hour}, expr, start, end, time.Millisecond)
		require.NoError(t, err, expr)
		_, err = w.heavy(opts, expr, start, start, time.Millisecond)
		require.NoError(t, err, expr)
	}
	// The limit allows it, but the memory does not.
	memory := admission.NewSharedBudget(12*mb, mb)
	took, err := w.heavy(Options{Lookback: time.Hour, Memory: memory}, at, start, end, time.Millisecond)
	require.ErrorContains(t, err, "one client may hold")
	require.Less(t, took, int64(12*mb))
}

// TestSmoothedSelectorsAreBounded: the engine counts no points of these, and smooths a series without a look at the
// context.
func TestSmoothedSelectorsAreBounded(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	_, end := w.some(200, "x")
	opts := Options{MaxSamples: 1_000_000, Lookback: time.Hour}
	for _, expr := range []string{
		"count(max_over_time((m smoothed)[20s:1ms]))", "max_over_time((m smoothed)[900s:1ms])",
		"max_over_time((m smoothed)[4s:1ms]) + on (i) max_over_time((m{a=~'x|y'} smoothed + m smoothed)[4s:1ms])",
	} {
		took, err := w.heavy(opts, expr, end, end, 0)
		require.ErrorContains(t, err, "larger step", expr)
		require.Less(t, took, int64(8*opts.MaxSamples*sampleBytes), "%s: with what growing lists leave", expr)
	}
	_, err := w.heavy(opts, "count(max_over_time((m smoothed)[4s:1ms]))", end, end, 0)
	require.NoError(t, err)
	_, err = w.heavy(opts, "rate(m[1h] smoothed)", end.Add(-time.Second), end, time.Millisecond)
	require.NoError(t, err)

	id := w.ID(querytest.Named("dense"))
	var samples []metric.Sample
	for i := range int64(2000) {
		samples = append(samples, metric.Sample{Schedule: id, TimeMs: now - day - 2000 + i, Value: 1})
	}
	w.Put(samples...)
	end = time.UnixMilli(now - day + hour)
	opts = Options{Lookback: 2 * time.Hour}
	_, err = w.heavy(opts, "max_over_time((dense smoothed)[4000s:1ms])", end, end, 0)
	require.ErrorContains(t, err, "smoothing 2000 samples")
	_, err = w.heavy(opts, "max_over_time((dense smoothed)[4000s:1s])", end, end, 0)
	require.NoError(t, err)
}

// TestDeepExpressionsAreBounded: the engine writes the text of an expression once for each of its levels.
func TestDeepExpressionsAreBounded(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	at := time.UnixMilli(now)
	deep := func(levels, bytes int) string {
		return strings.Repeat("-", levels) + `none{i="` + strings.Repeat("x", bytes) + `"}`
	}
	took, err := w.heavy(Options{}, deep(9000, 200_000), at, at, 0)
	require.ErrorContains(t, err, "levels deep")
	require.Less(t, took, int64(100<<20))
	for _, expr := range []string{deep(9000, 1000), deep(10, 1_000_000), strings.Repeat("none{i=\"x\"} or ", 999) + "none"} {
		_, err := w.heavy(Options{}, expr, at, at, 0)
		require.NoError(t, err, "%.100s", expr)
	}
}
