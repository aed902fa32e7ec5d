package pebble

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
	"github.com/cockroachdb/pebble/v2/wal"

	"github.com/quern/quern/internal/storage"
)

// Pebble accepts any directory: without a manifest marker it makes a new database and deletes the
// files that the new database does not name. So Open examines a directory first, without writing to
// it, and refuses it unless it is empty or holds a whole store of Quern's.

const (
	lockName       = "LOCK"
	manifestPrefix = "MANIFEST-"
	optionsPrefix  = "OPTIONS-"
	markerPrefix   = "marker."
	manifestMarker = "manifest"
	versionMarker  = "format-version"
	tableSuffix    = ".sst"
	blobSuffix     = ".blob"
	logSuffix      = ".log"
	tempSuffix     = ".dbtmp"
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

// claimDirectory reports whether dir holds a store. An empty directory holds none; any other
// content is an error.
func claimDirectory(dir string, files vfs.FS) (exists bool, err error) {
	names, err := listDirectory(dir, files)
	if err != nil {
		return false, err
	}
	if slices.Contains(names, inventoryName) || hasMarker(names, manifestMarker) {
		return true, nil
	}
	others := slices.DeleteFunc(names, func(name string) bool { return isTolerated(dir, name, files) })
	if len(others) == 0 {
		return false, nil
	}
	if i := slices.IndexFunc(others, isDatabaseFile); i >= 0 {
		marker := markerPrefix + manifestMarker + ".…"
		if i := slices.IndexFunc(others, func(name string) bool { return strings.HasPrefix(name, manifestPrefix) }); i >= 0 {
			marker = fmt.Sprintf("empty file %s%s.000001.%s", markerPrefix, manifestMarker, others[i])
		}
		return false, damage{fmt.Errorf("data directory %s has %s but no %s, which says which files belong "+
			"to the store: restore the directory from a backup, or choose an empty one; nothing in it was changed",
			dir, someNames(others), marker)}
	}
	return false, fmt.Errorf("data directory %s holds no store, but other files: %s: choose an empty directory or one that does not exist yet; "+
		"nothing in it was changed", dir, someNames(others))
}

// isTolerated reports whether a new store may be made beside a file. It tolerates what a file
// system or an unfinished store leaves behind, and stores in directories of their own.
func isTolerated(dir, name string, files vfs.FS) bool {
	full := files.PathJoin(dir, name)
	info, err := files.Stat(full)
	if err != nil {
		return false
	}
	switch {
	case info.IsDir():
		if name == "lost+found" {
			return true
		}
		within, err := listDirectory(full, files)
		return err == nil && (slices.Contains(within, inventoryName) || hasMarker(within, manifestMarker))
	case name == lockName:
		return info.Size() == 0
	case name == ballastName:
		start := make([]byte, len(ballastText))
		f, err := files.Open(full)
		if err != nil {
			return false
		}
		n, _ := f.ReadAt(start, 0)
		return errors.Join(f.Close()) == nil && string(start[:n]) == ballastText[:n]
	}
	return name == inventoryNewName
}

// isDatabaseFile reports whether Pebble would take a file for one of its own.
func isDatabaseFile(name string) bool {
	if _, _, ok := wal.ParseLogFilename(name); ok {
		return true
	}
	for _, prefix := range []string{manifestPrefix, optionsPrefix, "temporary."} {
		if rest, ok := strings.CutPrefix(name, prefix); ok && isNumber(strings.TrimSuffix(rest, tempSuffix)) {
			return true
		}
	}
	stem, suffix := strings.TrimSuffix(name, path.Ext(name)), path.Ext(name)
	return strings.HasPrefix(name, markerPrefix) || (suffix == tableSuffix || suffix == blobSuffix) && isNumber(stem)
}

func isNumber(s string) bool {
	_, err := strconv.ParseUint(s, 10, 64)
	return err == nil
}

func someNames(names []string) string {
	if more := len(names) - maxNamed; more > 1 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNamed], ", "), more)
	}
	return strings.Join(names, ", ")
}

// directory describes the store's directory before the store is opened.
type directory struct {
	names     []string
	inventory inventoryContent
	// listed says that the inventory exists and that the last program that wrote to the store
	// maintained it.
	listed bool
}

