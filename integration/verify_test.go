package integration

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// verified runs `quern verify` on a server, and returns what it printed.
func verified(t *testing.T, p *process.Process, code int, args ...string) string {
	t.Helper()
	v := start(t, append([]string{"verify", "--url", p.URL}, args...)...)
	assert.Equal(t, code, v.ExitCode(), "%s%s", v.Stdout.String(), v.Stderr.String())
	return v.Stdout.String()
}

// TestVerify damages rows by hand. verify must name exactly these, and repair them.
func TestVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var sent oracle.Oracle
	p := serve(t, dir, seconds...)

	// While the store is written to, late reports included, verify finds nothing wrong.
	stop, sending := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sending)
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			ms := time.Now().UnixMilli()
			_, err := sent.Report(t.Context(), p, []process.Sample{
				{Source: "a", Metric: "it_count_total", Ms: ms, Value: float64(i % 40)},
				{Source: "a", Metric: "it_level", Ms: ms, Value: float64(i%7) / 3},
				{Source: "a", Metric: "it_late", Ms: ms - 5000, Value: float64(i)},
			})
			if !assert.NoError(t, err) {
				return
			}
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	}()
	for range 4 {
		assert.Contains(t, verified(t, p, 0, "--start", "-1h"), ", 0 differ")
	}
	close(stop)
	<-sending
	process.Eventually(t, "roll-ups", func() error { return sent.Check(p) })
	said := verified(t, p, 0, "--start", "-1h", "--match", `{source="a"}`)
	assert.Contains(t, said, fmt.Sprintf("3 series, %d samples from ", sent.Len()))
	assert.Regexp(t, `\n1s: [1-9]\d* rows compared, 0 differ\n2s: [1-9]\d* rows compared, 0 differ\n4s: [1-9]\d* rows compared, 0 differ\n$`, said)
	p.Stop()

	changed, was, lost := spoil(t, dir)
	p = serve(t, dir, seconds...)
	said = verified(t, p, 1, "--start", "-1h")
	want := fmt.Sprintf(`it_level{source="a"} 2s %s wrong max: the row says 1000, the samples say %v`, changed, was)
	assert.Contains(t, said, want+"\n")
	assert.Contains(t, said, fmt.Sprintf(`it_count_total{source="a"} 1s %s missing: there is no row`, lost))
	assert.Contains(t, said, `percentiles are missing`)
	assert.Regexp(t, `it_late{source="a"} 1s \S+ surplus: the row says count \d+, there are no samples\n`, said)
	assert.Regexp(t, `\n1s: \d+ rows compared, 2 differ\n2s: \d+ rows compared, 1 differ\n4s: \d+ rows compared, 1 differ\n1 rows, or their sketches, are damaged`, said)
	require.ErrorContains(t, sent.Check(p), want, "the oracle of these tests sees it too")
	assert.Contains(t, verified(t, p, 1, "--start", "-1h", "--limit", "1"), "… and more: --limit is 1\n")

	said = verified(t, p, 1, "--start", "-1h", "--repair")
	assert.Contains(t, said, "3 series in 3 slices will be ground again; their rows will be right: 1s with the run after ")
	assert.Contains(t, said, "1 rows have no raw samples, and stay: to take them back, use --repair --take-back on a server with --enable-admin-api\n")
	process.Eventually(t, "the repair of all but one", func() error {
		if err := sent.Check(p); err == nil || strings.Count(err.Error(), "\n") > 0 || !strings.Contains(err.Error(), "surplus") {
			return fmt.Errorf("not yet: %w", err)
		}
		return nil
	})
	p.Stop()
	p = serve(t, dir, append(slices.Clone(seconds), "--enable-admin-api")...)
	verified(t, p, 1, "--start", "-1h", "--repair", "--take-back")
	process.Eventually(t, "the repair", func() error { return sent.Check(p) })
	assert.Regexp(t, `\n1s: \d+ rows compared, 0 differ\n2s: \d+ rows compared, 0 differ\n4s: \d+ rows compared, 0 differ\n$`,
		verified(t, p, 0, "--start", "-1h"))

	assert.Empty(t, verified(t, p, 2, "--match", "it_level{"), "no selector")
	verified(t, p, 1, "--match", "it_none")
	p.Stop()
	gone := start(t, "verify", "--url", p.URL)
	assert.Equal(t, 1, gone.ExitCode())
}

// spoil damages a store that no process serves. It changes a 2s row of it_level, takes a 1s row of
// it_count_total back, damages the sketch of a 4s row of it_late, and adds a 1s row of it_late
// without samples.
func spoil(t *testing.T, dir string) (changed metric.Slice, was float64, lost metric.Slice) {
	t.Helper()
	ctx := context.Background()
	st, err := pebble.Open(dir, pebble.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	var fences []storage.Fence
	for shard := range st.Settings().IndexPartitions {
		lease, err := st.AcquireShard(ctx, shard, "vandal", time.Minute)
		require.NoError(t, err)
		fences = append(fences, lease.Fence)
	}
	leased, err := st.LeasedIDs(ctx)
	require.NoError(t, err)
	ids := map[string]metric.ScheduleID{}
	for s, err := range st.Schedules(ctx, leased) {
		require.NoError(t, err)
		ids[s.Labels.Get(metric.NameLabel)] = s.ID
	}
	row := func(level metric.Bucket, id metric.ScheduleID) metric.RollupRow {
		var rows []metric.RollupRow
		for r, err := range st.Rollups(ctx, level, blocks.Range{Start: id, End: id + 1}, 0, time.Now().UnixMilli()) {
			require.NoError(t, err)
			rows = append(rows, r)
		}
		require.NotEmpty(t, rows)
		slices.SortFunc(rows, func(a, b metric.RollupRow) int { return int(a.TimeMs - b.TimeMs) })
		return rows[len(rows)/2]
	}
	fence := slices.Max(fences)
	r := row(2, ids["it_level"])
	was, r.Max = r.Max, 1000
	require.NoError(t, st.WriteRollups(ctx, fence, 2, []metric.RollupRow{r}))
	l := row(1, ids["it_count_total"])
	l.Rollup = metric.Rollup{}
	require.NoError(t, st.WriteRollups(ctx, fence, 1, []metric.RollupRow{l}))
	d := row(3, ids["it_late"])
	d.Sketch = []byte("damaged")
	require.NoError(t, st.WriteRollups(ctx, fence, 3, []metric.RollupRow{d}))
	s := row(1, ids["it_late"])
	s.TimeMs -= 60_000
	require.NoError(t, st.WriteRollups(ctx, fence, 1, []metric.RollupRow{s}))
	return metric.Slice{StartMs: r.TimeMs}, was, metric.Slice{StartMs: l.TimeMs}
}
