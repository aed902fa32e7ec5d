package promquery

import (
	"context"
	"errors"
	"math"
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
		require.True(t, errors.As(err, new(promql.ErrQueryCanceled)) || errors.Is(err, context.Canceled), "%s: %v", expr, err)
		require.Equal(t, 1, calls, expr)
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
