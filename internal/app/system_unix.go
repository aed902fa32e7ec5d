//go:build unix

package app

import "syscall"

// mayOpen returns how many files this process may open, 0 if that is not known. Go's runtime has raised the soft limit
// to the hard one.
func mayOpen() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on some systems
}
