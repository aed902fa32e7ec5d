package engine_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

// watched is a store that counts how often it is closed.
type watched struct {
	storage.Store

	closed int
}

func (w *watched) Close() error {
	w.closed++
	return w.Store.Close()
}

func newStore(clk clock.Clock) *watched {
	return &watched{Store: storagetest.NewModel(storagetest.TestSettings(), nil, clk)}
}

func report(clk clock.Clock, age time.Duration) []ingest.Report {
	return []ingest.Report{{Source: "host", Measurements: []ingest.Measurement{
		{Metric: "cpu", TimeMs: clk.Now().Add(-age).UnixMilli(), Value: 7},
	}}}
}

// TestLife: what an engine accepts is ground, late data is tracked, and Close drains before it
// closes the store.
func TestLife(t *testing.T) {
	clk := clock.NewSimulated(noon)
	st := newStore(clk)
	e := engine.New(engine.Options{
		Store: st, Clock: clk, Worker: storage.Worker{ID: "w"},
		Rollup: &rollup.Options{Parallel: 1}, Late: &late.Options{},
	})
	e.Start(t.Context(), registry.Options{}, ingest.Options{})
	for _, age := range []time.Duration{0, time.Hour + 2*time.Minute} { // the second one is late
		res, err := e.Ingest.Append(t.Context(), report(clk, age))
		require.NoError(t, err)
		require.Equal(t, 1, res.Accepted)
	}
	view, err := e.Late.View(t.Context())
	require.NoError(t, err)
	lateMs := e.Store.Settings().Ladder.SliceAt(metric.Raw, noon.Add(-time.Hour-2*time.Minute).UnixMilli()).StartMs
	require.Equal(t, []int64{lateMs}, view.Slices(metric.Raw, blocks.Range{End: 1}, 0, noon.UnixMilli()))

	clk.Set(noon.Add(time.Hour + e.Cache.Timing().Delay))
	n, err := e.Runner.RunDue(t.Context())
	require.NoError(t, err)
	require.Positive(t, n)
	var times []int64
	for row, err := range st.Rollups(t.Context(), metric.Raw+1, blocks.Range{End: 1}, 0, clk.Now().UnixMilli()) {
		require.NoError(t, err)
		times = append(times, row.TimeMs)
	}
	require.ElementsMatch(t, []int64{lateMs, noon.UnixMilli()}, times)

	require.NoError(t, e.Close())
	require.Equal(t, 1, st.closed)
	_, err = e.Ingest.Append(t.Context(), report(clk, 0))
	require.ErrorIs(t, err, ingest.ErrClosed)
}

// TestDrainThenClose: a program does more between the two. Close then only closes the store.
func TestDrainThenClose(t *testing.T) {
	clk := clock.NewSimulated(noon)
	st := newStore(clk)
	e := engine.New(engine.Options{Store: st, Clock: clk})
	e.Start(t.Context(), registry.Options{}, ingest.Options{})
	require.NoError(t, e.Drain())
	require.Zero(t, st.closed)
	_, err := e.Ingest.Append(t.Context(), report(clk, 0))
	require.ErrorIs(t, err, ingest.ErrClosed)
	require.NoError(t, e.Close())
	require.Equal(t, 1, st.closed)
}

// TestParts: an engine has only the parts that it was asked for.
func TestParts(t *testing.T) {
	clk := clock.NewSimulated(noon)
	st := newStore(clk)
	e := engine.New(engine.Options{Store: st, Clock: clk})
	require.Nil(t, e.Runner)
	require.Nil(t, e.Late)
	require.Nil(t, e.Ingest)
	require.NoError(t, e.Close())
	require.Equal(t, 1, st.closed)
}

// TestPolicy: the policy decides when slices close and which samples are accepted.
func TestPolicy(t *testing.T) {
	clk := clock.NewSimulated(noon)
	for _, c := range []struct {
		policy   storage.Policy
		timing   cache.Timing
		accepted int
	}{
		{storage.Policy{}, cache.DefaultTiming(), 1},
		{storage.Policy{Delay: 5 * time.Minute}, cache.Timing{Delay: 5 * time.Minute}, 1},
		{storage.Policy{Grace: time.Minute, Delay: 5 * time.Minute, AgeCap: 2 * time.Hour}, cache.Timing{Grace: time.Minute, Delay: 5 * time.Minute}, 0},
	} {
		e := engine.New(engine.Options{Store: newStore(clk), Clock: clk, Policy: c.policy})
		e.Start(t.Context(), registry.Options{}, ingest.Options{})
		require.Equal(t, c.timing, e.Cache.Timing())
		res, err := e.Ingest.Append(t.Context(), report(clk, 3*time.Hour))
		require.NoError(t, err)
		require.Equal(t, c.accepted, res.Accepted)
		require.NoError(t, e.Close())
	}
}
