// Package wholefile keeps a small file that is always replaced as a whole, so that a reader finds one
// generation of it or another, and never a mix. It holds one line that describes the rest, and the rest:
//
//	quern-checkpoint 1 crc32c=89abcdef bytes=123\n
//	{ ... }
//
// The line has the kind of the file, the version of its format, and the checksum (CRC-32C) and length of
// what follows it.
//
// Replacing has four steps, and a crash after any of them leaves a whole generation:
//
//  1. Write NAME.new and sync it.
//  2. Rename NAME to NAME.old, unless NAME is damaged: then NAME.old is the only whole generation.
//  3. Rename NAME.new to NAME.
//  4. Sync the directory.
package wholefile

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// maxBytes bounds what Load reads. A file of 10,000 streams has about 2 MB.
const maxBytes = 64 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	// ErrDamaged says that neither the file nor its previous generation is whole.
	ErrDamaged = errors.New("damaged")
	// ErrVersion says that a newer program wrote the file.
	ErrVersion = errors.New("unknown format version")
)

// File is one such file. It is not safe for use by several goroutines at once.
type File struct {
	fs            vfs.FS
	dir, path     string
	kind          string
	version       int
	damagedOnDisk bool
}

// New returns the file NAME in dir, which must exist. kind is the first word of the file; version is the
// format of what the file holds. New does no I/O.
func New(fsys vfs.FS, dir, name, kind string, version int) *File {
	return &File{fs: fsys, dir: dir, path: fsys.PathJoin(dir, name), kind: kind, version: version}
}

// Path returns the file's path.
func (f *File) Path() string { return f.path }

// Load hands what the last Replace wrote to check, which decodes it. check is not called if nothing was ever
// written. A generation for which check returns Damaged counts as damaged.
//
// If the file is missing or damaged and its previous generation is whole, Load hands that one to check, and
// returns a warning that says so. err wraps ErrDamaged if no generation is whole. It wraps ErrVersion if the
// file has another version: then the previous generation is not used, as it would undo what the newer program
// did.
func (f *File) Load(check func(data []byte) error) (warning, err error) {
	f.damagedOnDisk = false
	data, problem := f.read(f.path)
	if problem == nil {
		problem = check(data)
	}
	switch {
	case problem == nil:
		return nil, nil
	case errors.Is(problem, ErrVersion):
		return nil, problem
	case !errors.Is(problem, fs.ErrNotExist) && !errors.Is(problem, ErrDamaged):
		return nil, problem // such as a missing right: the file may be whole
	}
	f.damagedOnDisk = errors.Is(problem, ErrDamaged)
	old, oldProblem := f.read(f.path + ".old")
	if oldProblem == nil {
		oldProblem = check(old)
	}
	switch {
	case oldProblem == nil:
		return fmt.Errorf("%w; the previous generation, %s.old, is used", problem, f.path), nil
	case errors.Is(oldProblem, fs.ErrNotExist) && !f.damagedOnDisk:
		return nil, nil
	case errors.Is(oldProblem, fs.ErrNotExist):
		return nil, problem
	default:
		return nil, fmt.Errorf("%w; the previous generation: %w", problem, oldProblem)
	}
}

// Damaged returns an error that wraps ErrDamaged, for a check that refuses contents.
func (f *File) Damaged(format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", f.path, ErrDamaged, fmt.Sprintf(format, args...))
}

// Replace makes data the contents of the file. When it returns nil, they are durable. After an error the
// file has the old contents, or data.
func (f *File) Replace(data []byte) error {
	head := fmt.Sprintf("%s %d crc32c=%08x bytes=%d\n", f.kind, f.version, crc32.Checksum(data, castagnoli), len(data))
	if err := f.write(f.path+".new", append([]byte(head), data...)); err != nil {
		return err
	}
	if !f.damagedOnDisk {
		if err := f.fs.Rename(f.path, f.path+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := f.fs.Rename(f.path+".new", f.path); err != nil {
		return err
	}
	f.damagedOnDisk = false
	return SyncDir(f.fs, f.dir)
}

// MakeDir creates a directory and those above it, for this user only, and makes its name durable.
func MakeDir(fsys vfs.FS, path string) error {
	if err := fsys.MkdirAll(path, 0o700); err != nil {
		return err
	}
	return SyncDir(fsys, fsys.PathDir(path))
}

// SyncDir makes the names in a directory durable.
func SyncDir(fsys vfs.FS, path string) error {
	dir, err := fsys.OpenDir(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func (f *File) write(path string, data []byte) error {
	file, err := f.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	if _, err := file.Write(data); err != nil {
		return errors.Join(err, file.Close())
	}
	return errors.Join(file.Sync(), file.Close())
}

func (f *File) read(path string) ([]byte, error) {
	file, err := f.fs.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	all, err := io.ReadAll(io.LimitReader(file, maxBytes+1))
	if err != nil {
		return nil, err
	}
	damaged := func(what string) error { return fmt.Errorf("%s: %w: %s", path, ErrDamaged, what) }
	if len(all) > maxBytes {
		return nil, damaged(fmt.Sprintf("it is larger than %d bytes", maxBytes))
	}
	line, data, ok := bytes.Cut(all, []byte("\n"))
	if !ok {
		return nil, damaged("its first line is not whole")
	}
	var (
		kind    string
		version int
		sum     uint32
		length  int
	)
	if n, _ := fmt.Sscanf(string(line), "%s %d", &kind, &version); n != 2 || kind != f.kind {
		return nil, damaged(fmt.Sprintf("its first line does not begin with %s and a version", f.kind))
	}
	if version != f.version {
		return nil, fmt.Errorf("%s: %w: it has version %d, and this program knows %d: use the program that wrote it", path, ErrVersion, version, f.version)
	}
	if n, _ := fmt.Sscanf(string(line), "%s %d crc32c=%x bytes=%d", &kind, &version, &sum, &length); n != 4 {
		return nil, damaged("its first line has no checksum and length")
	}
	if length != len(data) {
		return nil, damaged(fmt.Sprintf("it has %d bytes instead of %d", len(data), length))
	}
	if crc32.Checksum(data, castagnoli) != sum {
		return nil, damaged("its checksum does not match")
	}
	return data, nil
}
