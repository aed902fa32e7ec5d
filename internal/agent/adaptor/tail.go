package adaptor

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
)

const (
	// lookEvery is the time between two looks for new lines.
	lookEvery = time.Second
	// blockBytes is how much of a file is read at once. A longer line is skipped.
	blockBytes = 512 << 10
	// markBytes is how many bytes before an offset tell whether it is in the same file still.
	markBytes = 4 << 10
	// headBytes is how many of the first bytes of a file tell it from most others.
	headBytes = 256
	// rounds is how many blocks of each file are read between two looks.
	rounds = 16
	// settled is how long nobody must have written to a file that was renamed or removed, until it counts as complete.
	settled = time.Minute
	// idle is how long nothing must have come until a file is closed, which is opened again when it grows.
	idle = 5 * time.Minute
	// remembered is how long it is remembered how far a file was read that has gone, and maxGone is of how many.
	remembered = 24 * time.Hour
	maxGone    = 1000
)

// Tail reads the lines of files from their beginning, and goes on as they grow. A file is a stream, and its offset is the sequence id.
//
// Files are rotated, so a path says little. What a file is, it knows by device and inode, and by a checksum of the bytes before its
// offset, which is kept with that. So of each file that it sees:
//
//	its inode is known, and the bytes before the offset are the same    the same file, whatever it is called: read on
//	its inode is known, and they differ, or the file ends before them   truncated or replaced: it is as if its inode were new
//	its inode is new, and the bytes before the offset of a file that
//	is gone, or was truncated, are the same at that offset              its copy, plain or by gzip: read on there
//	… of a file that is still read                                      its copy: wait, since either may go
//	its inode is new                                                    a new file: read from the beginning
//
// A file that no longer matches stays open until it is complete. So a file that is renamed is read to its end, and one that is copied
// and truncated too, if the copy lies beside it, and its name begins with that of the file.
type Tail struct {
	// Path is a pattern of paths, as filepath.Match has them.
	Path  string `yaml:"path"`
	Lines `yaml:",inline"`

	files map[string]*file // by stream
	gone  map[string]*file // those that are gone, as far as they were read
	// copies are streams that wait until the file that they are a copy of has gone.
	copies map[string]*file
	// lost are paths beside which copies are looked for.
	lost  map[string]bool
	now   time.Duration // of this look
	block []byte
	batch ingest.Batch
}

// file is one that is read, or was.
type file struct {
	stream string
	path   string // at which it was seen last
	at     spool.Point
	state  state
	size   int64 // when it was seen last
	mtime  time.Time
	seen   bool   // at the last look
	head   []byte // its first bytes when it was opened; none of one of gzip
	// changed is when it last grew, moved, or went.
	changed time.Duration
	// done says that there is nothing behind the offset, until it changes.
	done bool
	in   content // nil while it is closed
}

// state is the text in the points of a stream.
type state struct {
	Path string `json:"path"` // at which the file was seen first
	Sum  uint32 `json:"sum"`  // of the markBytes before the offset, or of all
	Last int64  `json:"last,omitempty"`
	Skip bool   `json:"skip,omitempty"` // in the middle of a line that is too long
}

// String implements Adaptor.
func (t *Tail) String() string { return "tail " + t.Path }

// prefix is what the names of its streams begin with.
func (t *Tail) prefix() string { return t.String() + " " }

func (t *Tail) check() error {
	if _, err := filepath.Match(t.Path, ""); err != nil || t.Path == "" {
		return errors.New("path: must be a pattern of files, such as /var/log/app/*.log")
	}
	return t.checkLines()
}

// Run implements Adaptor.
func (t *Tail) Run(ctx context.Context, out *Output) {
	t.begin(out)
	defer t.end()
	for ctx.Err() == nil {
		if !t.look(ctx, out) && out.Clock.Sleep(ctx, lookEvery) != nil {
			return
		}
	}
}

// begin takes up what an earlier process has read.
func (t *Tail) begin(out *Output) {
	t.files, t.gone, t.copies, t.lost = map[string]*file{}, map[string]*file{}, map[string]*file{}, map[string]bool{}
	t.block = make([]byte, markBytes+blockBytes)
	for name, at := range out.Spool.Streams(t.prefix()) {
		if strings.Contains(name[len(t.prefix()):], " ") {
			continue // of a path with a space, which begins as this one
		}
		f := &file{stream: name, at: at, changed: out.Clock.Elapsed()}
		if err := json.Unmarshal([]byte(at.State), &f.state); err != nil {
			out.Warn("what is known of a file cannot be read: it is read from its beginning", name, "err", err)
			continue
		}
		t.gone[name] = f
		t.lost[f.state.Path] = true
		t.parsed.LastMs = max(t.parsed.LastMs, f.state.Last)
	}
}

