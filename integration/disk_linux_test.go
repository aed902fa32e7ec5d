package integration

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fill writes until no byte is free.
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

// smallDisk returns a file system of the given size, in MB, in the first of three ways that this
// machine permits. If none works, it logs that and returns nil.
func smallDisk(t *testing.T, megabytes int) *disk {
	t.Helper()
	dir, size := t.TempDir(), fmt.Sprintf("size=%dm", megabytes)
	err := syscall.Mount("tmpfs", dir, "tmpfs", 0, size)
	if err == nil {
		t.Cleanup(func() { assert.NoError(t, syscall.Unmount(dir, 0)) })
		return &disk{dir: dir, inside: dir}
	}
	t.Logf("NOTE: no tmpfs can be mounted here (%v); trying a user namespace", err)

	// A process that waits for the test's end keeps the namespace in which servers start.
	const mount = `mount -t tmpfs -o "$0" tmpfs "$1" && echo && exec cat`
	keeper := exec.CommandContext(t.Context(), "unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, size, dir)
	var stderr bytes.Buffer
	keeper.Stderr = &stderr
	in, err := keeper.StdinPipe()
	require.NoError(t, err)
	out, err := keeper.StdoutPipe()
	require.NoError(t, err)
	if err = keeper.Start(); err == nil {
		t.Cleanup(func() { _, _ = in.Close(), keeper.Wait() })
		if _, err = out.Read(make([]byte, 1)); err == nil {
			pid := strconv.Itoa(keeper.Process.Pid)
			return &disk{
				dir: filepath.Join("/proc", pid, "root", dir), inside: dir,
				enter: []string{"nsenter", "--target", pid, "--user", "--mount", "--preserve-credentials"},
			}
		}
	}
	t.Logf("NOTE: no user namespace either (%v: %s); trying /dev/shm", err, &stderr)

	// A container has a small /dev/shm of its own.
	const most = 256 << 20
	var shm syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &shm); err != nil || int64(shm.Blocks)*shm.Bsize > most {
		t.Log("NOTE: THE FULL DISK IS NOT TESTED WITH A REAL ONE. That nothing is accepted, and nothing " +
			"acknowledged is lost, is also tested on a simulated disk, in internal/storage/pebble.")
		return nil
	}
	dir, err = os.MkdirTemp("/dev/shm", "quern-") //nolint:usetesting // it must lie on this file system
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	return &disk{dir: dir, inside: dir}
}
