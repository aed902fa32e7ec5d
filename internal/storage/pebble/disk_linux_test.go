package pebble

import (
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage/storagetest"
)

// TestDiskUsage compares the reported disk usage with that of du, which also has what is preallocated for the log.
func TestDiskUsage(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	st := mustOpen(t, dir, Options{Settings: storagetest.TestSettings(), MemTableBytes: 1 << 20})
	j := &journal{acked: map[int]bool{}}
	require.NoError(t, j.write(t.Context(), st, 0, 1, 500))
	require.NoError(t, st.db.Flush())
	require.NoError(t, j.write(t.Context(), st, 500, 1, 100))
	for st.db.Metrics().Compact.NumInProgress > 0 || st.db.Metrics().Table.ObsoleteSize > 0 {
		runtime.Gosched() // until no more files are created or deleted
	}
	out, err := exec.CommandContext(t.Context(), "du", "-s", "-k", dir).Output()
	require.NoError(t, err)
	kib, err := strconv.ParseInt(strings.Fields(string(out))[0], 10, 64)
	require.NoError(t, err)
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(st.Collector())
	families, err := registry.Gather()
	require.NoError(t, err)
	part, sum := map[string]int64{}, int64(0)
	for _, f := range families {
		if f.GetName() != "quern_pebble_disk_bytes" {
			continue
		}
		for _, m := range f.GetMetric() {
			part[m.GetLabel()[0].GetValue()] = int64(m.GetGauge().GetValue())
			sum += int64(m.GetGauge().GetValue())
		}
	}
	require.InDelta(t, kib<<10, sum, 4<<20)
	require.Greater(t, part["data"], int64(400<<10))
	require.Greater(t, part["log"], int64(100<<10))
	require.Less(t, part["other"], int64(100<<10))
	require.NoError(t, st.Close())
}
