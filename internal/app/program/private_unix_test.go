//go:build unix

package program

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// writesTo has the tests' own program run as one of Quern's, which writes to that directory.
const writesTo = "PROGRAM_TEST_WRITES_TO"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writesTo); dir != "" {
		Main(&cli.App{Name: "writer", Action: func(*cli.Context) error {
			if err := os.Mkdir(filepath.Join(dir, "dir"), 0o777); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(dir, "file"), nil, 0o666)
		}})
	}
	os.Exit(m.Run())
}

// TestPrivateFiles: what a program makes is for its user only, whatever mode the maker asks for.
func TestPrivateFiles(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), writesTo+"="+dir)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	for name, want := range map[string]os.FileMode{"dir": 0o700, "file": 0o600} {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, info.Mode().Perm(), name)
	}
}
