package integration

import (
	"context"
	"fmt"
	"slices"
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

// TestVerify spoils rows by hand, which must be named and nothing else, and has them repaired.
func TestVerify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var sent oracle.Oracle
	p := serve(t, dir, seconds...)

	// While it is written to, late reports and all, nothing is wrong.
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
	assert.Regexp(t, `\n1s: \d+ rows compared, 1 differ\n2s: \d+ rows compared, 1 differ\n4s: \d+ rows compared, 0 differ\n$`, said)
	require.ErrorContains(t, sent.Check(p), want, "the oracle of these tests sees it too")
	assert.Contains(t, verified(t, p, 1, "--start", "-1h", "--limit", "1"), "… and more: --limit is 1\n")

	said = verified(t, p, 1, "--start", "-1h", "--repair")
	assert.Contains(t, said, "2 series in 2 slices are ground again; their rows are right: 1s with the run after ")
	process.Eventually(t, "the repair", func() error { return sent.Check(p) })
	assert.Regexp(t, `\n1s: \d+ rows compared, 0 differ\n2s: \d+ rows compared, 0 differ\n4s: \d+ rows compared, 0 differ\n$`,
		verified(t, p, 0, "--start", "-1h"))

	assert.Empty(t, verified(t, p, 2, "--match", "it_level{"), "no selector")
	verified(t, p, 1, "--match", "it_none")
	p.Stop()
	gone := start(t, "verify", "--url", p.URL)
	assert.Equal(t, 1, gone.ExitCode())
}

// spoil changes a 2s row of it_level and takes back a 1s row of it_count_total, in a store that nobody serves.
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
	return metric.Slice{StartMs: r.TimeMs}, was, metric.Slice{StartMs: l.TimeMs}
}
