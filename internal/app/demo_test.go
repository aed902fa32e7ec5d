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

// TestDemoResumes: an interrupted fill is resumed. A store that was filled in two parts, or by a
// stopped start, has the same contents as after one fill.
func TestDemoResumes(t *testing.T) {
	end := time.Date(2026, 11, 22, 10, 20, 30, 0, time.UTC)
	opts := demo.Options{Sources: 4}
	cfg := config.Config{
		Store: config.Pebble, DataDir: t.TempDir(),
		Made: config.Made{Ladder: metric.DefaultLadder(), BlockSize: 128, GroupSize: 128, IndexPartitions: 4},
	}
	log := slog.New(slog.DiscardHandler)
	fill := func(ctx context.Context, end time.Time) (string, error) {
		g, err := demo.New(opts)
		require.NoError(t, err)
		var out bytes.Buffer
		err = fillDemo(ctx, cfg, g, end, log, &out)
		return out.String(), err
	}

	said, err := fill(t.Context(), end.Add(-20*time.Hour))
	require.NoError(t, err)
	require.Contains(t, said, "Generating 26 h of reports of 40 series")
	stopped, stop := context.WithCancel(t.Context())
	stop()
	_, err = fill(stopped, end)
	require.ErrorIs(t, err, context.Canceled)
	said, err = fill(t.Context(), end)
	require.NoError(t, err)
	require.Contains(t, said, "has reports up to 2026-11-21T14:20:00Z: the demo continues from there.\nGenerating 19 h 59 min of reports")
	said, err = fill(t.Context(), end)
	require.NoError(t, err)
	require.Contains(t, said, "already has data")

	g, err := demo.New(opts)
	require.NoError(t, err)
	want := map[string]float64{}
	for at := end.Add(-46 * time.Hour).Truncate(g.Interval()); !at.After(end); at = at.Add(g.Interval()) {
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
	require.Greater(t, len(want), 40*46*60*9/10)
	for k, v := range want {
		require.Equal(t, v, got[k], k)
	}
}
