package adaptor

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/klauspost/compress/gzip"
)

// content is what is in a file.
type content interface {
	io.ReaderAt
	io.Closer
	// Stat describes the file, as it is on the disk.
	Stat() (fs.FileInfo, error)
}

// zipped reports whether a file is one of gzip.
func zipped(path string) bool { return strings.HasSuffix(path, ".gz") }

// written reports whether gzip has written all of a file: it removes the original then.
func written(path string) bool {
	_, err := os.Lstat(strings.TrimSuffix(path, ".gz"))
	return err != nil
}

// identity returns the device and the inode of a file, which its streams are called by.
func identity(info fs.FileInfo) string {
	st := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%x:%x", st.Dev, st.Ino)
}

// open opens a file of an identity.
func open(path, id string) (content, error) {
	// Without the flag, opening a FIFO that has taken its place would wait for a writer.
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || identity(info) != id) {
		err = fmt.Errorf("%s: another file has just taken its place", path)
	}
	if err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	if zipped(path) {
		return &unzipped{File: f}, nil
	}
	return f, nil
}

// unzipped is what is in a file of gzip. It is read front to back: to go back, it begins again.
type unzipped struct {
	*os.File
	in    *gzip.Reader // nil before the first reading
	ahead bytes.Buffer // what was read from in, and begins at the offset next
	next  int64
}

// ReadAt implements io.ReaderAt. Whoever reads on may begin where the last reading began, not only behind it.
func (u *unzipped) ReadAt(p []byte, at int64) (n int, err error) {
	if u.in == nil || at < u.next {
		if _, err := u.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		if u.in, err = gzip.NewReader(u.File); err != nil {
			return 0, err
		}
		u.ahead.Reset()
		u.next = 0
	}
	skipped, err := io.CopyN(io.Discard, io.MultiReader(&u.ahead, u.in), at-u.next)
	if u.next += skipped; err != nil {
		return 0, err
	}
	_, err = io.CopyN(&u.ahead, u.in, int64(len(p)-u.ahead.Len()))
	return copy(p, u.ahead.Bytes()), err
}
