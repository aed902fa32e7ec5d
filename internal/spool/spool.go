// Package spool is a queue on disk between what reads measurements on a host and what sends them to servers.
// docs/format/spool.md describes its files.
package spool

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wholefile"
)

var (
	// ErrClosed says that the spool is closed, or the consumer removed.
	ErrClosed = errors.New("the spool is closed")
	// ErrFull says that there was no room for a record of a stream that does not wait. It is lost, and counted.
	ErrFull = errors.New("the spool is full")
	// ErrTooLarge says that a record does not fit in a quarter of a segment.
	ErrTooLarge = errors.New("the record is too large for the spool")
)

// OnFull is what a stream does when there is no room for its next record.
type OnFull int

const (
	// Block has Append wait: for streams that can be read later, such as files.
	Block OnFull = iota
	// DropOldest loses the stream's oldest records: for streams that cannot wait, such as UDP.
	DropOldest
)

// Record is a piece of a stream.
type Record struct {
	// Stream is the stream's name, of 1 to 255 bytes.
	Stream string
	// SeqID is the offset in the stream of the end of the piece, in bytes.
	SeqID uint64
	// TimeMs is when it was read, in Unix milliseconds.
	TimeMs int64
	// Payload is what is sent. The spool does not look at it.
	Payload []byte
}

// Reason is why records were lost.
type Reason string

const (
	// Full: the spool was full, and the stream does not wait.
	Full Reason = "full"
	// Age: they were older than Options.MaxAge.
	Age Reason = "age"
	// Damaged: their bytes, or their file, are not what was written.
	Damaged Reason = "damaged"
	// Torn: the writer was interrupted by a crash or an error. They were never acknowledged, so this is no loss
	// of the spool. A damage of the last bytes before a crash looks the same.
	Torn Reason = "torn"
)

// Loss is records that some consumer does not get.
type Loss struct {
	// Stream is "" where it is unknown whose the records were.
	Stream string
	Reason Reason
	// Records is how many there were, and Bytes what they took in the file. Records is 0 where their number is
	// unknown.
	Records uint64
	Bytes   int64
	// Err names the file and the offset of a damage. It is nil for the other reasons.
	Err error
}

// Options holds the settings of a Spool.
type Options struct {
	// FS is the file system. The default is the machine's.
	FS vfs.FS
	// Clock tells the time. There is no default.
	Clock clock.Clock
	// MaxBytes bounds the bytes of all segments together. While a segment is rewritten there is one more. The
	// default is 1 GiB.
	MaxBytes int64
	// MaxAge is how long a record is kept after it was read, give or take a sixteenth. The default is 24h.
	MaxAge time.Duration
	// SegmentBytes bounds a segment. The default, and the maximum, is 16 MiB or a 32nd of MaxBytes, whichever
	// is less.
	SegmentBytes int64
	// OnLoss is told of each loss once. After a crash it may be told again of what was lost shortly before. It
	// may call the spool, except Close and Append. The default is nothing, which leaves the counts in Stats.
	OnLoss func(Loss)
}

func (o *Options) ensureDefaults() {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.MaxAge == 0 {
		o.MaxAge = 24 * time.Hour
	}
	most := min(16<<20, o.MaxBytes/32)
	if o.SegmentBytes == 0 || o.SegmentBytes > most {
		o.SegmentBytes = most
	}
	if o.OnLoss == nil {
		o.OnLoss = func(Loss) {}
	}
}

