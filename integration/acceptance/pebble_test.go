package acceptance

import (
	"log/slog"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
)

func openPebble(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	return openPebbleOn(t, vfs.NewMem(), s, r, clk)
}

func openPebbleOn(t testing.TB, fs vfs.FS, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	return openPebbleAt(t, fs, "data", s, r, clk)
}

func openPebbleAt(t testing.TB, fs vfs.FS, dir string, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	return func() storage.Store {
		store, err := pebble.Open(dir, pebble.Options{
			Settings: s, Policy: storage.Policy{Retention: r}.Always, Clock: clk, FS: fs, Logger: slog.New(slog.DiscardHandler),
			// A test opens hundreds of stores.
			CacheBytes: 1 << 20, MemTableBytes: 1 << 20, ReserveBytes: 1,
		})
		require.NoError(t, err)
		return store
	}
}

func TestPebble(t *testing.T) { Run(t, Backend{Open: openPebble}) }