func (t *Tail) end() {
	for _, f := range t.files {
		f.close()
	}
}

// found is a file at a path.
type found struct {
	path, stream string
	info         fs.FileInfo
	beside       bool // it does not match, and lies beside one that was lost
}

// look finds the files, and reads a part of each. It returns whether there is more.
func (t *Tail) look(ctx context.Context, out *Output) (more bool) {
	t.now = out.Clock.Elapsed()
	all, here := t.find(out)
	maps.DeleteFunc(t.copies, func(stream string, _ *file) bool { return !here[stream] })
	// Those that are known come first: the others may be their copies.
	for _, spot := range all {
		if f := cmp.Or(t.files[spot.stream], t.gone[spot.stream]); f != nil {
			t.see(out, f, spot)
		}
	}
	for _, f := range t.files {
		if !here[f.stream] {
			f.note(f.path, f.size, false, t.now)
			if f.in == nil && !zipped(f.path) {
				t.lost[f.state.Path] = true // it may have lines that came while it was closed
			}
		}
	}
	for _, spot := range all {
		if t.files[spot.stream] == nil {
			t.meet(ctx, out, spot)
		}
	}
	for _, f := range t.sorted() {
		for range rounds {
			if more = t.read(ctx, out, f); !more {
				break
			}
		}
		if more || ctx.Err() != nil {
			break
		}
	}
	t.tidy(out)
	return more
}

// sorted returns the files in the order in which they are read: what was written last comes last, since the times of counters rise.
func (t *Tail) sorted() []*file {
	return slices.SortedFunc(maps.Values(t.files), func(a, b *file) int {
		return cmp.Or(a.mtime.Compare(b.mtime), cmp.Compare(a.path, b.path), cmp.Compare(a.stream, b.stream))
	})
}

// find returns the regular files that match, and those beside the ones that were lost, and the streams of all.
func (t *Tail) find(out *Output) (all []found, here map[string]bool) {
	paths, _ := filepath.Glob(t.Path) // the pattern was checked
	matching := len(paths)
	dirs := map[string]bool{}
	for lost := range t.lost {
		dirs[filepath.Dir(lost)] = true
	}
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		entries, _ := os.ReadDir(dir) // what cannot be listed has no copies
		for _, e := range entries {
			path := filepath.Join(dir, e.Name())
			for end := range len(path) {
				if t.lost[path[:end+1]] {
					paths = append(paths, path)
					break
				}
			}
		}
	}
	clear(t.lost)
	here = map[string]bool{}
	for i, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist): // it went after it was listed
			continue
		case err == nil && info.IsDir() && path != t.Path: // a pattern may match directories
			continue
		case !utf8.ValidString(path):
			path, err = strings.ToValidUTF8(path, "\uFFFD"), errors.New("its name is not UTF-8")
		case err == nil && !info.Mode().IsRegular():
			err = errors.New("it is not a regular file")
		}
		if err != nil {
			if i < matching {
				out.Warn("a file cannot be read", t.prefix()+path, "err", err)
			}
			continue
		}
		// Of the paths of one file the first counts.
		if stream := t.prefix() + identity(info); !here[stream] {
			here[stream] = true
			all = append(all, found{path, stream, info, i >= matching})
		}
	}
	return all, here
}

// see notes where a file is that was read before.
func (t *Tail) see(out *Output, f *file, spot found) {
	delete(t.gone, f.stream)
	t.files[f.stream] = f
	f.done = f.done && f.mtime.Equal(spot.info.ModTime()) // it may have been rewritten
	f.mtime = spot.info.ModTime()
	f.note(spot.path, spot.info.Size(), true, t.now)
	// While it was closed, the inode may have become another file's.
	opened := f.in == nil && !f.done && f.open(out)
	if opened && sumBefore(f.in, f.at.Seq) != f.state.Sum || !zipped(f.path) && f.size < int64(f.at.Seq) {
		t.lose(out, f)
	}
}

// note notes at which path a file is, how large, and whether it is there.
func (f *file) note(path string, size int64, seen bool, now time.Duration) {
	if path != f.path || size != f.size || seen != f.seen {
		f.done = f.done && zipped(path) && size == f.size // one of gzip is read once, whatever it is called
		f.path, f.size, f.seen, f.changed = path, size, seen, now
	}
}

