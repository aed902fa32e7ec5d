package promquery

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
)

// TestQueriesEndWithinASeries: the windows of one series may take hours, so the context counts at each of them.
func TestQueriesEndWithinASeries(t *testing.T) {
	const function = "sum_over_time"
	w := newWorld(t, "model", retention, now)
	w.Put(metric.Sample{Schedule: w.ID(querytest.Named("m")), TimeMs: now - second, Value: 1})
	engine, queryable := New(w.Querier, Options{})
	for _, expr := range []string{
		"sum_over_time((vector(1))[1s:1ms])", "sum_over_time(m[1h])", "max_over_time(sum_over_time((vector(1))[1s:1ms])[10s:1ms])",
		"vector(1) + sum(-sum_over_time(m[1h]))",
	} {
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		inner := promql.FunctionCalls[function]
		promql.FunctionCalls[function] = func(
			vectors []promql.Vector, matrix promql.Matrix, args parser.Expressions, enh *promql.EvalNodeHelper,
		) (promql.Vector, annotations.Annotations) {
			calls++
			cancel()
			return inner(vectors, matrix, args, enh)
		}
		q, err := engine.NewRangeQuery(ctx, queryable, nil, expr, time.UnixMilli(now), time.UnixMilli(now+100), time.Millisecond)
		require.NoError(t, err)
		err = q.Exec(ctx).Err
		q.Close()
		promql.FunctionCalls[function] = inner
		require.ErrorAs(t, err, new(promql.ErrQueryCanceled), expr)
		require.Equal(t, 1, calls, expr)
	}
}

// TestAllFunctionsAreGuarded: also those that a new version of the engine brings.
func TestAllFunctionsAreGuarded(t *testing.T) {
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel := context.WithTimeout(t.Context(), 0)
	defer cancel()
	for name, call := range promql.FunctionCalls {
		if call == nil || name == countValues {
			continue
		}
		for ctx, want := range map[context.Context]error{
			ended: promql.ErrQueryCanceled("expression evaluation"), late: promql.ErrQueryTimeout("expression evaluation"),
		} {
			prep := newPreparation(t.Context())
			prep.ctx = ctx
			e := &parser.Call{Args: parser.Expressions{&parser.NumberLiteral{}}}
			prep.guardCall(e, nil)
			require.Len(t, e.Args, 1)
			require.PanicsWithValue(t, want, func() { call(nil, nil, e.Args, new(promql.EvalNodeHelper)) }, name)
		}
	}
}

// TestIteratorsEnd: the engine takes points of a series without a look at the context.
func TestIteratorsEnd(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	id := w.ID(querytest.Named("m"))
	var samples []metric.Sample
	for i := range int64(5000) {
		samples = append(samples, metric.Sample{Schedule: id, TimeMs: now - hour + i, Value: 1})
	}
	w.Put(samples...)
	for name, use := range map[string]func(it chunkenc.Iterator) chunkenc.ValueType{
		"seek": func(it chunkenc.Iterator) chunkenc.ValueType { return it.Seek(now - hour + 100) },
		"next": func(it chunkenc.Iterator) chunkenc.ValueType {
			for range 2000 {
				if it.Next() == chunkenc.ValNone {
					return chunkenc.ValNone
				}
			}
			return chunkenc.ValFloat
		},
	} {
		q, err := w.queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		set := q.Select(ctx, false, nil, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"))
		require.True(t, set.Next())
		it := set.At().Iterator(nil)
		require.Equal(t, chunkenc.ValFloat, it.Next())
		cancel()
		require.Equal(t, chunkenc.ValNone, use(it), name)
		require.ErrorIs(t, it.Err(), context.Canceled, name)
		require.Equal(t, chunkenc.ValNone, it.Next(), name)
		it = set.At().Iterator(it)
		require.Equal(t, chunkenc.ValNone, it.Next(), name)
		require.ErrorIs(t, it.Err(), context.Canceled, name)
		require.NoError(t, q.Close())
	}
}

// TestRatesOfManyNames: the engine itself notes each name of a metric that might not be a counter.
func TestRatesOfManyNames(t *testing.T) {
	const names = 3 * mostAnnotations
	w := newWorld(t, "model", retention, now)
	for i := range names {
		for suffix, last := range map[string]float64{"": 1, "_total": 2} {
			id := w.ID(querytest.Named(fmt.Sprintf("m%03d%s", i, suffix), metric.Label{Name: "i", Value: fmt.Sprint(i, suffix)}))
			w.Put(metric.Sample{Schedule: id, TimeMs: now - 30_000}, metric.Sample{Schedule: id, TimeMs: now, Value: last})
		}
	}
	engine, queryable := New(w.Querier, Options{})
	for expr, want := range map[string]struct{ series, infos int }{
		`increase({__name__=~"m.*"}[1m])`:                    {2 * names, mostAnnotations},
		`rate({__name__=~"m.*"}[1m])`:                        {2 * names, mostAnnotations},
		`rate({__name__=~"m.*"}[1m:10s])`:                    {2 * names, mostAnnotations},
		`rate({__name__=~"m.*_total"}[1m])`:                  {names, 0},
		`rate({__name__=~"m00[0-6]"}[1m])`:                   {7, 7},
		`last_over_time(rate({__name__=~"m.*"}[1m])[1m:1s])`: {2 * names, mostAnnotations},
	} {
		q, err := engine.NewRangeQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now-5000), time.UnixMilli(now), time.Second)
		require.NoError(t, err)
		r := q.Exec(t.Context())
		require.NoError(t, r.Err, expr)
		require.Len(t, r.Warnings, want.infos, expr)
		series, err := r.Matrix()
		require.NoError(t, err)
		require.Len(t, series, want.series, expr)
		for _, s := range series {
			require.Positive(t, s.Floats[len(s.Floats)-1].F, "%s of %s", expr, s.Metric)
		}
		q.Close()
	}
}

