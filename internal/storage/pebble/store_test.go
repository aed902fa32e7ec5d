package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformanceOnDisk(t *testing.T) { runConformance(t, nil) }

func TestConformanceInMemory(t *testing.T) {
	runConformance(t, func() vfs.FS { return vfs.NewMem() })
}

func runConformance(t *testing.T, newFS func() vfs.FS) {
	storagetest.Run(t, func(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
		opts := Options{Settings: s, Retention: r, Clock: clk, Logger: quiet()}
		dir := t.TempDir()
		if newFS != nil {
			opts.FS, dir = newFS(), "/data"
		}
		var st *Store
		start := func() storage.Store {
			var err error
			st, err = Open(dir, opts)
			require.NoError(t, err)
			return st
		}
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		return start(), func() storage.Store {
			require.NoError(t, st.Close())
			return start()
		}
	})
}
