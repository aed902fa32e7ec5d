package promquery

import (
	"fmt"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// TestLabels: label names and values of the series that match, and no more than are wanted.
func TestLabels(t *testing.T) {
	w := newWorld(t, "model", retention, now)
	for i := range 20 {
		w.id(named([]string{"x", "y"}[i%2], metric.Label{Name: "i", Value: fmt.Sprintf("%02d", 19-i)}))
	}
	w.id(named("z", metric.Label{Name: "only", Value: "z"}))
	q, err := w.queryable.Querier(0, now)
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

	set := q.Select(t.Context(), true, &promstorage.SelectHints{Start: 0, End: now, Limit: 2, Func: "series"}, y)
	var got []string
	for set.Next() {
		got = append(got, set.At().Labels().Get("i"))
	}
	require.NoError(t, set.Err())
	require.Equal(t, []string{"00", "02"}, got)
}
