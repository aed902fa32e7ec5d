package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/demo"
	"github.com/quern/quern/internal/wire"
)

// TestDemo looks at the demo as a new user does.
func TestDemo(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	begin := time.Now().UTC()
	p := serve(t, dir, "--demo")
	ready := time.Now().UTC()
	for _, want := range []string{
		"Generating 26 h of reports of 2000 series", "samples were made durable and",
		"Quern is serving on " + p.URL, p.URL + "/api/v1/rollups", "-d level=1h", "-d level=24h", "Ctrl-C stops it; the data is in " + dir,
	} {
		assert.Contains(t, p.Stdout.String(), want)
	}
	assert.NotContains(t, p.Stdout.String(), "%|", "no progress bar where nobody looks on")

	selector := fmt.Sprintf(`{__name__="cpu_usage_ratio",source=%q}`, steadySource(t, begin.Add(-27*time.Hour), ready))
	raw, err := p.Export(selector, 28*time.Hour)
	require.NoError(t, err)
	assert.InDelta(t, 26*60, len(raw), 5, "one a minute for 26 hours")

	// The number of complete slices of each level depends on the time of day.
	hour := time.Hour
	checked := verified(t, p, 0, "--match", selector, "--start", "-3d")
	for _, width := range []time.Duration{hour, 6 * hour, 24 * hour} {
		assert.Regexp(t, process.LevelName(width)+`: [1-9]\d* rows compared, 0 differ`, checked)
		query := process.Within(selector, 72*hour)
		query.Set("level", process.LevelName(width))
		rows, err := process.Lines[wire.Row](p, "/api/v1/rollups", query)
		require.NoError(t, err)
		low, high := slicesOver(begin.Add(-26*hour), begin.Add(-2*time.Minute), width), slicesOver(begin.Add(-26*hour), time.Now().Add(time.Minute), width)
		assert.GreaterOrEqual(t, len(rows), low, "level %s", process.LevelName(width))
		assert.LessOrEqual(t, len(rows), high, "level %s", process.LevelName(width))
		assert.NotEmpty(t, rows)
	}
	p.Stop()

	p = serve(t, dir, "--demo")
	assert.Contains(t, p.Stdout.String(), "the demo continues from there")
	assert.NotContains(t, p.Stdout.String(), "Generating 26 h")
	assert.Contains(t, p.Stdout.String(), "Quern is serving on")
	again, err := p.Export(selector, 28*time.Hour)
	require.NoError(t, err)
	assert.Subset(t, again, raw)
	p.Stop()
}

// slicesOver returns the number of slices that overlap [from, end) and are over by end.
func slicesOver(from, end time.Time, width time.Duration) int {
	n := 0
	for at := from.Truncate(width); !at.Add(width).After(end); at = at.Add(width) {
		n++
	}
	return n
}

// steadySource returns a source of the demo that is neither silent nor late in the range: the
// roll-ups include late reports only after the next run.
func steadySource(t *testing.T, from, to time.Time) string {
	t.Helper()
	// From a few sources, which are the first of the demo's many.
	g, err := demo.New(demo.Options{Sources: 20})
	require.NoError(t, err)
	odd := map[string]bool{}
	sources := map[string]bool{}
	for at := from.Truncate(g.Interval()); at.Before(to); at = at.Add(g.Interval()) {
		seen := map[string]int{}
		for _, r := range g.Reports(at.UnixMilli()) {
			seen[r.Source]++
			sources[r.Source] = true
			odd[r.Source] = odd[r.Source] || r.Measurements[0].TimeMs != at.UnixMilli()
		}
		for s := range sources {
			odd[s] = odd[s] || seen[s] != 1
		}
	}
	for s := range sources {
		if !odd[s] {
			return s
		}
	}
	require.Fail(t, "every source of the demo is silent or late")
	return ""
}
