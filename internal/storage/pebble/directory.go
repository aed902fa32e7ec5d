package pebble

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"

	"github.com/quern/quern/internal/storage"
)

// Pebble accepts any directory: without a manifest marker it makes a new database and deletes the
// files that the new database does not name. So Open examines a directory first, without writing to
// it, and refuses it unless it is empty or holds a store of Quern's. The rest is Pebble's: it refuses
// a directory without one of the tables that the manifest names, or with one of another length, and
// checks each record of a log and each block of a table by its checksum. Nothing says which logs there were,
// so Open refuses only a directory without any; see ADR 20.

const (
	lockName       = "LOCK"
	manifestPrefix = "MANIFEST-"
	firstManifest  = manifestPrefix + "000001"
	markerPrefix   = "marker."
	manifestMarker = "manifest"
	versionMarker  = "format-version"
	tableSuffix    = ".sst"
	blobSuffix     = ".blob"
	logSuffix      = ".log"
	// maxNamed is the maximum number of files that an error names.
	maxNamed = 5
)

// listDirectory returns the sorted names in dir, none if dir does not exist.
func listDirectory(dir string, files vfs.FS) ([]string, error) {
	names, err := files.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("data directory %s: %w", dir, err)
	}
	slices.Sort(names)
	return names, nil
}

func hasMarker(names []string, marker string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, markerPrefix+marker+".") })
}

func isLog(name string) bool { return strings.HasSuffix(name, logSuffix) }

// claimDirectory reports whether dir holds a store. An empty directory holds none; any other
// content is an error.
func claimDirectory(dir string, files vfs.FS) (exists bool, err error) {
	names, err := listDirectory(dir, files)
	if err != nil {
		return false, err
	}
	if hasMarker(names, manifestMarker) {
		return true, nil
	}
	others := slices.DeleteFunc(names, func(name string) bool { return isTolerated(dir, name, files) })
	if len(others) == 0 {
		return false, nil
	}
	if slices.ContainsFunc(others, func(name string) bool { return strings.HasPrefix(name, markerPrefix) || path.Ext(name) == tableSuffix }) {
		return false, incomplete(dir, fmt.Errorf("it has %s but no file %s%s.…, which says which files belong to the store", someNames(others), markerPrefix, manifestMarker))
	}
	return false, fmt.Errorf("data directory %s holds no store, but other files: %s: choose an empty directory or one that does not exist yet; "+
		"nothing in it was changed", dir, someNames(others))
}

// isTolerated reports whether a new store may be made beside a file. It tolerates what a file
// system or the interrupted making of a store leaves behind, and stores in directories of their own.
func isTolerated(dir, name string, files vfs.FS) bool {
	full := files.PathJoin(dir, name)
	info, err := files.Stat(full)
	switch {
	case err != nil:
		return false
	case !info.IsDir():
		return name == lockName && info.Size() == 0 || name == firstManifest
	case name == "lost+found":
		return true
	}
	within, err := listDirectory(full, files)
	return err == nil && hasMarker(within, manifestMarker)
}

func someNames(names []string) string {
	if more := len(names) - maxNamed; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// examine inspects the store's directory without writing to it. exists is false if the store, or
// the rest of it, still has to be made.
func (s *Store) examine(opts *Options) (exists bool, err error) {
	if err := checkFormatVersion(s.dir, opts.FS); err != nil {
		return false, err
	}
	names, err := listDirectory(s.dir, opts.FS)
	if err != nil || !hasMarker(names, manifestMarker) {
		return false, err
	}
	// Pebble makes the first log before this marker. See guardedFS.Remove for the later ones.
	if hasMarker(names, versionMarker) && !slices.ContainsFunc(names, isLog) {
		return false, incomplete(s.dir, fmt.Errorf("it has no *%s, which hold what was written last", logSuffix))
	}
	if err := s.openReadOnly(opts); err != nil {
		return false, err
	}
	var first []byte
	err = s.run("check", func() error {
		settings, err := s.get(metaKey(metaSettings))
		if exists = settings != nil; err == nil && !exists {
			first, err = s.firstKey([]byte{0}, []byte{math.MaxUint8})
		}
		return err
	})
	if err = errors.Join(err, s.closeDB()); err == nil && first != nil {
		err = fmt.Errorf("data directory %s holds a Pebble database without Quern's settings: choose an empty directory, or restore this one from a backup; "+
			"nothing in it was changed", s.dir)
	}
	return exists, err
}

// checkFormatVersion returns an error if a newer version wrote the files.
func checkFormatVersion(dir string, files vfs.FS) error {
	value, err := atomicfs.ReadMarker(files, dir, versionMarker)
	if err != nil || value == "" {
		return nil //nolint:nilerr // it is Pebble's to say
	}
	if n, err := strconv.ParseUint(value, 10, 64); err == nil && lsm.FormatMajorVersion(n) > formatVersion {
		return fmt.Errorf("%w: the store in %s was written by a newer version of Quern: its files are of version %d, this program knows %d: "+
			"start the newer one", storage.ErrSettings, dir, n, formatVersion)
	}
	return nil
}

// openReadOnly opens the database without writing.
func (s *Store) openReadOnly(opts *Options) error {
	err := s.run("open", func() (err error) {
		p := s.pebbleOptions(opts)
		s.readerOptions = p.MakeReaderOptions()
		p.FS, p.ReadOnly, p.CacheSize = opts.FS, true, min(opts.CacheBytes, 8<<20)
		s.db, err = lsm.Open(s.dir, p)
		return err
	})
	var errno syscall.Errno
	switch {
	case err == nil:
		return nil
	case errors.Is(err, lsm.ErrDBNotPristine):
		return incomplete(s.dir, fmt.Errorf("there is no file %s%s.…", markerPrefix, versionMarker))
	case errors.As(err, &errno) && errno != syscall.ENOENT || errors.Is(err, storage.ErrUnavailable):
		return fmt.Errorf("data directory %s: %w", s.dir, err)
	}
	return incomplete(s.dir, err)
}

// incomplete returns the error for a directory with missing or damaged files. Pebble's error may have a line for each.
func incomplete(dir string, err error) error {
	if lines := strings.Split(err.Error(), "\n"); len(lines) > 1 {
		err = fmt.Errorf("%s, and %d more like it", lines[0], len(lines)-1)
	}
	return damage{fmt.Errorf("the store in %s is incomplete: %w; nothing in the directory was changed: "+
		"restore the directory from a backup", dir, err)}
}
