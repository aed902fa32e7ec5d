package pebble

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// inventory is the file QUERN. It says that a directory holds a store of Quern's, which files are
// the store's, and how much of its logs and manifests must be there. So Open distinguishes a file
// that somebody else put there from one that a crash left behind, and a log that lost its end from
// a complete log.
//
//  1. A file is entered in the inventory, synced, before it is created. So a file that is not in
//     the inventory is not the store's, and is not deleted.
//  2. The extent of a log or manifest covers only bytes that were synced before. So a file with
//     fewer or other bytes has lost data. The extent itself is written without a sync: after a
//     power cut it may be older than the file, by a moment or by a while.
//  3. An extent is taken back, synced, before its file is deleted.
//  4. If the inventory cannot be written, no file is created or deleted.
//
// Changes are appended to the inventory as lines. It is rewritten when a store is opened, and when
// many lines have been appended. docs/format/pebble.md has the form.
type inventory struct {
	fs  vfs.FS
	dir string

	mu sync.Mutex
	inventoryContent
	// file is open for appending lines. It is nil if the inventory must be rewritten first.
	file     vfs.File
	appended int
}

// inventoryContent is the decoded content of an inventory.
type inventoryContent struct {
	// made says that the store's settings are recorded.
	made bool
	// files holds the store's files by name. Those with an extent must exist.
	files map[string]extent
}

// extent describes the beginning of a file: its length and CRC-32C.
type extent struct {
	bytes int64
	crc   uint32
}

const (
	inventoryName    = "QUERN"
	inventoryNewName = "QUERN.new"
	inventoryHead    = "Quern store, format 1"
	inventoryMade    = "made"
	inventorySum     = "sum "
	// maxAppended is the number of appended bytes after which the inventory is rewritten.
	maxAppended = 1 << 20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newInventory(dir string, fs vfs.FS) *inventory {
	return &inventory{fs: fs, dir: dir, inventoryContent: inventoryContent{files: map[string]extent{}}}
}

// has reports whether a file is the store's.
func (v *inventory) has(name string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, ok := v.files[name]
	return ok
}

// add enforces rule 1.
func (v *inventory) add(name string) error { return v.note(name, extent{}, true) }

// grown enforces rule 2. An error is ignored: it costs only the check of this extent.
func (v *inventory) grown(name string, e extent) { _ = v.note(name, e, false) }

// release enforces rule 3.
func (v *inventory) release(name string) error {
	v.mu.Lock()
	held := v.files[name].bytes > 0
	v.mu.Unlock()
	if !held {
		return nil
	}
	return v.note(name, extent{}, true)
}

// gone removes a deleted file. Its line stays until the inventory is rewritten.
func (v *inventory) gone(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.files, name)
}

// finish records that the store's settings are recorded.
func (v *inventory) finish() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made && v.file != nil {
		return nil
	}
	v.made = true
	return v.rewrite()
}

func (v *inventory) note(name string, e extent, sync bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.files[name] = e
	if v.file == nil || v.appended > maxAppended {
		return v.rewrite()
	}
	line := appendedLine(name, e)
	n, err := v.file.Write(line)
	v.appended += n
	if err == nil && sync {
		err = v.file.Sync()
	}
	if err != nil {
		// Lines behind half a line would not be read.
		_ = v.closeFile()
	}
	return err
}

// rewrite replaces the inventory with a new file.
func (v *inventory) rewrite() (err error) {
	_ = v.closeFile()
	path := v.fs.PathJoin(v.dir, inventoryNewName)
	f, err := v.fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if _, err := f.Write(v.encode()); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := v.fs.Rename(path, v.fs.PathJoin(v.dir, inventoryName)); err != nil {
		return err
	}
	if err := syncDir(v.fs, v.dir); err != nil {
		return err
	}
	v.file, v.appended = f, 0
	return nil
}

// close rewrites the inventory, if it can, so that the sum covers all of it.
func (v *inventory) close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.made && v.file != nil {
		_ = v.rewrite()
	}
	return v.closeFile()
}

func (v *inventory) closeFile() error {
	f := v.file
	if f == nil {
		return nil
	}
	v.file = nil
	return f.Close()
}

