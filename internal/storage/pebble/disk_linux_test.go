package pebble

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestDiskFullOfTmpfs repeats TestDiskFull on a real file system of 32 MB. Where a test may not
// mount a file system, TestDiskFull alone has to do.
func TestDiskFullOfTmpfs(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	if err := unix.Mount("quern", dir, "tmpfs", 0, "size=32m"); err != nil {
		t.Skipf("mounting a tmpfs: %v; TestDiskFull covers this without", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	data, hog := filepath.Join(dir, "data"), filepath.Join(dir, "hog")
	require.NoError(t, os.WriteFile(hog, make([]byte, 12<<20), 0o600))
	st, err := Open(data, fullOptions(vfs.Default))
	require.NoError(t, err)
	n, err := fill(t, st, 0)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.ErrorContains(t, err, "disk full")
	check(t, st, upTo(n))
	require.NoError(t, os.Remove(hog))
	require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	m, err := fill(t, st, n+1)
	require.ErrorContains(t, err, "disk full")
	require.Greater(t, m, n+100)
	check(t, st, upTo(m))
	require.NoError(t, st.Close())
	st, err = Open(data, fullOptions(vfs.Default))
	require.NoError(t, err)
	check(t, st, upTo(m))
	require.NoError(t, st.Close())
}

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