// Spool is a durable queue, shared by many streams and read by several consumers.
//
// Records are numbered in the order in which they become durable, over all streams. They lie in segments:
// files that are appended to until they are full, and that are named after the number of their first record. A
// consumer's position is the number of the first record that it has not acknowledged. A segment is deleted
// when all consumers are past it. Without consumers, segments stay.
//
// One goroutine writes. It takes all appends that wait, writes them as one group, syncs once, and acknowledges
// them. It is also the only one that makes room.
//
// Room is shared by bytes. Of n streams that have records, the fair share of each is 1/(n+1): one share is for
// a stream to come. A stream that can wait leaves an eighth of the spool to others once it is above its share.
// When the spool is full, the largest of the streams above their share that drop, and of the one that appends,
// makes room or waits. Dropping is by segment: a stream loses all that it has in its oldest segment. The bytes
// stay in the file at first. Once they are an eighth of MaxBytes, the segments that have most of them are
// written anew without them. A segment in which all is dropped is deleted.
//
//  1. A record is acknowledged only after its file and the name of its file are synced.
//  2. Consumers see only acknowledged records. So a position never points behind a record that a crash undoes.
//     After a crash, records that were written and not acknowledged may be seen, too.
//  3. A number is never used twice while a consumer's position is known.
//  4. After a failed write or sync a file is not written again: what the file system did with the pages is
//     unknown. The records of the group are not acknowledged, and the next group begins a segment.
//  5. A segment is removed only after positions past it are durable, unless the disk has no room to write them.
//  6. Memory does not depend on the number of records: for each segment there is a count by stream, and for
//     each consumer a window and one batch.
type Spool struct {
	opts Options
	dir  string
	lock io.Closer
	// done is closed when the goroutine that writes has ended.
	done chan struct{}

	// active is where the next group goes. Only the goroutine that writes uses it.
	active     *segment
	activeFile vfs.File
	// activeSince is when it began, since the clock's start.
	activeSince time.Duration
	// durable is the number after the last acknowledged record.
	durable uint64
	buffer  []byte

	// saving is held while the positions are written. It comes before mu.
	saving    sync.Mutex
	positions *wholefile.File
	saved     []byte // what the file has

	mu sync.Mutex
	// work wakes the goroutine that writes, when pending is set.
	work    sync.Cond
	pending bool
	closed  bool
	// waiting are the appends that are not written yet, in order.
	waiting []*appending
	// segments ascend. All but the active one are sealed.
	segments []*segment
	// gone are the numbers of segments that were deleted, and come after records that are still there.
	gone intervals
	// next is the number of the next record.
	next      uint64
	policies  map[string]OnFull
	streams   map[string]tally
	consumers map[string]*Consumer
	// used is the bytes of the records of all streams, and of the group that is being put together.
	used     int64
	losses   map[LossKey]tally
	untold   []Loss
	writeErr error
	// grown is closed and replaced when a consumer has something to look at.
	grown chan struct{}
}

// LossKey is what losses are counted by.
type LossKey struct {
	Stream string
	Reason Reason
}

// segment is what is known of a segment's file. Spool.mu guards it, except for path and the header.
type segment struct {
	path string
	header
	// next is the number after the last acknowledged record, and end the offset after it.
	next uint64
	end  int64
	size int64
	// records is how many records the file has, dropped or not.
	records uint64
	// durable is the number that all acknowledged records are below. It is below next if a crash left records
	// of a group that may not have been acknowledged.
	durable  uint64
	newestMs int64
	sealed   bool
	// streams counts the records. Those of the streams in dropped, which only a sealed segment has, do not
	// count any more.
	streams map[string]tally
	dropped map[string]bool
	// generation counts how often the file was written anew.
	generation int
	// told are the offsets of damages that were reported.
	told map[int64]bool
}

func (g *segment) live() (bytes int64) {
	for _, t := range g.streams {
		bytes += t.Bytes
	}
	return bytes
}

// appending is a call of Append.
type appending struct {
	Record
	sum    uint32
	result chan error
}

// Register sets what a stream does when the spool is full. Streams that nobody registered block.
func (s *Spool) Register(stream string, onFull OnFull) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policies[stream] = onFull
	s.wake()
}

// Append adds a record, and returns when it is durable. It MUST NOT be called for the next record of the same
// stream before that if the order of the stream matters.
//
// It returns ErrTooLarge, ErrFull, ErrClosed or the error of the file system: then the record is not
// acknowledged, and a consumer may see it or not. If there is no room and the stream waits, it ends with
// ctx. The payload is not kept.
func (s *Spool) Append(ctx context.Context, r Record) error {
	if len(r.Stream) == 0 || len(r.Stream) > maxName {
		return fmt.Errorf("the name of a stream has 1 to %d bytes, not %d", maxName, len(r.Stream))
	}
	if frameSize(&r) > s.opts.SegmentBytes/4 {
		return fmt.Errorf("%w: it has %d bytes", ErrTooLarge, len(r.Payload))
	}
	a := &appending{Record: r, sum: crc32.Checksum(r.Payload, castagnoli), result: make(chan error, 1)}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.waiting = append(s.waiting, a)
	s.wake()
	s.mu.Unlock()
	select {
	case err := <-a.result:
		return err
	case <-ctx.Done():
	}
	s.mu.Lock()
	if i := slices.Index(s.waiting, a); i >= 0 {
		s.waiting = slices.Delete(s.waiting, i, i+1)
		a.result <- context.Cause(ctx)
	}
	s.mu.Unlock()
	return <-a.result
}

