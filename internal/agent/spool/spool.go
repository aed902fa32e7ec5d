// Package spool keeps what an agent has read on the disk, until a server has acknowledged it.
package spool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

// Chunk is a piece of a stream: of the bytes that something on the host becomes, numbered from zero.
type Chunk struct {
	Stream string // its name
	Point         // at which the chunk ends
	// Samples is how many samples it has.
	Samples int
	Data    []byte
}

// Point is how far a stream is.
type Point struct {
	// Generation tells a stream from earlier ones of the same name, as of a file that was replaced.
	Generation uint64 `json:"generation"`
	// Seq is the sequence id: an offset in the stream. That of a chunk is where it ends: the first 100 bytes have 100, the next 200.
	Seq uint64 `json:"seq"`
	// State is what its reader needs to go on from here, such as how to recognise the file. It is text.
	State string `json:"state,omitempty"`
}

func (p Point) compare(o Point) int {
	return cmp.Or(cmp.Compare(p.Generation, o.Generation), cmp.Compare(p.Seq, o.Seq))
}

// Position is a place between two chunks. The zero Position is before all.
type Position struct {
	Segment uint64 `json:"segment"`
	Offset  int64  `json:"offset"`
}

// Before reports whether a position is before another.
func (p Position) Before(o Position) bool { return p.compare(o) < 0 }

func (p Position) compare(o Position) int {
	return cmp.Or(cmp.Compare(p.Segment, o.Segment), cmp.Compare(p.Offset, o.Offset))
}

// Options of a Spool. Those without a default are required.
type Options struct {
	FS     vfs.FS // the default is the disk
	Clock  clock.Clock
	Logger *slog.Logger
	// MaxBytes bounds the segments. Beyond it the oldest is dropped. The default is 1 GiB.
	MaxBytes int64
	// Others are files in the directory that are not the spool's.
	Others []string
	// MaxAge is how long a chunk is kept, in time that an agent runs. The default is 24 h.
	MaxAge time.Duration
}

// Spool is a queue of chunks on the disk. A chunk comes to the end of the newest segment; Next reads on from any position;
// Ack moves the beginning of the queue, and removes the segments before it. The checkpoint has that beginning, and how far
// each stream was acknowledged:
//
//	segment 3        segment 4              segment 5
//	a a a a a a │ a a a ▲ n n · · · · │ · · · · · ◄ Put
//	            │       │   ▲
//	removed by Ack      │   where the next Next begins
//	             checkpoint
//
// Its invariants:
//
//  1. Once Put has returned, a chunk is on the disk. It leaves by Ack, as one of the oldest of a full spool, or when it is
//     too old. The last two are counted and logged.
//  2. Next returns a chunk only if Put has returned.
//  3. The checkpoint is never ahead of what was acknowledged. After a crash, what was acknowledged since it was written comes
//     again.
//  4. Age is the time that an agent has run since the chunk came. It is the difference of two readings of a clock that
//     cannot be set, so a step of the wall clock drops nothing.
//
// It is safe for concurrent use, by several readers of which one acknowledges.
type Spool struct {
	dir    string
	opts   Options
	lock   io.Closer
	topics *limits.Topics

	mu       sync.Mutex
	segments []*segment // oldest first
	active   vfs.File   // the newest of them, nil if the next Put makes one
	number   uint64     // of the next segment
	first    Position   // of the oldest chunk that is not acknowledged
	spooled  map[string]Point
	acked    map[string]Point // of those that are in spooled
	newest   uint64           // generation
	base     time.Duration    // running time when it was opened, less that of the clock
	saved    time.Duration    // when the checkpoint was last written
	dropped  int
	more     chan struct{} // closed by the next Put
	room     chan struct{} // closed when segments have gone
}

// ErrTooLarge: what is put at once would take more than a quarter of the spool.
var ErrTooLarge = errors.New("it is too large for the spool")

const lockName = "LOCK"

// saveEvery is the minimum time between two checkpoints. A crash has that much sent again.
const saveEvery = time.Second

// Memory returns an FS for a spool that is gone with the process.
func Memory() vfs.FS { return vfs.NewMem() }

