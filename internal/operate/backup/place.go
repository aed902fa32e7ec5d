package backup

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/quern/quern/internal/storage/durable"
)

// Place is where backups are.
type Place struct {
	files
	Name string
}

// Open returns the place with a name: a directory, or s3://BUCKET/PREFIX.
func Open(name string) (*Place, error) {
	if in, ok := strings.CutPrefix(name, "s3://"); ok {
		b, err := openBucket(in)
		return &Place{b, name}, err
	}
	return &Place{directory(name), name}, nil
}

// files have names FOLDER/NAME. Errors name the place and the file.
type files interface {
	// put stores a file as a whole, or not at all.
	put(ctx context.Context, name string, from io.Reader, size int64) error
	get(ctx context.Context, name string) (io.ReadCloser, error)
	// list returns the files of a folder with their sizes in bytes.
	list(ctx context.Context, folder string) (map[string]int64, error)
	delete(ctx context.Context, name string) error
}

// directory is on this machine. One that does not exist may be a disk that is not mounted.
type directory string

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

func (d directory) put(_ context.Context, name string, from io.Reader, _ int64) error {
	if err := os.Mkdir(filepath.Dir(d.path(name)), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := durable.Write(d.path(name)+".part", from); err != nil {
		return err
	}
	return durable.Rename(d.path(name)+".part", d.path(name))
}

func (d directory) get(_ context.Context, name string) (io.ReadCloser, error) {
	return os.Open(d.path(name))
}

func (d directory) list(_ context.Context, folder string) (map[string]int64, error) {
	entries, err := os.ReadDir(d.path(folder))
	if errors.Is(err, fs.ErrNotExist) {
		_, err = os.Stat(string(d))
	}
	sizes := make(map[string]int64, len(entries))
	for _, e := range entries {
		if info, err := e.Info(); err == nil { // otherwise it has just been deleted
			sizes[e.Name()] = info.Size()
		}
	}
	return sizes, err
}

func (d directory) delete(_ context.Context, name string) error { return os.Remove(d.path(name)) }