// wake has the goroutine that writes look again. s.mu is held.
func (s *Spool) wake() {
	s.pending = true
	s.work.Signal()
}

// tell wakes all consumers. s.mu is held.
func (s *Spool) tell() {
	close(s.grown)
	s.grown = make(chan struct{})
}

// Sync makes the positions of all consumers durable, and drops what is too old. Call it every second or so:
// what was acknowledged since the last call may be read again after a crash.
func (s *Spool) Sync() error {
	s.mu.Lock()
	s.wake()
	s.mu.Unlock()
	return s.savePositions()
}

// Close writes and syncs what waits, except where there is no room, and lets go of the directory. It returns
// the error of the last write of the positions.
func (s *Spool) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return ErrClosed
	}
	s.closed = true
	s.wake()
	s.tell()
	s.mu.Unlock()
	<-s.done
	err := s.savePositions()
	return errors.Join(err, s.lock.Close())
}

func (s *Spool) lose(l Loss) {
	k := LossKey{l.Stream, l.Reason}
	t := s.losses[k]
	t.Records += l.Records
	t.Bytes += l.Bytes
	s.losses[k] = t
	s.untold = append(s.untold, l)
}

// report calls OnLoss for what lose has recorded. s.mu is not held.
func (s *Spool) report() {
	s.mu.Lock()
	untold := s.untold
	s.untold = nil
	s.mu.Unlock()
	for _, l := range untold {
		s.opts.OnLoss(l)
	}
}

// Stats is the state of a spool.
type Stats struct {
	Segments int
	// FileBytes is what the segments take on disk.
	FileBytes int64
	// Streams is what each stream has in the spool, in records and in bytes of the files.
	Streams map[string]StreamStats
	// Losses counts since Open.
	Losses map[LossKey]Count
	// Consumers has, for each, how many numbers it is behind the end. Some of these may be dropped.
	Consumers map[string]uint64
	// Waiting is how many calls of Append have not returned.
	Waiting int
	// Err is why the last write failed. It is nil once a write has succeeded.
	Err error
}

// Count is a number of records and what they take in the files.
type Count struct {
	Records uint64
	Bytes   int64
}

// StreamStats is the state of a stream.
type StreamStats struct {
	Count
	OnFull OnFull
}

// Stats returns the state of the spool.
func (s *Spool) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Stats{
		Segments: len(s.segments), FileBytes: s.fileBytes(), Streams: map[string]StreamStats{},
		Losses: map[LossKey]Count{}, Consumers: map[string]uint64{}, Waiting: len(s.waiting), Err: s.writeErr,
	}
	for name, t := range s.streams {
		st.Streams[name] = StreamStats{Count(t), s.policies[name]}
	}
	for k, t := range s.losses {
		st.Losses[k] = Count(t)
	}
	for name, c := range s.consumers {
		st.Consumers[name] = s.next - min(c.acked, s.next)
	}
	return st
}

func (s *Spool) fileBytes() (n int64) {
	for _, g := range s.segments {
		n += g.size
	}
	return n
}

// oldest returns the lowest position of all consumers, and false if there are none.
func (s *Spool) oldest() (uint64, bool) {
	if len(s.consumers) == 0 {
		return 0, false
	}
	lowest := s.next
	for c := range maps.Values(s.consumers) {
		lowest = min(lowest, c.acked)
	}
	return lowest, true
}

// run is the goroutine that writes.
func (s *Spool) run() {
	defer close(s.done)
	for {
		s.mu.Lock()
		for !s.pending {
			s.work.Wait()
		}
		// Those who were just acknowledged get the chance to append again, so that they share this sync.
		for n := -1; len(s.waiting) > n; {
			n = len(s.waiting)
			s.mu.Unlock()
			runtime.Gosched()
			s.mu.Lock()
		}
		s.pending = false
		closed := s.closed
		s.mu.Unlock()

		s.expire()
		group, again := s.admit()
		if again {
			s.seal()
		}
		s.report() // what is dropped, before it is gone from the disk
		s.release()
		s.clean()
		if len(group) > 0 {
			s.commit(group)
		}
		s.report()
		if len(group) == 0 && !again && closed {
			s.mu.Lock()
			for _, a := range s.waiting {
				a.result <- ErrClosed
			}
			s.waiting = nil
			s.mu.Unlock()
			s.seal()
			return
		}
	}
}