// moved reports whether a file was renamed or removed.
func (f *file) moved() bool { return !f.seen || f.path != f.state.Path }

// lose gives up a file whose content is not the one that was read: it is like a new one. The earlier content may have been copied, and
// goes on there. The spool knows how far it was read until the file has a new chunk, which comes after its copies are found.
func (t *Tail) lose(out *Output, f *file) {
	out.Warn("a file was truncated or replaced", f.stream, "path", f.path, "offset", f.at.Seq)
	t.remember(f, fmt.Sprintf("%s~%d", f.stream, f.at.Generation))
	t.lost[f.state.Path] = true
}

// remember keeps, under a name, how far a file was read that has gone.
func (t *Tail) remember(f *file, name string) {
	f.close()
	delete(t.files, f.stream)
	f.stream, f.changed = name, t.now
	t.gone[name] = f
}

// meet takes up a file that is new.
func (t *Tail) meet(ctx context.Context, out *Output, spot found) {
	known := t.copies[spot.stream] // what it was a copy of at the last look
	if zipped(spot.path) && (!written(spot.path) || known != nil && t.files[known.stream] == known) {
		return // to read one is dear
	}
	delete(t.copies, spot.stream)
	if spot.info.Size() == 0 {
		return
	}
	f := &file{stream: spot.stream, path: spot.path, seen: true, mtime: spot.info.ModTime(), state: state{Path: spot.path}}
	if !f.open(out) {
		return
	}
	f.measure(t.now) // a copy may have grown since it was found
	var original *file
	for _, g := range t.files {
		// gzip has removed what it compressed.
		if (g.moved() || !zipped(f.path)) && g.copied(f) && (original == nil || g.path < original.path) {
			original = g
		}
	}
	if original != nil {
		t.copies[f.stream] = original
		f.close()
		return
	}
	if known != nil && t.gone[known.stream] == known && known.begins(f) && !zipped(f.path) && f.size < int64(known.at.Seq) {
		// What was written after it had been copied is not in the copy.
		known.at.Seq, known.state.Sum = uint64(f.size), sumBefore(f.in, uint64(f.size))
	}
	var earlier *file
	for _, g := range slices.SortedFunc(maps.Values(t.gone), func(a, b *file) int {
		return cmp.Or(cmp.Compare(a.at.Seq, b.at.Seq), strings.Compare(a.stream, b.stream))
	}) {
		if g.at.Seq > 0 && sumBefore(f.in, g.at.Seq) == g.state.Sum {
			earlier = g
		}
	}
	if earlier == nil && spot.beside {
		f.close()
		return
	}
	f.at.Generation = out.Spool.NewGeneration()
	if earlier != nil {
		f.at.Seq, f.state = earlier.at.Seq, earlier.state
		f.at.State = f.state.text()
		if !out.PutOrWait(ctx, f.stream, f.at, new(ingest.Batch)) {
			f.close()
			return
		}
		out.Spool.Forget(earlier.stream)
		delete(t.gone, earlier.stream)
	}
	t.files[f.stream] = f
}

// copied reports whether a new file is a copy of this one, or becomes one.
func (f *file) copied(to *file) bool {
	switch {
	case zipped(f.path) || f.at.Seq == 0 && zipped(to.path) || !f.begins(to):
		return false
	case f.at.Seq > 0 && (zipped(to.path) || to.size >= int64(f.at.Seq)):
		return sumBefore(to.in, f.at.Seq) == f.state.Sum
	case filepath.Dir(to.path) != filepath.Dir(f.path):
		return false
	}
	// What is being copied has the same bytes, as far as it is.
	in, err := open(f.path, f.identity())
	if err != nil {
		return false // it has just gone, or been replaced
	}
	defer in.Close() //nolint:errcheck // it was only read
	return sumBefore(in, uint64(to.size)) == sumBefore(to.in, uint64(to.size))
}

// begins reports whether two files have the same first bytes, as far as both have them.
func (f *file) begins(other *file) bool {
	n := min(len(f.head), len(other.head))
	return bytes.Equal(f.head[:n], other.head[:n])
}

// sumBefore returns the checksum of the bytes before an offset, as far as they can be read.
func sumBefore(in content, offset uint64) uint32 {
	mark := make([]byte, min(markBytes, offset))
	n, _ := in.ReadAt(mark, int64(offset)-int64(len(mark)))
	return crc32.ChecksumIEEE(mark[:n])
}

