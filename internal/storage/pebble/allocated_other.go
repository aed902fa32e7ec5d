//go:build !unix

package pebble

import "io/fs"

// allocated is what a file takes on the disk, as far as is known.
func allocated(info fs.FileInfo) int64 { return info.Size() }
