package stores

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestTimestampsAhead: one of two ingest processes has written by a clock that was hours ahead for a moment, and nobody
// compares clocks. A run's deletes leave its sealed mark and its chunk, and take those of the other process. When the
// slice is run again, its row keeps the samples of both.
func TestTimestampsAhead(t *testing.T) {
	start := time.Date(2026, time.November, 21, 9, 30, 0, 0, time.UTC)
	one, two := clock.NewSimulated(start), clock.NewSimulated(start)
	settings := storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 4}}}
	opts := place(t, settings.Ladder)
	store := storagetest.NewFaulty(openAt(t, opts, settings, nil, one)())
	second := openAt(t, opts, settings, nil, two)()
	a := engine.New(engine.Options{Store: store, Clock: one, Worker: storage.Worker{ID: "a", Aggregates: true}, Timeout: time.Minute, Rollup: &rollup.Options{Parallel: 1}})
	b := engine.New(engine.Options{Store: second, Clock: two, Worker: storage.Worker{ID: "b"}, Timeout: time.Minute})
	a.Start(t.Context(), registry.Options{LeaseSize: 16}, ingest.Options{})
	b.Start(t.Context(), registry.Options{LeaseSize: 16}, ingest.Options{})
	defer func() {
		require.NoError(t, a.Drain())
		require.NoError(t, b.Drain())
	}()
	to := func(at time.Time) {
		one.Set(at)
		two.Set(at)
	}
	report := func(e *engine.Engine, at time.Time, v float64) {
		_, err := e.Ingest.Append(t.Context(), []ingest.Report{{Source: "host", Measurements: []ingest.Measurement{{Metric: "cpu", TimeMs: at.UnixMilli(), Value: v}}}})
		require.NoError(t, err)
	}
	report(a, start.Add(-time.Minute), 1)
	to(start.Add(50 * time.Minute)) // 10:20
	_, err := a.Runner.RunDue(t.Context())
	require.NoError(t, err)
	two.Jump(3 * time.Hour)
	report(b, start.Add(49*time.Minute), 1)
	two.Jump(-3 * time.Hour)
	require.NoError(t, b.Ingest.Settle(t.Context()))

	eleven := start.Add(90 * time.Minute)
	to(eleven.Add(10 * time.Minute))
	_, err = a.Runner.RunDue(t.Context())
	require.NoError(t, err)
	report(a, eleven.Add(5*time.Minute), 4)
	report(b, eleven.Add(6*time.Minute), 8)
	to(eleven.Add(61 * time.Minute))
	require.NoError(t, a.Ingest.Seal(t.Context()))
	require.NoError(t, b.Ingest.Seal(t.Context()))
	to(eleven.Add(62 * time.Minute))
	count := func() (n uint64) {
		for r, err := range store.Rollups(t.Context(), metric.Raw+1, blocks.Range{End: 4}, eleven.UnixMilli(), eleven.UnixMilli()+1) {
			require.NoError(t, err)
			n = r.Count
		}
		return n
	}
	store.Fail("CompleteSlice", blocks.Range{}, 1, storage.ErrTimeout)
	_, err = a.Runner.RunDue(t.Context())
	require.ErrorIs(t, err, storage.ErrTimeout)
	require.EqualValues(t, 2, count(), "after the first run")
	_, err = a.Runner.RunDue(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, count(), "after the second run")
}
