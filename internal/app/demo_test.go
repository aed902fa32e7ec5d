package app

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/demo"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
)

// TestDemo: an empty store is filled, and no other.
func TestDemo(t *testing.T) {
	end := time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC)
	g := demo.New(4)
	cfg := config.Config{
		Store: config.Pebble, DataDir: t.TempDir(),
		Made: config.Made{Ladder: metric.DefaultLadder(), BlockSize: 128, GroupSize: 128, IndexPartitions: 4},
	}
	log := slog.New(slog.DiscardHandler)
	fill := func(ctx context.Context) (string, error) {
		var out bytes.Buffer
		err := fillDemo(ctx, cfg, g, end, log, &out)
		return out.String(), err
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err := fill(stopped)
	require.ErrorIs(t, err, context.Canceled)
	out, err := fill(t.Context())
	require.NoError(t, err)
	require.Contains(t, out, "Generating 26 h of reports of 40 series")
	out, err = fill(t.Context())
	require.NoError(t, err)
	require.Contains(t, out, "already has data")

	want := map[string]float64{}
	for at := end.Add(-demoSpan).Truncate(g.Interval()); !at.After(end); at = at.Add(g.Interval()) {
		for _, r := range g.Reports(at.UnixMilli()) {
			for _, m := range r.Measurements {
				if m.TimeMs == at.UnixMilli() { // late reports from before the beginning are missing
					want[r.Source+m.Metric+time.UnixMilli(m.TimeMs).String()] = m.Value
				}
			}
		}
	}
	s := setup{cfg: cfg, clk: clock.NewSimulated(end), log: log}
	st, err := s.openStore(t.Context(), func(error) {})
	require.NoError(t, err)
	names := map[metric.ScheduleID]string{}
	ids, err := st.LeasedIDs(t.Context())
	require.NoError(t, err)
	for sch, err := range st.Schedules(t.Context(), ids) {
		require.NoError(t, err)
		names[sch.ID] = sch.Labels.Get(metric.SourceLabel) + sch.Labels.Get(metric.NameLabel)
	}
	got := map[string]float64{}
	for c, err := range st.RawChunks(t.Context(), ids, 0, end.UnixMilli()) {
		require.NoError(t, err)
		samples, err := blocks.DecodeSamples(nil, c.Data)
		require.NoError(t, err)
		for _, sm := range samples {
			got[names[sm.Schedule]+time.UnixMilli(sm.TimeMs).String()] = sm.Value
		}
	}
	require.NoError(t, st.Close())
	require.Greater(t, len(want), 40*26*60*9/10)
	for k, v := range want {
		require.Equal(t, v, got[k], k)
	}
}