// Open opens the spool in dir, and makes it if there is none. No other process may have it open.
func Open(dir string, o Options) (*Spool, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	o.MaxBytes, o.MaxAge = cmp.Or(o.MaxBytes, 1<<30), cmp.Or(o.MaxAge, 24*time.Hour)
	s := &Spool{dir: dir, opts: o, topics: limits.NewTopics(o.Clock, time.Minute, 8), more: make(chan struct{}), room: make(chan struct{})}
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("data directory %s: %w: choose another directory", dir, err)
	}
	var err error
	if s.lock, err = o.FS.Lock(s.path(lockName)); err != nil {
		if pathErr := (*fs.PathError)(nil); errors.As(err, &pathErr) {
			return nil, fmt.Errorf("data directory %s: %w: choose another directory", dir, err)
		}
		return nil, fmt.Errorf("data directory %s is in use by another process: give each agent a directory of its own: %w", dir, err)
	}
	if err := s.load(); err != nil {
		return nil, errors.Join(fmt.Errorf("data directory %s: %w", dir, err), s.lock.Close())
	}
	return s, nil
}

func (s *Spool) path(name string) string { return s.opts.FS.PathJoin(s.dir, name) }

// makeDir makes the directory and those above it, and puts the name of each on the disk.
func (s *Spool) makeDir() error {
	files := s.opts.FS
	var above []string
	for dir := s.dir; ; dir = files.PathDir(dir) {
		if _, err := files.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		above = append(above, files.PathDir(dir))
	}
	if err := files.MkdirAll(s.dir, os.FileMode(0o700)); err != nil {
		return err
	}
	for _, dir := range above {
		if err := syncDir(files, dir); err != nil {
			return err
		}
	}
	return nil
}

// load reads the checkpoint and the segments.
func (s *Spool) load() error {
	c, err := loadCheckpoint(s.opts.FS, s.dir)
	if err != nil {
		return err
	}
	s.first, s.acked, s.spooled, s.number, s.newest = c.Position, c.Streams, maps.Clone(c.Streams), c.Position.Segment, c.Newest
	names, err := s.opts.FS.List(s.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	running := c.Running
	for _, name := range names {
		number, ok := segmentNumber(name)
		if !ok {
			if !slices.Contains([]string{lockName, checkpointName, checkpointName + nextSuffix, "lost+found"}, name) && !slices.Contains(s.opts.Others, name) {
				return fmt.Errorf("%s is not a spool's: choose a directory for the spool alone", name)
			}
			continue
		}
		g := &segment{number: number}
		if err := s.scan(g); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		s.number, running = max(s.number, number), max(running, g.newest)
		if g.bytes > 0 {
			s.segments = append(s.segments, g)
		} else if err := s.opts.FS.Remove(s.path(name)); err != nil {
			return err
		}
	}
	s.number++
	s.base = running - s.opts.Clock.Elapsed()
	return s.trim()
}

// scan reads a segment that an earlier process wrote.
func (s *Spool) scan(g *segment) error {
	path := s.path(segmentName(g.number))
	info, err := s.opts.FS.Stat(path)
	if err != nil {
		return err
	}
	damage, err := read(s.opts.FS, path, 0, info.Size(), func(r record) bool {
		if g.bytes == 0 {
			g.oldest = r.at
		}
		g.bytes, g.newest, g.samples = r.end, max(g.newest, r.at), g.samples+r.Samples
		raise(s.spooled, &r.Chunk)
		s.newest = max(s.newest, r.Generation)
		return true
	})
	if damage >= 0 {
		s.opts.Logger.Warn("the spool is damaged, or its end was never written: what could not be read is skipped", "file", path, "offset", damage)
	}
	return err
}

// raise notes that a stream is as far as a chunk, unless that is of an earlier generation.
func raise(points map[string]Point, c *Chunk) {
	if last, ok := points[c.Stream]; !ok || c.compare(last) > 0 {
		points[c.Stream] = c.Point
	}
}

func (s *Spool) running() time.Duration { return s.base + s.opts.Clock.Elapsed() }

// Stream returns how far the spool has a stream. Whoever reads it goes on there.
func (s *Spool) Stream(name string) Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spooled[name]
}

// Streams returns how far the spool has the streams whose names begin with a prefix.
func (s *Spool) Streams(prefix string) map[string]Point {
	s.mu.Lock()
	defer s.mu.Unlock()
	points := maps.Clone(s.spooled)
	maps.DeleteFunc(points, func(name string, _ Point) bool { return !strings.HasPrefix(name, prefix) })
	return points
}

// Acknowledged returns the sequence id up to which a server has a stream.
func (s *Spool) Acknowledged(name string) uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acked[name].Seq
}

