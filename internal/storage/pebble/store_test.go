package pebble

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/storage/storagetest"
)

func TestConformanceOnDisk(t *testing.T) {
	noLeaks(t)
	storagetest.Run(t, openerOf(Options{}, func(t *testing.T) (vfs.FS, string) { return vfs.Default, t.TempDir() }))
}

func TestConformanceInMemory(t *testing.T) {
	noLeaks(t)
	storagetest.Run(t, memStore(Options{}))
}

// TestConformanceOfSmallMemtables runs the suite with memtables so small that most reads come from
// tables.
func TestConformanceOfSmallMemtables(t *testing.T) {
	noLeaks(t)
	storagetest.Run(t, memStore(Options{MemTableBytes: 64 << 10, CacheBytes: 256 << 10}))
}
