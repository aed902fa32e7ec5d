package wholefile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// TestPrivateDirectory: other users of the machine cannot enter a directory that was made.
func TestPrivateDirectory(t *testing.T) {
	above := filepath.Join(t.TempDir(), "a")
	for range 2 { // the second time it is there
		require.NoError(t, MakeDir(vfs.Default, filepath.Join(above, "b")))
		for _, dir := range []string{above, filepath.Join(above, "b")} {
			info, err := os.Stat(dir)
			require.NoError(t, err)
			require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), dir)
		}
	}
}
