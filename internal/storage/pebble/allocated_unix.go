//go:build unix

package pebble

import (
	"io/fs"
	"syscall"
)

// statBlockBytes is the unit of st_blocks, whatever the block size of the file system.
const statBlockBytes = 512

// allocated returns the space that a file takes on disk, including what is preallocated beyond its
// end.
func allocated(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(s.Blocks) * statBlockBytes //nolint:unconvert // not on every system
	}
	return info.Size()
}