func syncDir(fs vfs.FS, dir string) error {
	d, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func inventoryLine(name string, e extent) []byte {
	return fmt.Appendf(nil, "%s %d %08x\n", name, e.bytes, e.crc)
}

// appendedLine returns a line with a checksum of its own. After a power cut a file may have zeros
// where data was not synced, and other bytes behind them: the end of a line may be there without
// its beginning.
func appendedLine(name string, e extent) []byte {
	line := bytes.TrimSuffix(inventoryLine(name, e), []byte{'\n'})
	return fmt.Appendf(line, " %08x\n", crc32.Checksum(line, castagnoli))
}

func (c *inventoryContent) encode() []byte {
	b := []byte(inventoryHead + "\n")
	if c.made {
		b = append(b, inventoryMade+"\n"...)
	}
	for _, name := range slices.Sorted(maps.Keys(c.files)) {
		b = append(b, inventoryLine(name, c.files[name])...)
	}
	return fmt.Appendf(b, "%s%08x\n", inventorySum, crc32.Checksum(b, castagnoli))
}

// decodeInventory decodes what encode and note have written. Of the lines behind the sum it takes
// those before the first line that is incomplete or fails its checksum.
func decodeInventory(b []byte) (c inventoryContent, err error) {
	damaged := func(why string) (inventoryContent, error) {
		return inventoryContent{}, fmt.Errorf("%s is damaged: %s", inventoryName, why)
	}
	c.files = map[string]extent{}
	rest := b
	for first := true; ; first = false {
		line, after, whole := bytes.Cut(rest, []byte{'\n'})
		if !whole {
			return damaged("its end is missing")
		}
		text := string(line)
		switch sum, isSum := strings.CutPrefix(text, inventorySum); {
		case first && text != inventoryHead:
			return damaged("it begins with " + strconv.Quote(text))
		case first:
		case text == inventoryMade:
			c.made = true
		case isSum:
			if want := crc32.Checksum(b[:len(b)-len(rest)], castagnoli); sum != fmt.Sprintf("%08x", want) {
				return damaged("its sum is wrong")
			}
			for {
				line, after, whole = bytes.Cut(after, []byte{'\n'})
				if !whole || !c.takeAppended(string(line)) {
					return c, nil
				}
			}
		case !c.take(text):
			return damaged("a line is " + strconv.Quote(text))
		}
		rest = after
	}
}

// takeAppended decodes what appendedLine has written.
func (c *inventoryContent) takeAppended(line string) bool {
	i := strings.LastIndexByte(line, ' ')
	return i >= 0 && line[i+1:] == fmt.Sprintf("%08x", crc32.Checksum([]byte(line[:i]), castagnoli)) && c.take(line[:i])
}

// take decodes a line: name, number of bytes, sum. It returns false if the line is malformed.
func (c *inventoryContent) take(line string) bool {
	fields := strings.Split(line, " ")
	if len(fields) != 3 || fields[0] == "" {
		return false
	}
	n, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil || n < 0 {
		return false
	}
	sum, err := hex.DecodeString(fields[2])
	if err != nil || len(sum) != 4 {
		return false
	}
	c.files[fields[0]] = extent{n, uint32(sum[0])<<24 | uint32(sum[1])<<16 | uint32(sum[2])<<8 | uint32(sum[3])}
	return true
}

// extentOf returns the extent of the first n bytes of a file, or of the whole file if it is
// shorter.
func extentOf(fs vfs.FS, path string, n int64) (e extent, err error) {
	f, err := fs.Open(path)
	if err != nil {
		return e, err
	}
	sum := crc32.New(castagnoli)
	e.bytes, err = io.Copy(sum, io.LimitReader(bufio.NewReaderSize(f, 256<<10), n))
	e.crc = sum.Sum32()
	return e, errors.Join(err, f.Close())
}

// measuredFile reports the synced extent of a file to the inventory. Writes and syncs come one at a
// time.
type measuredFile struct {
	vfs.File
	inventory *inventory
	name      string
	extent    extent
	// lost says that a write has failed, so the content of the file is unknown.
	lost bool
}

// Write implements io.Writer.
func (f *measuredFile) Write(p []byte) (int, error) {
	crc := crc32.Update(f.extent.crc, castagnoli, p) // computed first: the write may change p
	n, err := f.File.Write(p)
	f.extent.bytes += int64(n)
	f.extent.crc = crc
	f.lost = f.lost || err != nil
	return n, err
}

// Sync implements vfs.File.
func (f *measuredFile) Sync() error { return f.synced(f.File.Sync()) }

// SyncData implements vfs.File.
func (f *measuredFile) SyncData() error { return f.synced(f.File.SyncData()) }

func (f *measuredFile) synced(err error) error {
	if err == nil && !f.lost {
		f.inventory.grown(f.name, f.extent)
	}
	return err
}
