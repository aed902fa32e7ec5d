//go:build unix

package app

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPrivateDataDir: a locked server does not start where other users of the machine could read the key that signs
// logins. It says what cures that, and changes nothing.
func TestPrivateDataDir(t *testing.T) {
	s, _ := lockedServer(t, servesTLS)
	dir := filepath.Join(t.TempDir(), "data")
	s.cfg.DataDir = dir
	require.NoError(t, s.checkDataDir(), "made by the store")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.NoError(t, s.checkDataDir())
	// Without the check the server would not start here either, but say something else.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "note"), nil, 0o600))
	for _, mode := range []os.FileMode{0o755, 0o750, 0o711, 0o701} {
		require.NoError(t, os.Chmod(dir, mode))
		err := Serve(t.Context(), s.cfg, io.Discard, io.Discard)
		require.ErrorContains(t, err, fmt.Sprintf("data directory %s has the mode %#o and belongs to user %d: other users", dir, mode, os.Geteuid()))
		require.ErrorContains(t, err, "run `chmod 700 "+dir+"`")
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, mode, info.Mode().Perm())
	}

	open := testServer(t)
	open.cfg.DataDir = dir
	require.NoError(t, open.checkDataDir(), "everybody on the machine may do everything anyway")
	s.cfg.Store = "cassandra"
	require.NoError(t, s.checkDataDir())
}

// TestDataDirOfAnother: who owns the directory can enter it, whatever its mode.
func TestDataDirOfAnother(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(dir, 0o700))
	require.ErrorContains(t, checkPrivate(dir, os.Geteuid()+1), "&& chmod 700 "+dir+"`")
	require.NoError(t, checkPrivate(dir, 0), "root's files are private")
}