// Forget forgets how far a stream is, since nobody will read it again. Its chunks stay.
func (s *Spool) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.spooled, name)
	delete(s.acked, name)
}

// NewGeneration returns a generation that no stream has had.
func (s *Spool) NewGeneration() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest++
	return s.newest
}

// Stats counts samples: those that wait, and those that were dropped since the spool was opened.
func (s *Spool) Stats() (waiting, dropped int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		waiting += s.waiting(g)
	}
	return waiting, s.dropped
}

// waiting counts the samples of a segment that are not acknowledged.
func (s *Spool) waiting(g *segment) int {
	n := g.samples
	if end := s.first.Offset; g.number == s.first.Segment && end > 0 {
		_, _ = read(s.opts.FS, s.path(segmentName(g.number)), 0, end, func(r record) bool { // what cannot be read waits
			n -= r.Samples
			return true
		})
	}
	return n
}

// Rest returns how many bytes are behind a position.
func (s *Spool) Rest(behind Position) (bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		switch {
		case g.number == behind.Segment:
			bytes += g.bytes - behind.Offset
		case g.number > behind.Segment:
			bytes += g.bytes
		}
	}
	return bytes
}

// Cut returns the end of the spool. No call of Next returns chunks of both sides of it.
func (s *Spool) Cut() (end Position, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.segments); n > 0 {
		end = Position{s.segments[n-1].number, s.segments[n-1].bytes}
	}
	return end, s.endSegment()
}

// Put appends a chunk. If the spool is full, it drops the oldest ones.
// After an error the chunk may come, or not.
func (s *Spool) Put(c Chunk) error {
	_, err := s.put([]Chunk{c}, false)
	return err
}