// examine inspects the store's directory without writing to it, and fills the inventory with the
// store's files. exists is false if the store, or the rest of it, still has to be made.
func (s *Store) examine(opts *Options) (exists bool, err error) {
	d := directory{}
	if d.names, err = listDirectory(s.dir, opts.FS); err != nil {
		return false, err
	}
	content, whyNot := readInventory(s.dir, opts.FS)
	d.listed = whyNot == nil
	d.inventory = content
	if err := checkFormatVersion(s.dir, opts.FS); err != nil {
		return false, err
	}
	for _, name := range d.names {
		if strings.HasPrefix(name, markerPrefix) && !hasMarker([]string{name}, manifestMarker) && !hasMarker([]string{name}, versionMarker) {
			return false, s.notWhole(d.names, fmt.Errorf("%s does not belong to a store: move it away", name)) // Pebble opens no store beside such a file
		}
	}
	desc, err := lsm.Peek(s.dir, opts.FS)
	if err != nil {
		return false, s.notWhole(d.names, err)
	}
	if !desc.Exists {
		switch {
		case d.listed && !d.inventory.made:
			s.adopt(d.names, d.inventory) // creation was never finished
			return false, nil
		case slices.Contains(d.names, inventoryName):
			return false, s.notWhole(d.names, errors.New(d.lostMarker(manifestMarker)))
		}
		return false, nil
	}
	newestOptions := path.Base(desc.OptionsFilename)
	if d.listed && desc.OptionsFilename != "" && !d.owns(newestOptions) {
		d.listed, whyNot = false, fmt.Errorf("another version of Quern has written %s since", newestOptions)
	}
	if d.listed {
		if err := d.check(s.dir, opts.FS); err != nil {
			return false, s.notWhole(d.names, fmt.Errorf("%w, according to %s", err, inventoryName))
		}
	} else {
		d.inventory = d.surmise(s.dir, opts.FS, desc)
	}
	if err := d.checkForeign(); err != nil {
		return false, s.notWhole(d.names, err)
	}
	live, made, err := s.tryOpen(opts)
	switch {
	case errors.Is(err, lsm.ErrDBNotPristine):
		return false, s.notWhole(d.names, errors.New(d.lostMarker(versionMarker)))
	case err != nil:
		return false, s.notWhole(d.names, optionsDamage(desc.OptionsFilename, opts.FS, err))
	case !made && d.listed && d.inventory.made:
		return false, s.notWhole(d.names, errors.New("the store has no settings"))
	case !made && !d.listed:
		return false, fmt.Errorf("data directory %s holds a Pebble database that is not Quern's: choose an empty directory; "+
			"nothing in it was changed", s.dir)
	case !d.listed:
		s.log.Warn("the store has no inventory of its files; creating one", "dir", s.dir, "err", whyNot)
	}
	for _, name := range live {
		if _, ok := d.inventory.files[name]; !ok {
			d.inventory.files[name] = extent{}
		}
	}
	d.inventory.made = made
	s.adopt(d.names, d.inventory)
	return made, nil
}

func readFile(files vfs.FS, path string) ([]byte, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

func readInventory(dir string, files vfs.FS) (inventoryContent, error) {
	b, err := readFile(files, files.PathJoin(dir, inventoryName))
	if errors.Is(err, fs.ErrNotExist) {
		return inventoryContent{files: map[string]extent{}}, errors.New("there is no file " + inventoryName)
	}
	if err != nil {
		return inventoryContent{}, err
	}
	return decodeInventory(b)
}

// adopt puts those of the recorded files that exist into the inventory. It logs other files that
// look like a store's.
func (s *Store) adopt(names []string, content inventoryContent) {
	files := map[string]extent{}
	var foreign []string
	for _, name := range names {
		if e, ok := content.files[name]; ok {
			files[name] = e
		} else if isDatabaseFile(name) {
			foreign = append(foreign, name)
		}
	}
	if len(foreign) > 0 {
		s.log.Warn("the data directory has store files that do not belong to this store; they are left in place",
			"dir", s.dir, "files", someNames(foreign))
	}
	s.disk.inventory.made, s.disk.inventory.files = content.made, files
}

// owns reports whether a file is in the inventory.
func (d *directory) owns(name string) bool {
	_, ok := d.inventory.files[name]
	return ok
}

// check compares the logs and manifests with the inventory.
func (d *directory) check(dir string, files vfs.FS) error {
	for name, want := range d.inventory.files {
		if want.bytes == 0 {
			continue
		}
		got, err := extentOf(files, files.PathJoin(dir, name), want.bytes)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("%s is missing; it had %d bytes", name, want.bytes)
		case err != nil:
			return err
		case got.bytes < want.bytes:
			return fmt.Errorf("%s has %d bytes of the %d that were written and synced", name, got.bytes, want.bytes)
		case got != want:
			return fmt.Errorf("%s does not hold what was written and synced", name)
		}
	}
	return nil
}

// checkForeign rejects a directory with logs or markers that are not the store's but that Pebble
// would read.
func (d *directory) checkForeign() error {
	oldest := ^wal.NumWAL(0)
	for name := range d.inventory.files {
		if n, _, ok := wal.ParseLogFilename(name); ok {
			oldest = min(oldest, n)
		}
	}
	for _, name := range d.names {
		if n, _, ok := wal.ParseLogFilename(name); ok && !d.owns(name) && n > oldest {
			return fmt.Errorf("%s does not belong to this store, but would be read as its log: move it away", name)
		}
		if strings.HasPrefix(name, markerPrefix) && !d.owns(name) {
			return fmt.Errorf("%s does not belong to this store, but would be read as its marker: move it away", name)
		}
	}
	return nil
}