// read reads a block of a file. It returns whether there may be more.
func (t *Tail) read(ctx context.Context, out *Output, f *file) (more bool) {
	if f.in == nil || f.done {
		return false
	}
	mark := int(min(markBytes, f.at.Seq))
	n, err := f.in.ReadAt(t.block, int64(f.at.Seq)-int64(mark))
	failed := err != nil && !errors.Is(err, io.EOF)
	if (n >= mark || !failed) && crc32.ChecksumIEEE(t.block[:min(mark, n)]) != f.state.Sum {
		t.lose(out, f)
		return false
	}
	block := t.block[min(mark, n):n]
	next := f.state
	end := bytes.LastIndexByte(block, '\n') + 1
	switch {
	case end > 0:
	case n == len(t.block):
		if !next.Skip {
			out.Warn("skipped a line that is too long", f.stream, "path", f.path, "offset", f.at.Seq, "limit", blockBytes)
		}
		end, next.Skip = len(block), true
	case failed:
		out.Warn("a file cannot be read", f.stream, "path", f.path, "offset", f.at.Seq, "err", err)
		f.close()
		f.done = zipped(f.path) // it stays damaged
		return false
	case len(block) > 0 && f.complete(t.now):
		end = len(block)
	default:
		f.done = !f.moved() || f.complete(t.now) // else its last line may be complete later
		if zipped(f.path) {
			f.close() // at once, since it holds what it has read ahead
		}
		return false
	}
	lines := block[:end]
	if next.Skip {
		_, rest, found := bytes.Cut(lines, []byte("\n"))
		lines, next.Skip = rest, !found
	}
	t.batch.Reset()
	t.decode(out, f.stream, f.at.Seq+uint64(end-len(lines)), lines, clock.NowMs(out.Clock), &t.batch, "path", f.path)
	used := mark + end
	next.Sum = crc32.ChecksumIEEE(t.block[max(0, used-markBytes):used])
	next.Last = t.parsed.LastMs
	at := spool.Point{Generation: f.at.Generation, Seq: f.at.Seq + uint64(end), State: next.text()}
	if !out.PutOrWait(ctx, f.stream, at, &t.batch) {
		return false
	}
	f.at, f.state = at, next
	return true
}

// complete reports whether nobody will write to a file any more.
func (f *file) complete(now time.Duration) bool {
	return zipped(f.path) || f.moved() && now-f.changed >= settled
}

// tidy closes what needs not be open, and forgets what is gone.
func (t *Tail) tidy(out *Output) {
	for _, f := range t.files {
		if !f.seen && f.in != nil {
			f.measure(t.now)
		}
		switch since := t.now - f.changed; {
		case !f.done && f.in != nil: // there may be more
		case !f.seen && (zipped(f.path) || since >= settled):
			t.remember(f, f.stream)
		case since >= idle:
			f.close()
		}
	}
	gone := slices.SortedFunc(maps.Values(t.gone), func(a, b *file) int {
		return cmp.Or(cmp.Compare(a.changed, b.changed), strings.Compare(a.stream, b.stream))
	})
	for i, f := range gone {
		if t.now-f.changed >= remembered || len(gone)-i > maxGone {
			out.Spool.Forget(f.stream)
			delete(t.gone, f.stream)
		}
	}
}

// open opens a file. It reports whether it could.
func (f *file) open(out *Output) bool {
	in, err := open(f.path, f.identity())
	if err != nil {
		out.Warn("a file cannot be read", f.stream, "path", f.path, "offset", f.at.Seq, "err", err)
		return false
	}
	f.in = in
	if !zipped(f.path) {
		head := make([]byte, headBytes)
		n, _ := in.ReadAt(head, 0)
		f.head = head[:n]
	}
	return true
}

// measure notes the size of an open file.
func (f *file) measure(now time.Duration) {
	if info, err := f.in.Stat(); err == nil {
		f.note(f.path, info.Size(), f.seen, now)
	}
}

// identity returns the end of the stream's name.
func (f *file) identity() string { return f.stream[strings.LastIndexByte(f.stream, ' ')+1:] }

func (f *file) close() {
	if f.in != nil {
		_ = f.in.Close() // it was only read
		f.in = nil
	}
}

func (s state) text() string {
	text, err := json.Marshal(s)
	if err != nil {
		panic(err) // it has only numbers and text
	}
	return string(text)
}
