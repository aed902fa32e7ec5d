package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/oracle"
	"github.com/quern/quern/integration/process"
)

// TestFullDisk fills the server's file system to the last byte and frees it again.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	p, dir, restart := serveOnSmallDisk(t)

	var sent oracle.Oracle
	next := func() (process.Reply, error) {
		// The times differ, so each is a sample of its own.
		batch := []process.Sample{{
			Source: "a", Metric: "it_x",
			Ms: time.Now().UnixMilli() - 60_000 + int64(sent.Len()), Value: float64(sent.Len()),
		}}
		return sent.Report(t.Context(), p, batch)
	}
	_, err := next()
	require.NoError(t, err)

	filler := filepath.Join(dir, "filler")
	fill(t, filler)
	r, err := next()
	require.ErrorContains(t, err, "disk full")
	assert.Equal(t, 503, r.Code)
	seconds, err := strconv.Atoi(r.Header.Get("Retry-After"))
	require.NoError(t, err)
	assert.Positive(t, seconds)
	for range 20 { // it stays that way, and nothing breaks
		r, err = next()
		require.Error(t, err)
		require.Equal(t, 503, r.Code)
	}
	require.NoError(t, sent.Raw(p), "reading goes on")
	r, err = p.Get("/-/healthy", nil)
	require.NoError(t, err)
	assert.Equal(t, 200, r.Code)

	require.NoError(t, os.Remove(filler))
	process.Eventually(t, "a report to be taken again", func() error {
		_, err := next()
		return err
	})
	require.NoError(t, sent.Raw(p))

	if restart != nil {
		// Killed on a full disk, it is there again as soon as there is room.
		fill(t, filler)
		p.Kill()
		p = restart()
		require.NoError(t, os.Remove(filler))
		p.Ready()
		require.NoError(t, sent.Raw(p))
		process.Eventually(t, "a report to be taken again", func() error {
			_, err := next()
			return err
		})
	}
	p.Stop()
}

// fill writes until there is no byte left.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for chunk := make([]byte, 1<<20); len(chunk) > 0; {
		if _, err := f.Write(chunk); err != nil {
			require.ErrorIs(t, err, syscall.ENOSPC)
			chunk = chunk[:len(chunk)/2]
		}
	}
}

// serveOnSmallDisk starts a server on a file system of 48 MB, by whichever of three
// ways this machine permits. dir is where the test sees it; restart is nil where the file
// system ends with the process.
func serveOnSmallDisk(t *testing.T) (p *process.Process, dir string, restart func() *process.Process) {
	t.Helper()
	dir = t.TempDir()
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=48m")
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, 0)) })
		return serve(t, filepath.Join(dir, "data")), dir, startIn(t, dir)
	}
	t.Logf("NOTE: no tmpfs can be mounted here (%v); trying a user namespace", err)

	if unshare, lookErr := exec.LookPath("unshare"); lookErr == nil {
		mount := `mount -t tmpfs -o size=48m tmpfs "$0" && exec "$@"`
		inside := append([]string{"--user", "--map-root-user", "--mount", "sh", "-c", mount, dir, binary}, serveArgs(filepath.Join(dir, "data"))...)
		probe, err := exec.CommandContext(t.Context(), unshare, "--user", "--map-root-user", "--mount", "sh", "-c", mount, dir, "true").CombinedOutput()
		if err == nil {
			p = process.Start(t, exec.CommandContext(t.Context(), unshare, inside...))
			p.Ready()
			return p, filepath.Join("/proc", strconv.Itoa(p.Cmd.Process.Pid), "root", dir), nil
		}
		t.Logf("NOTE: no user namespace either (%v: %s); trying /dev/shm", err, probe)
	}

	// A container's /dev/shm is small, and its own.
	const most = 256 << 20
	var shm syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &shm); err != nil || int64(shm.Blocks)*shm.Bsize > most {
		t.Log("NOTE: THE FULL DISK WAS NOT TESTED WITH A REAL ONE. That nothing is accepted, and nothing " +
			"acknowledged is lost, is also tested on a simulated disk, in internal/storage/pebble.")
		t.Skip("no small file system on this machine: " + fmt.Sprint(err))
	}
	dir, err = os.MkdirTemp("/dev/shm", "quern-") //nolint:usetesting // it must lie on this file system
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return serve(t, filepath.Join(dir, "data")), dir, startIn(t, dir)
}

func startIn(t *testing.T, dir string) func() *process.Process {
	return func() *process.Process { return start(t, serveArgs(filepath.Join(dir, "data"))...) }
}