// lostMarker says which file to put back when the marker of this name is missing.
func (d *directory) lostMarker(marker string) string {
	var last string
	for name := range d.inventory.files {
		if strings.HasPrefix(name, markerPrefix+marker+".") {
			last = max(last, name)
		}
	}
	if last == "" {
		return fmt.Sprintf("there is no file %s%s.…", markerPrefix, marker)
	}
	return fmt.Sprintf("the empty file %s is missing", last)
}

// surmise reconstructs the inventory of a store that has none: an older version made the store, or
// the inventory was lost. It leaves out tables and manifests that the database does not name: they
// may belong to somebody else.
func (d *directory) surmise(dir string, files vfs.FS, desc *lsm.DBDesc) inventoryContent {
	content := inventoryContent{files: map[string]extent{path.Base(desc.ManifestFilename): {}, path.Base(desc.OptionsFilename): {}}}
	begun := begunLogs(dir, files)
	for _, name := range d.names {
		n, _, isLog := wal.ParseLogFilename(name)
		if strings.HasPrefix(name, markerPrefix) || isLog && begun[n] {
			content.files[name] = extent{}
		}
	}
	return content
}

// begunLogs returns the logs that are empty or begin with a valid record of the log with their
// number.
func begunLogs(dir string, files vfs.FS) map[wal.NumWAL]bool {
	begun := map[wal.NumWAL]bool{}
	logs, err := wal.Scan(wal.Dir{FS: files, Dirname: dir})
	if err != nil {
		return begun
	}
	for _, l := range logs {
		size, err := l.PhysicalSize()
		r := l.OpenForRead()
		_, _, readErr := r.NextRecord()
		begun[l.Num] = errors.Join(err, r.Close()) == nil && (size == 0 || readErr == nil)
	}
	return begun
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

// tryOpen opens the database without writing. It returns the tables that the database names, and
// whether settings are recorded.
func (s *Store) tryOpen(opts *Options) (live []string, made bool, err error) {
	var db *lsm.DB
	if err := s.run("check", func() (err error) {
		db, err = s.openReadOnly(opts, false)
		return err
	}); err != nil {
		return nil, false, err
	}
	err = s.run("check", func() error {
		levels, err := db.SSTables()
		if err != nil {
			return err
		}
		for _, level := range levels {
			for _, table := range level {
				live = append(live, fmt.Sprintf("%s%s", table.BackingSSTNum, tableSuffix))
			}
		}
		_, closer, err := db.Get(metaKey(metaSettings))
		if errors.Is(err, lsm.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		made = true
		return closer.Close()
	})
	return live, made, errors.Join(err, s.run("check", db.Close))
}

// optionsDamage names the file of Pebble's options if that file is the cause of err. Pebble's own
// error does not name it.
func optionsDamage(name string, files vfs.FS, err error) error {
	if name == "" {
		return err
	}
	if b, readErr := readFile(files, name); readErr != nil || new(lsm.Options).Parse(string(b), nil) == nil {
		return err
	}
	return fmt.Errorf("%s, which holds no data and may be moved away: %w", path.Base(name), err)
}

// openReadOnly opens the database without writing. With lenient it also opens a database whose
// tables are missing.
func (s *Store) openReadOnly(opts *Options, lenient bool) (*lsm.DB, error) {
	p := s.pebbleOptions(opts)
	p.DisableConsistencyCheck = lenient
	s.readerOptions = p.MakeReaderOptions()
	p.FS, p.ReadOnly, p.CacheSize = opts.FS, true, min(opts.CacheBytes, 8<<20)
	return lsm.Open(s.dir, p)
}

// tableNumber matches the number by which Pebble's errors name a table.
var tableNumber = regexp.MustCompile(`\b\d{6,}\b`)

// notWhole returns the error for a directory with missing or damaged files. It adds the names of
// tables that Pebble gives only by number.
func (s *Store) notWhole(names []string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != syscall.ENOENT || errors.Is(err, storage.ErrUnavailable) || errors.Is(err, storage.ErrSettings) {
		return fmt.Errorf("data directory %s: %w", s.dir, err)
	}
	var missing []string
	for _, n := range tableNumber.FindAllString(err.Error(), -1) {
		if name := n + tableSuffix; strings.Contains(err.Error(), "type sst") && !slices.Contains(names, name) && !slices.Contains(missing, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		err = fmt.Errorf("%s missing: %w", someNames(missing), err)
	}
	return damage{fmt.Errorf("the store in %s is incomplete: %w; nothing in the directory was changed: "+
		"put back the missing files, restore the directory from a backup, or see 'quern salvage --help'", s.dir, err)}
}
