package recovery_test

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/storage"
)

// A slice that is opened as late as possible is found, even with an age cap below the delay: its
// data was just young enough, and then had to wait for the store.
func TestLateOpenedSliceIsFound(t *testing.T) {
	eleven := time.Date(2025, time.November, 21, 11, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(eleven.Add(30 * time.Second))
	store := newStore(nil, clk)
	r := recovery.New(store, cache.New(store, clk, 1, cache.DefaultTiming()), clk, recovery.Options{AgeCap: 10 * time.Second})
	_, err := r.Outstanding(t.Context())
	require.NoError(t, err)
	ten := storage.SliceKey{StartMs: eleven.Add(-time.Hour).UnixMilli()}
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{ten}}))
	clk.Set(eleven.Add(2 * time.Minute))
	k, due, err := r.NextDue(t.Context(), nil)
	require.NoError(t, err)
	require.True(t, due)
	require.Equal(t, ten, k)
}

// The lag grows from the last look on.
func TestLag(t *testing.T) {
	midnight := time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(midnight)
	store := newStore(nil, clk)
	r := recovery.New(store, cache.New(store, clk, 1, cache.DefaultTiming()), clk, recovery.Options{})
	lag := func(raw string) {
		t.Helper()
		require.NoError(t, testutil.CollectAndCompare(r.Collector(), strings.NewReader(`
# HELP quern_aggregation_lag_seconds Time since the end of the oldest incomplete slice.
# TYPE quern_aggregation_lag_seconds gauge
quern_aggregation_lag_seconds{bucket="1h"} 0
quern_aggregation_lag_seconds{bucket="6h"} 0
quern_aggregation_lag_seconds{bucket="raw"} `+raw+"\n"), "quern_aggregation_lag_seconds"))
	}
	lag("0")

	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{
		{StartMs: midnight.UnixMilli()}, {StartMs: midnight.Add(time.Hour).UnixMilli()}, {Bucket: 1, StartMs: midnight.UnixMilli()},
	}}))
	_, err := r.Outstanding(t.Context())
	require.NoError(t, err)
	lag("0")
	clk.Set(midnight.Add(2*time.Hour + time.Minute))
	lag("3660")
	_, err = r.Outstanding(t.Context())
	require.NoError(t, err)
	lag("3660")
	require.NoError(t, testutil.CollectAndCompare(r.Collector(), strings.NewReader(`
# HELP quern_aggregation_outstanding_slices Slices that have ended and are not complete.
# TYPE quern_aggregation_outstanding_slices gauge
quern_aggregation_outstanding_slices{bucket="1h"} 0
quern_aggregation_outstanding_slices{bucket="6h"} 0
quern_aggregation_outstanding_slices{bucket="raw"} 2
`), "quern_aggregation_outstanding_slices"))
}
