package promquery

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/treecheck/linear"
)

// wide adds series with long labels, and a sample each.
func (w *world) wide(name string, series int) (bytes int) {
	long := strings.Repeat("x", 4000)
	var samples []metric.Sample
	for i := range series {
		ls := []metric.Label{{Name: "i", Value: fmt.Sprint(i)}, {Name: "job", Value: fmt.Sprint(i % 3)}}
		for j := range 60 {
			ls = append(ls, metric.Label{Name: fmt.Sprintf("l%d", j), Value: long})
			bytes += len(long)
		}
		samples = append(samples, metric.Sample{Schedule: w.ID(querytest.Named(name, ls...)), TimeMs: now - second, Value: 1})
	}
	w.Put(samples...)
	return bytes
}

// arms joins n variants of an expression, in which $ is the number of the variant.
func arms(n int, expr string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = strings.ReplaceAll(expr, "$", fmt.Sprint(i))
	}
	return strings.Join(all, " or ")
}

// TestSelectorsShareLabels: selectors that differ hold the labels of a series once.
func TestSelectorsShareLabels(t *testing.T) {
	const series = 60
	w := newWorld(t, "model", retention, now)
	w.wide("m", series)
	held := func(selectors int) int64 {
		q, err := w.queryable.Querier(math.MinInt64, now)
		require.NoError(t, err)
		var all []promstorage.Series
		before := linear.Heap()
		for i := range selectors {
			set := q.Select(t.Context(), false, nil, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"),
				labels.MustNewMatcher(labels.MatchNotEqual, "i", fmt.Sprintf("x%d", i)))
			for set.Next() {
				all = append(all, set.At())
				require.False(t, set.At().Labels().IsEmpty())
			}
			require.NoError(t, set.Err())
		}
		after := linear.Heap()
		runtime.KeepAlive(all)
		require.NoError(t, q.Close())
		return int64(after) - int64(before)
	}
	require.Less(t, held(40), 2*held(1))
}

// TestListedSeriesHoldNoLabels: a list of series is sent series by series.
func TestListedSeriesHoldNoLabels(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	size := w.wide("m", 60)
	q, err := w.queryable.Querier(math.MinInt64, now)
	require.NoError(t, err)
	before := linear.Heap()
	var all []promstorage.Series
	set := q.Select(t.Context(), true, &promstorage.SelectHints{Start: math.MinInt64, End: now, Func: "series"}, labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "m"))
	for set.Next() {
		all = append(all, set.At())
		require.Equal(t, "m", set.At().Labels().Get(metric.NameLabel))
	}
	require.NoError(t, set.Err())
	after := linear.Heap()
	require.Len(t, all, 60)
	require.Less(t, int64(after)-int64(before), int64(size/10))
	runtime.KeepAlive(all)
	require.NoError(t, q.Close())
}
