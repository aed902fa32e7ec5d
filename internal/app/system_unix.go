//go:build unix

package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// checkPrivate returns an error if other users of the machine than this one may enter or list a directory. A missing one
// is fine: the store makes it private. Root may use the directory of another user, who cannot read root's files in it.
func checkPrivate(dir string, user int) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("data directory %s: %w", dir, err)
	}
	mode, owner := info.Mode().Perm(), int(info.Sys().(*syscall.Stat_t).Uid)
	foreign := user != 0 && owner != user
	if mode&0o077 == 0 && !foreign {
		return nil
	}
	cure := "chmod 700 " + dir
	if foreign {
		cure = fmt.Sprintf("chown %d %s && %s", user, dir, cure)
	}
	return fmt.Errorf("data directory %s has the mode %#o and belongs to user %d: other users of this machine could read the key that "+
		"signs logins: run `%s`, and set StateDirectoryMode=0700 if a unit of systemd makes the directory", dir, mode, owner, cure)
}

// mayOpen returns how many files this process may open, 0 if that is not known. Go's runtime has raised the soft limit
// to the hard one.
func mayOpen() uint64 {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	return uint64(limit.Cur) //nolint:unconvert // it is signed on some systems
}
