package adaptor

import (
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

// unzipped is what is in a file of gzip. It is read front to back: to go back far, it begins again.
type unzipped struct {
	*os.File
	in *gzip.Reader
	// last are the bytes before end, which is how far it was read.
	last []byte
	end  int64
}

// ReadAt implements io.ReaderAt.
func (u *unzipped) ReadAt(p []byte, at int64) (n int, err error) {
	if u.in == nil || at < u.end-int64(len(u.last)) {
		if _, err := u.Seek(0, io.SeekStart); err != nil {
			return 0, err
		}
		if u.in, err = gzip.NewReader(u.File); err != nil {
			return 0, err
		}
		u.last, u.end = nil, 0
	}
	if at > u.end {
		skipped, err := io.CopyN(io.Discard, u.in, at-u.end)
		if u.last, u.end = nil, u.end+skipped; err != nil {
			return 0, err
		}
	}
	n = copy(p, u.last[int64(len(u.last))-(u.end-at):])
	if n == len(p) {
		return n, nil
	}
	for err == nil && n < len(p) {
		var m int
		m, err = u.in.Read(p[n:])
		n += m
	}
	u.last, u.end = append(u.last[:0], p[:n]...), at+int64(n)
	return n, err
}
