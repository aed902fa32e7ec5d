// Package checkpoint remembers how far the server has acknowledged each stream of the agent.
//
// An adaptor turns something on the host into a stream of bytes, numbered from zero. A sequence id is the
// offset of the end of a piece of it: after the first 100 bytes it is 100. A stream's checkpoint is the last
// sequence id whose samples the server has acknowledged. After a crash of the agent, the server or the
// network, the adaptor goes on reading there. So what is sent twice is possible, and what is left out is not:
// a checkpoint may be too low and must never be too high.
package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wholefile"
)

// The file's name in its directory, its first word, and the version of its format.
const (
	name    = "checkpoints"
	kind    = "quern-checkpoints"
	version = 1
)

// Entry is what is known of one stream.
type Entry struct {
	// Stream is the stream's name. There is one entry for each.
	Stream string `json:"stream"`
	// Adaptor is the type of the adaptor, such as "file".
	Adaptor string `json:"adaptor"`
	// Datatype says how the bytes are to be read.
	Datatype string `json:"datatype"`
	// Params are the adaptor's parameters, as JSON. Only the adaptor reads them.
	Params json.RawMessage `json:"params,omitempty"`
	// Offset is the last acknowledged sequence id, in bytes since the stream's start.
	Offset uint64 `json:"offset"`
}

// Options holds the settings of a File.
type Options struct {
	// FS is the file system. The default is the machine's.
	FS vfs.FS
	// Clock tells the time. There is no default.
	Clock clock.Clock
	// Interval is the shortest time between two writes by SaveIfDue. The default is 1s.
	Interval time.Duration
}

// File holds the checkpoints of all streams. Changes are in memory until Save or SaveIfDue writes them. It is
// safe for use by several goroutines.
//
//  1. The file has only offsets that Put or Advance got, so none is higher than what was acknowledged.
//  2. Of two entries for one stream the lower offset counts.
//  3. A write replaces the file as a whole (package wholefile).
type File struct {
	clock    clock.Clock
	interval time.Duration

	// saving is held during a write, so that writes are in order. It comes before mu.
	saving sync.Mutex
	file   *wholefile.File

	mu      sync.Mutex
	entries map[string]Entry
	// changes counts Put, Advance and Remove, and saved is its value at the last write.
	changes, saved uint64
	// savedAt is the time since the clock's start of the last write that was tried.
	savedAt time.Duration
	tried   bool
}

// Open reads the checkpoints in dir, which it creates. No file means that there are none yet.
//
// The warning is not nil if the file is damaged or missing and the previous generation is used: then some
// offsets are lower than they were, and some data is read again. err wraps wholefile.ErrDamaged if no
// generation is whole, and wholefile.ErrVersion if a newer program wrote the file.
func Open(dir string, opts Options) (f *File, warning, err error) {
	if opts.FS == nil {
		opts.FS = vfs.Default
	}
	if opts.Interval == 0 {
		opts.Interval = time.Second
	}
	if err := wholefile.MakeDir(opts.FS, dir); err != nil {
		return nil, nil, err
	}
	f = &File{
		clock: opts.Clock, interval: opts.Interval, entries: map[string]Entry{},
		file: wholefile.New(opts.FS, dir, name, kind, version),
	}
	warning, err = f.file.Load(func(data []byte) error {
		entries, err := decode(data)
		if err != nil {
			return f.file.Damaged("%v", err)
		}
		f.entries = entries
		return nil
	})
	if errors.Is(err, wholefile.ErrDamaged) {
		err = fmt.Errorf("%w. Restore it from a backup; or move it and its .old away, and the agent reads all streams from where their adaptors begin", err)
	}
	if err != nil {
		return nil, nil, err
	}
	return f, warning, nil
}

// Entries returns all entries in the order of their names.
func (f *File) Entries() []Entry {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sorted(f.entries)
}

// Get returns the entry of a stream.
func (f *File) Get(stream string) (Entry, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.entries[stream]
	return e, ok
}

// Put sets the entry of e.Stream, also to a lower offset. It fails if the parameters are not JSON.
func (f *File) Put(e Entry) error {
	if e.Stream == "" {
		return errors.New("a checkpoint needs the name of a stream")
	}
	if len(e.Params) > 0 && !json.Valid(e.Params) {
		return fmt.Errorf("the parameters of the stream %q are not JSON", e.Stream)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	e.Params = slices.Clone(e.Params)
	f.entries[e.Stream] = e
	f.changes++
	return nil
}

// Advance moves the checkpoint of a stream up to offset, which the server has acknowledged. A lower offset
// changes nothing, as acknowledgements may come in any order. It returns false if the stream has no entry.
func (f *File) Advance(stream string, offset uint64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	e, ok := f.entries[stream]
	if ok && offset > e.Offset {
		e.Offset = offset
		f.entries[stream] = e
		f.changes++
	}
	return ok
}

// Remove forgets a stream.
func (f *File) Remove(stream string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.entries[stream]; ok {
		delete(f.entries, stream)
		f.changes++
	}
}

// SaveIfDue writes the file if there are changes and the interval has passed since the last write, failed or
// not. The caller calls it as often as it likes.
func (f *File) SaveIfDue() error {
	f.mu.Lock()
	due := !f.tried || f.clock.Elapsed()-f.savedAt >= f.interval
	f.mu.Unlock()
	if !due {
		return nil
	}
	return f.Save()
}

// Save writes the file if there are changes. When it returns nil, they are durable. After an error they stay
// in memory, and the next call writes them again.
func (f *File) Save() error {
	f.saving.Lock()
	defer f.saving.Unlock()
	f.mu.Lock()
	changes, entries := f.changes, sorted(f.entries)
	unsaved := changes != f.saved
	if unsaved {
		f.savedAt, f.tried = f.clock.Elapsed(), true
	}
	f.mu.Unlock()
	if !unsaved {
		return nil
	}
	data, err := encode(entries)
	if err != nil {
		return err
	}
	if err := f.file.Replace(data); err != nil {
		return fmt.Errorf("cannot write the checkpoints: %w", err)
	}
	f.mu.Lock()
	f.saved = changes
	f.mu.Unlock()
	return nil
}

func sorted(entries map[string]Entry) []Entry {
	return slices.SortedFunc(maps.Values(entries), func(a, b Entry) int { return strings.Compare(a.Stream, b.Stream) })
}

// contents is the JSON behind the file's first line.
type contents struct {
	Streams []Entry `json:"streams"`
}

func encode(entries []Entry) ([]byte, error) {
	data, err := json.MarshalIndent(contents{entries}, "", "  ")
	return append(data, '\n'), err
}

func decode(data []byte) (map[string]Entry, error) {
	var c contents
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, err
	}
	entries := make(map[string]Entry, len(c.Streams))
	for _, e := range c.Streams {
		if e.Stream == "" {
			return nil, errors.New("an entry has no stream")
		}
		lowest := uint64(math.MaxUint64)
		if other, twice := entries[e.Stream]; twice {
			lowest = other.Offset
		}
		e.Offset = min(e.Offset, lowest)
		entries[e.Stream] = e
	}
	return entries, nil
}
