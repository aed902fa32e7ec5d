//go:build !unix

package pebble

import "io/fs"

// allocated returns the size of a file. This system does not say how much of the disk the file
// takes.
func allocated(info fs.FileInfo) int64 { return info.Size() }
