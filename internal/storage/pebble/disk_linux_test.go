package pebble

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/quern/quern/internal/storage"
)

// TestDiskFullOfTmpfs is TestDiskFull on a real file system of 32 MB. Where a test may
// not mount one, TestDiskFull stands for it.
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
