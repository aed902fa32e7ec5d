package recovery_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// A slice that is opened as late as possible is found, even with an age cap below the delay: its
// data was just young enough, and then had to wait for the store.
func TestLateOpenedSliceIsFound(t *testing.T) {
	eleven := time.Date(2025, time.November, 21, 11, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(eleven.Add(30 * time.Second))
	store := storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk)
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

// The first look finds what was left open, however long ago. Later looks do not search behind the
// age cap. Concurrent looks do not disturb each other.
func TestFirstLookIsAtAll(t *testing.T) {
	day := time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(day)
	store := storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk)
	looks := &looks{Store: store}
	old := storage.SliceKey{StartMs: day.AddDate(-7, 0, 0).UnixMilli()}
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{old}}))
	r := recovery.New(looks, cache.New(store, clk, 1, cache.DefaultTiming()), clk, recovery.Options{})
	look := func(want ...storage.SliceKey) {
		t.Helper()
		out, err := r.Outstanding(t.Context())
		require.NoError(t, err)
		require.Equal(t, want, out)
	}
	look(old)
	look(old)
	require.Equal(t, old.StartMs, looks.fromMs)

	// During one look, its slice is completed and another look begins and ends.
	looks.during = func() {
		looks.during = nil
		require.NoError(t, store.CompleteSlice(t.Context(), old))
		look()
	}
	look()
	look()
	require.Equal(t, day.AddDate(0, 0, -1).UnixMilli(), looks.fromMs)

	// The clock was ahead: a slice opened after it went back is older than the last look.
	clk.Set(day.AddDate(0, 0, -10))
	back := storage.SliceKey{StartMs: day.AddDate(0, 0, -10).UnixMilli()}
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{back}}))
	look(back)
}

// looks records the time from which raw slices were last asked for.
type looks struct {
	storage.Store
	fromMs int64
	during func()
}

func (l *looks) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	if b == metric.Raw {
		if l.during != nil {
			l.during()
		}
		l.fromMs = fromMs
	}
	return l.Store.Slices(ctx, b, fromMs, toMs)
}

// The lag grows from the last look on.
func TestLag(t *testing.T) {
	midnight := time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(midnight)
	store := storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk)
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
