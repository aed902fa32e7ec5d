package page

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

// falsify changes a row of 1s in a store that no process serves: its maximum is then 1000.
func falsify(t *testing.T, dir string) {
	t.Helper()
	st, err := pebble.Open(dir, pebble.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, st.Close()) }()
	var fences []storage.Fence
	for shard := range st.Settings().IndexPartitions {
		lease, err := st.AcquireShard(t.Context(), shard, "vandal", time.Minute)
		require.NoError(t, err)
		fences = append(fences, lease.Fence)
	}
	leased, err := st.LeasedIDs(t.Context())
	require.NoError(t, err)
	var rows []metric.RollupRow
	for r, err := range st.Rollups(t.Context(), 1, blocks.Range{Start: leased.Start, End: leased.End}, 0, time.Now().UnixMilli()) {
		require.NoError(t, err)
		rows = append(rows, r)
	}
	require.NotEmpty(t, rows)
	rows[0].Max = 1000
	require.NoError(t, st.WriteRollups(t.Context(), slices.Max(fences), 1, rows[:1]))
}

// TestVerify: a row that is wrong is found from the page, and repaired from there.
func TestVerify(t *testing.T) {
	dir := t.TempDir()
	flags := []string{"--data-dir", dir, "--rollups", "1s,2s,4s", "--aggregation-delay", "300ms", "--late-grace", "100ms"}
	server := serve(t, flags...)
	var samples []process.Sample
	begun := time.Now().UnixMilli() - 10_000
	for i := range int64(10) {
		samples = append(samples, process.Sample{Source: "kitchen", Metric: "tea_celsius", Ms: begun + i*700, Value: 60})
	}
	_, err := server.Report(t.Context(), samples)
	require.NoError(t, err)
	process.Eventually(t, "rows of 4s", func() error {
		r, err := server.Get("/api/v1/rollups", map[string][]string{"match[]": {"tea_celsius"}, "level": {"4s"}, "start": {"-1h"}})
		if err == nil && len(r.Body) == 0 {
			err = errors.New("there are none yet")
		}
		return err
	})
	server.Stop()
	falsify(t, dir)
	server = serve(t, flags...)

	p := open(t, server.URL)
	p.Go("/grinding")
	p.Press("Verify rows…")
	p.Fill("dialog input[name=from]", "yesterday")
	p.Enter()
	p.See("dialog [role=alert]", "Write times as")
	p.Accessible("verify")
	p.Fill("dialog input[name=from]", "-1h")
	p.Select("dialog select[name=level]", "2s")
	p.Press("Verify")
	p.See("dialog .banner.good", "All rows that were compared are as their samples say")
	p.See(".verified", "2s: ")
	assert.NotContains(t, p.Text(".verified"), "1s")
	assert.Empty(t, p.Text(".differences"))
	assert.NotContains(t, p.Text("dialog"), "Repair", "there is nothing to repair")

	p.Press("Back")
	p.Select("dialog select[name=level]", "")
	p.Press("Verify")
	p.See("dialog .banner.bad", "1 row differs from the samples")
	p.See(".differences", `tea_celsius{source="kitchen"}`)
	p.See(".differences tbody tr", "max")
	assert.Equal(t, []string{"max", "1000", "60"}, eval[[]string](p, `[...document.querySelectorAll(".differences tbody tr td")].slice(2, 5).map((e) => e.innerText)`))
	p.BothThemes("verify-differences")

	p.Press("Repair 1 row")
	p.See("dialog .banner.good", "1 series in 1 slice will be ground again")
	assert.Len(t, server.Wrote(`component=audit.*action="POST /api/v1/verify".*repair=true`), 1)
	p.Press("Close")
	process.Eventually(t, "the repair", func() error {
		p.Press("Verify rows…")
		p.Fill("dialog input[name=from]", "-1h")
		p.Press("Verify")
		p.Wait(`document.querySelector(".verified")`)
		banner := p.Text("dialog .banner")
		p.Press("Close")
		p.Wait(`!document.querySelector("dialog")`)
		if !assert.NotContains(t, banner, "Nothing was compared") || banner[:3] != "All" {
			return fmt.Errorf("not yet: %s", banner)
		}
		return nil
	})

	t.Run("readers", func(t *testing.T) {
		server := serve(t, "--web.config.file", locked(t))
		p := open(t, server.URL)
		p.Expect("401")
		p.Go("/grinding")
		p.LogIn(token(t, server, "read"))
		p.See(".tiles", "Workers")
		assert.NotContains(t, p.Text("main"), "Verify rows")
	})
}
