//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package transfer

import (
	"errors"
	"os"
	"syscall"
)

// lock locks a file for as long as it is open, and returns false if another process holds the lock.
// It succeeds where the file system has no locks.
func lock(f *os.File) bool {
	return !errors.Is(syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB), syscall.EWOULDBLOCK)
}
