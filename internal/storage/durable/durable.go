// Package durable writes files that a crash neither loses nor cuts off.
package durable

import (
	"errors"
	"io"
	"os"
	"path/filepath"
)

// Write writes a file, or removes it. When it returns, the content is on the disk; the name is once Rename or Names has
// returned.
func Write(path string, from io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err = io.Copy(f, from); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(path)
	}
	return err
}

// Rename gives a file or a directory a name, in place of a file that has it. When it returns, the name is on the disk.
func Rename(from, to string) error {
	if err := os.Rename(from, to); err != nil {
		return err
	}
	return Names(filepath.Dir(to))
}

// Names puts the names in a directory on the disk.
func Names(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
