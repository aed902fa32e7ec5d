package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformanceOnDisk(t *testing.T) {
	storagetest.Run(t, openerOf(Options{}, func(t *testing.T) (vfs.FS, string) { return vfs.Default, t.TempDir() }))
}

func TestConformanceInMemory(t *testing.T) {
	storagetest.Run(t, memStore(Options{}))
}

// TestConformanceOfSmallMemtables has most of what is read come from tables.
func TestConformanceOfSmallMemtables(t *testing.T) {
	storagetest.Run(t, memStore(Options{MemTableBytes: 64 << 10, CacheBytes: 256 << 10}))
}
