package cassandratest

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// TestFetchOnce asks for the jars concurrently. The file lock works between goroutines as between
// processes, since each opens the file itself.
func TestFetchOnce(t *testing.T) {
	if !processesWork {
		t.Skip("where there are no nodes as processes")
	}
	dir := filepath.Join(t.TempDir(), "cache", "cassandra-5.0")
	jar := func(into string) error {
		return os.WriteFile(filepath.Join(into, "cassandra-all-5.0.jar"), nil, 0o644)
	}

	failure := errors.New("no network")
	require.ErrorIs(t, fetchOnce(dir, func(into string) error {
		require.NoError(t, jar(into))
		return failure
	}), failure)
	require.NoDirExists(t, dir, "what was fetched in part")
	require.Error(t, fetchOnce(dir, func(string) error { return nil }), "nothing was fetched")

	fetched := 0 // guarded by the file lock
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			err := fetchOnce(dir, func(into string) error {
				fetched++
				return jar(into)
			})
			return errors.Join(err, statJar(dir))
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, 1, fetched)

	left, err := filepath.Glob(dir + ".fetching-*")
	require.NoError(t, err)
	require.Empty(t, left)
}

func statJar(dir string) error {
	_, err := os.Stat(filepath.Join(dir, "cassandra-all-5.0.jar"))
	return err
}

func TestPOM(t *testing.T) {
	file, version, err := findPOM()
	require.NoError(t, err)
	require.FileExists(t, file)
	require.Regexp(t, `^5\.0\.\d+$`, version)

	_, err = cassandraVersion([]byte(`<project/>`))
	require.Error(t, err)
}
