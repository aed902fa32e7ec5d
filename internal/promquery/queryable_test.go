package promquery

import (
	"fmt"
	"math"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/querytest"
)

// TestLabels: label names and values of the matching series, up to the limit.
func TestLabels(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	for i := range 20 {
		w.ID(querytest.Named([]string{"x", "y"}[i%2], metric.Label{Name: "i", Value: fmt.Sprintf("%02d", 19-i)}))
	}
	w.ID(querytest.Named("z", metric.Label{Name: "only", Value: "z"}))
	q, err := w.queryable.Querier(math.MinInt64, now)
	require.NoError(t, err)
	defer q.Close()
	y := labels.MustNewMatcher(labels.MatchEqual, metric.NameLabel, "y")

	names, _, err := q.LabelNames(t.Context(), nil)
	require.NoError(t, err)
	require.Equal(t, []string{"__name__", "i", "only"}, names)
	names, _, err = q.LabelNames(t.Context(), nil, y)
	require.NoError(t, err)
	require.Equal(t, []string{"__name__", "i"}, names)

	values, _, err := q.LabelValues(t.Context(), "i", &promstorage.LabelHints{Limit: 3}, y)
	require.NoError(t, err)
	require.Equal(t, []string{"00", "02", "04"}, values)
	values, _, err = q.LabelValues(t.Context(), metric.NameLabel, nil)
	require.NoError(t, err)
	require.Equal(t, []string{"x", "y", "z"}, values)

	set := q.Select(t.Context(), true, &promstorage.SelectHints{Start: math.MinInt64, End: now, Limit: 2, Func: "series"}, y)
	var got []string
	for set.Next() {
		got = append(got, set.At().Labels().Get("i"))
	}
	require.NoError(t, set.Err())
	require.Equal(t, []string{"00", "02"}, got)
}

// TestLabelsOfATime: names and values listed for a time range belong to series with samples since
// the day on which it starts.
func TestLabelsOfATime(t *testing.T) {
	for kind := range querytest.Stores {
		w := newWorld(t, kind, retention, now)
		young, old := w.ID(querytest.Named("young", metric.Label{Name: "a", Value: "1"})), w.ID(querytest.Named("old", metric.Label{Name: "b", Value: "1"}))
		w.ID(querytest.Named("never", metric.Label{Name: "c", Value: "1"}))
		w.Put(metric.Sample{Schedule: young, TimeMs: now - hour}, metric.Sample{Schedule: old, TimeMs: now - 3*day})
		anyName := labels.MustNewMatcher(labels.MatchNotEqual, metric.NameLabel, "")
		for mint, want := range map[int64][]string{
			now - hour: {"young"}, now - 2*day: {"young"}, now - 3*day: {"old", "young"}, math.MinInt64: {"never", "old", "young"},
		} {
			q, err := w.queryable.Querier(mint, now)
			require.NoError(t, err)
			values, _, err := q.LabelValues(t.Context(), metric.NameLabel, nil)
			require.NoError(t, err)
			require.Equal(t, want, values)
			names, _, err := q.LabelNames(t.Context(), nil, anyName)
			require.NoError(t, err)
			require.Len(t, names, len(want)+1)
			var got []string
			for set := q.Select(t.Context(), true, &promstorage.SelectHints{Start: mint, End: now, Func: "series"}, anyName); set.Next(); {
				got = append(got, set.At().Labels().Get(metric.NameLabel))
			}
			require.ElementsMatch(t, want, got)
			require.NoError(t, q.Close())
		}
	}
}