// PutOrWait appends chunks together. While they have no room, it waits until something has gone, or ctx ends: then none comes.
// After another error they may come, or not.
func (s *Spool) PutOrWait(ctx context.Context, chunks ...Chunk) error {
	for {
		full, err := s.put(chunks, true)
		if full == nil {
			return err
		}
		select {
		case <-full:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// put appends chunks. If the spool is full, it drops the oldest segments, or, for what can wait, returns a channel that is closed
// when there may be room.
func (s *Spool) put(chunks []Chunk, canWait bool) (full <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.running()
	var b []byte
	for i := range chunks {
		if b, err = appendRecord(b, &chunks[i], now); err != nil {
			return nil, err
		}
	}
	if int64(len(b)) > s.opts.MaxBytes/4 {
		return nil, fmt.Errorf("%w: what came at once for the stream %q has %d bytes, more than a quarter", ErrTooLarge, chunks[0].Stream, len(b))
	}
	s.expire(now)
	bytes := int64(len(b))
	for _, g := range s.segments {
		bytes += g.bytes
	}
	if canWait && bytes > s.opts.MaxBytes-s.opts.MaxBytes/8 { // an eighth is for what cannot wait, which would drop what has waited
		return s.room, nil
	}
	for bytes > s.opts.MaxBytes {
		bytes -= s.segments[0].bytes
		s.drop("the spool is full; dropped the oldest samples")
	}
	g, err := s.roomFor(b, now)
	if err == nil {
		_, err = s.active.Write(b)
	}
	if err == nil {
		err = s.active.Sync()
	}
	if err != nil {
		// Nobody knows what is behind the last whole record. It is left, and not read.
		err = errors.Join(err, s.endSegment())
		if n := len(s.segments) - 1; n >= 0 && s.segments[n].bytes == 0 {
			s.segments = s.segments[:n]
			err = errors.Join(err, s.opts.FS.Remove(s.path(segmentName(s.number-1))))
		}
		return nil, err
	}
	g.bytes, g.newest = g.bytes+int64(len(b)), now
	for i := range chunks {
		g.samples += chunks[i].Samples
		raise(s.spooled, &chunks[i])
	}
	close(s.more)
	s.more = make(chan struct{})
	return nil, nil
}

// roomFor returns the newest segment, which is a new one if the last is full or old.
func (s *Spool) roomFor(b []byte, now time.Duration) (*segment, error) {
	if s.active != nil {
		g := s.segments[len(s.segments)-1]
		if g.bytes == 0 || g.bytes+int64(len(b)) <= min(8<<20, s.opts.MaxBytes/8) && now-g.oldest < s.opts.MaxAge/24 {
			return g, nil
		}
		if err := errors.Join(s.endSegment(), s.trim()); err != nil {
			return nil, err
		}
	}
	g := &segment{number: s.number, oldest: now, newest: now}
	f, err := s.opts.FS.Create(s.path(segmentName(g.number)), vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	s.number++
	s.segments, s.active = append(s.segments, g), f
	return g, syncDir(s.opts.FS, s.dir)
}

func (s *Spool) endSegment() error {
	if s.active == nil {
		return nil
	}
	f := s.active
	s.active = nil
	return f.Close()
}

// expire drops the segments that have become too old.
func (s *Spool) expire(now time.Duration) {
	for len(s.segments) > 0 && now-s.segments[0].newest > s.opts.MaxAge {
		s.drop("samples are too old to be sent; dropped them")
	}
}

// drop removes the oldest segment with what nobody has acknowledged.
func (s *Spool) drop(why string) {
	lost := s.waiting(s.segments[0])
	var err error
	if len(s.segments) == 1 {
		err = s.endSegment()
	}
	err = errors.Join(err, s.remove())
	s.dropped += lost
	if n, ok := s.topics.Pass(why); ok && (lost > 0 || err != nil) {
		s.opts.Logger.Warn(why, "samples", lost, "err", err, "suppressed", n)
	}
}

// remove removes the oldest segment.
func (s *Spool) remove() error {
	g := s.segments[0]
	s.segments = s.segments[1:]
	close(s.room)
	s.room = make(chan struct{})
	return s.opts.FS.Remove(s.path(segmentName(g.number)))
}

// trim removes the segments in which everything was acknowledged. The checkpoint goes first: it has how far their streams are.
func (s *Spool) trim() error {
	for saved := false; len(s.segments) > 0 && (len(s.segments) > 1 || s.active == nil); saved = true {
		if g := s.segments[0]; (Position{g.number, g.bytes}).compare(s.first) > 0 {
			return nil
		}
		if !saved {
			if err := s.save(); err != nil {
				return err
			}
		}
		if err := s.remove(); err != nil {
			return err
		}
	}
	return nil
}

// Next waits for chunks behind a position, and returns the first of them, with the position behind these: one, or as many as
// have limit bytes of data together. What was dropped meanwhile is passed over.
func (s *Spool) Next(ctx context.Context, behind Position, limit int) ([]Chunk, Position, error) {
	for {
		chunks, at, more, err := s.next(behind, limit)
		if len(chunks) > 0 || err != nil {
			return chunks, at, err
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil, behind, context.Cause(ctx)
		}
	}
}

func (s *Spool) next(at Position, limit int) (chunks []Chunk, _ Position, more <-chan struct{}, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(s.running())
	if at.compare(s.first) < 0 {
		at = s.first
	}
	for _, g := range s.segments {
		if g.number < at.Segment {
			continue
		}
		if g.number > at.Segment {
			at = Position{Segment: g.number}
		}
		bytes := 0
		_, err := read(s.opts.FS, s.path(segmentName(g.number)), at.Offset, g.bytes, func(r record) bool {
			if bytes += len(r.Data); len(chunks) > 0 && bytes > limit {
				return false
			}
			chunks, at.Offset = append(chunks, r.Chunk), r.end
			return true
		})
		if len(chunks) > 0 { // what cannot be read behind them is met by the next call
			return chunks, at, nil, nil
		}
		if err != nil {
			return nil, at, nil, err
		}
	}
	return nil, at, s.more, nil
}

// Ack says that a server has taken chunks, which Next returned together with the position behind them, and all before them.
func (s *Spool) Ack(chunks []Chunk, behind Position) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range chunks {
		if _, known := s.spooled[chunks[i].Stream]; known {
			raise(s.acked, &chunks[i])
		}
	}
	if behind.compare(s.first) > 0 {
		s.first = behind
	}
	if err := s.trim(); err != nil {
		return err
	}
	if s.running()-s.saved < saveEvery {
		return nil
	}
	return s.save()
}

func (s *Spool) save() error {
	s.saved = s.running()
	c := checkpoint{Format: format, Position: s.first, Running: s.saved, Newest: s.newest, Streams: s.acked}
	return c.save(s.opts.FS, s.dir)
}

// Close writes the checkpoint, and lets go of the directory.
func (s *Spool) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.endSegment(), s.trim(), s.save(), s.lock.Close())
}