// TestMalformedBuckets: a histogram's function notes each le that is no number, in the same call. It gets few of them, and
// the result stays.
func TestMalformedBuckets(t *testing.T) {
	const most = 3 * mostAnnotations
	vector := promql.Vector{{F: 1, Metric: labels.FromStrings("le", "1")}}
	for i := range most {
		vector = append(vector, promql.Sample{F: 1, Metric: labels.FromStrings("le", strings.Repeat("\x01", 4000)+strconv.Itoa(i))})
	}
	vector = append(vector, promql.Sample{F: 2, Metric: labels.FromStrings("le", "+Inf")})
	ranks := promql.Vector{{F: 0.5}}
	for name, args := range map[string][]promql.Vector{
		"histogram_quantile":  {ranks, vector},
		"histogram_fraction":  {ranks, ranks, vector},
		"histogram_quantiles": {vector, nil, ranks},
	} {
		given := slices.Clone(vector)
		got := 0
		call := guarded(name, func(vectors []promql.Vector, _ promql.Matrix, _ parser.Expressions, _ *promql.EvalNodeHelper) (promql.Vector, annotations.Annotations) {
			got = len(vectors[slices.IndexFunc(args, func(v promql.Vector) bool { return len(v) == len(vector) })])
			return nil, nil
		})
		prep := newPreparation(t.Context())
		prep.ctx = t.Context()
		e := &parser.Call{}
		prep.guardCall(e, nil)
		call(args, nil, e.Args, new(promql.EvalNodeHelper))
		require.Equal(t, 2+mostAnnotations, got, name)
		require.Equal(t, given, vector, "the engine's own vector is unchanged")
	}

	w := newWorld(t, "model", retention, now)
	for _, s := range vector {
		id := w.ID(querytest.Named("h", metric.Label{Name: "le", Value: s.Metric.Get("le")}))
		w.Put(metric.Sample{Schedule: id, TimeMs: now, Value: s.F})
	}
	engine, queryable := New(w.Querier, Options{})
	q, err := engine.NewInstantQuery(t.Context(), queryable, nil, "histogram_quantile(0.5, h)", time.UnixMilli(now))
	require.NoError(t, err)
	defer q.Close()
	r := q.Exec(t.Context())
	require.NoError(t, r.Err)
	require.Len(t, r.Warnings, mostAnnotations)
	v, err := r.Vector()
	require.NoError(t, err)
	require.Len(t, v, 1)
	require.InDelta(t, 1, v[0].F, 0)
}

// TestAnnotationsAreBounded: a warning may have another text at each step.
func TestAnnotationsAreBounded(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	engine, queryable := New(w.Querier, Options{})
	for expr, few := range map[string]bool{
		"max_over_time(quantile_over_time(time(), vector(1)[1ms:1ms])[20s:1ms])":                                        false,
		`max_over_time(histogram_quantile(time(), label_replace(vector(1), "le", "1", "", ""))[20s:1ms])`:               false,
		"quantile_over_time(2, vector(1)[1ms:1ms]) + max_over_time(quantile_over_time(3, vector(1)[1ms:1ms])[20s:1ms])": true,
	} {
		q, err := engine.NewInstantQuery(t.Context(), queryable, nil, expr, time.UnixMilli(now))
		require.NoError(t, err)
		r := q.Exec(t.Context())
		require.NoError(t, r.Err, expr)
		want := mostAnnotations
		if few {
			want = 2
		}
		require.Len(t, r.Warnings, want, expr)
		q.Close()
	}
}
