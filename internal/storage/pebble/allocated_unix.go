//go:build unix

package pebble

import (
	"io/fs"
	"syscall"
)

// statBlockBytes is the unit of st_blocks, whatever the file system's blocks are.
const statBlockBytes = 512

// allocated is what a file takes on the disk: also what was set aside for it beyond its end.
func allocated(info fs.FileInfo) int64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int64(s.Blocks) * statBlockBytes //nolint:unconvert // not on every system
	}
	return info.Size()
}
