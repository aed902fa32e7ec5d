//go:build unix

package program

import "syscall"

// keepPrivate has the process make files and directories for its user only: they hold data. Modes in the code are not
// enough, because Pebble makes its files readable for all.
func keepPrivate() { syscall.Umask(0o077) }
