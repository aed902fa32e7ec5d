package spool

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"syscall"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/invariants"
	"github.com/quern/quern/internal/wholefile"
)

// This file holds what only the goroutine that writes calls.

// admit takes the appends that have room from those that wait. Those of one stream stay in their order. again
// says that a stream is to drop what it has in the active segment, which must be sealed before.
func (s *Spool) admit() (group []*appending, again bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var size int64
	limit := s.limit()
	blocked := map[string]bool{}
	left := s.waiting[:0]
	for i, a := range s.waiting {
		n := frameSize(&a.Record)
		if size+n > s.opts.SegmentBytes/4 {
			left = append(left, s.waiting[i:]...)
			break
		}
		if blocked[a.Stream] {
			left = append(left, a)
			continue
		}
		switch s.makeRoom(a.Stream, n, limit) {
		case roomNow:
			group = append(group, a)
			size += n
			s.used += n
		case roomNever:
			s.lose(Loss{Stream: a.Stream, Reason: Full, Records: 1, Bytes: n})
			a.result <- ErrFull
		case roomOnceSealed:
			again = true
			s.pending = true
			fallthrough
		case roomLater:
			blocked[a.Stream] = true
			left = append(left, a)
		}
	}
	clear(s.waiting[len(left):])
	s.waiting = left
	return group, again
}

// room says whether there is room for a record.
type room int

const (
	roomNow        room = iota
	roomLater           // once consumers have acknowledged
	roomOnceSealed      // once the active segment is sealed
	roomNever           // the record is lost
)

// limit returns the bytes that records may take: MaxBytes without an eighth for dropped records, a segment for
// what the active one grows ahead, and all that is no record: headers, footers, unused ends. s.mu is held.
func (s *Spool) limit() int64 {
	limit := s.opts.MaxBytes - s.opts.MaxBytes/8 - s.opts.SegmentBytes
	for _, g := range s.segments {
		limit -= g.size - (g.end - headerBytes)
	}
	return limit
}

// makeRoom has streams drop records until there is room for n bytes of a stream within the limit, if any may
// drop. s.mu is held.
func (s *Spool) makeRoom(stream string, n, limit int64) room {
	streams := int64(len(s.streams))
	if _, ok := s.streams[stream]; !ok {
		streams++
	}
	share := limit / (streams + 1)
	if s.policies[stream] == Block && s.streams[stream].Bytes+n > share {
		limit -= limit / 8
	}
	for s.used+n > limit {
		victim, most := stream, s.streams[stream].Bytes
		for name, t := range s.streams {
			if s.policies[name] == DropOldest && t.Bytes > share && (t.Bytes > most || t.Bytes == most && name < victim) {
				victim, most = name, t.Bytes
			}
		}
		if s.policies[victim] == Block {
			return roomLater
		}
		i := slices.IndexFunc(s.segments, func(g *segment) bool { return g.streams[victim].Records > 0 })
		switch {
		case i < 0:
			return roomNever
		case !s.segments[i].sealed:
			return roomOnceSealed
		}
		lost := s.unread(s.segments[i])[victim]
		s.lose(Loss{Stream: victim, Reason: Full, Records: lost.Records, Bytes: lost.Bytes})
		s.drop(s.segments[i], victim)
	}
	return roomNow
}

// drop drops the records of a stream in a sealed segment. s.mu is held.
func (s *Spool) drop(g *segment, stream string) {
	if g.dropped == nil {
		g.dropped = map[string]bool{}
	}
	g.dropped[stream] = true
	s.subtract(stream, g.streams[stream])
	delete(g.streams, stream)
}

// subtract takes records out of the counts of the whole spool. s.mu is held.
func (s *Spool) subtract(stream string, t tally) {
	all := s.streams[stream]
	all.Records -= t.Records
	all.Bytes -= t.Bytes
	s.streams[stream] = all
	if all.Records == 0 {
		delete(s.streams, stream)
	}
	s.used -= t.Bytes
	invariants.Check(all.Bytes >= 0 && s.used >= 0, "the stream %q has %d bytes, the spool %d", stream, all.Bytes, s.used)
}

// unread counts the records of a segment that are not dropped and that some consumer has not acknowledged.
// s.mu is held. Only a segment that all consumers have in part is read for it.
func (s *Spool) unread(g *segment) map[string]tally {
	from, ok := s.oldest()
	if !ok || from <= g.first {
		return g.streams
	}
	counts := map[string]tally{}
	if from >= g.next {
		return counts
	}
	file, err := s.opts.FS.Open(g.path)
	if err != nil {
		return g.streams
	}
	defer func() { _ = file.Close() }() // it was only read
	sc := newScanner(file, g.header, g.end, g.records, g.durable)
	for {
		f, bad, err := sc.next()
		switch {
		case errors.Is(err, io.EOF):
			return counts
		case err != nil:
			return g.streams
		case bad == nil && f.number >= from && !g.dropped[f.Stream]:
			t := counts[f.Stream]
			t.add(frameSize(&f.Record))
			counts[f.Stream] = t
		}
	}
}

// commit writes a group, syncs it and acknowledges it.
func (s *Spool) commit(group []*appending) {
	frames := make([]frame, len(group))
	var size int64
	for i, a := range group {
		frames[i] = frame{Record: a.Record, number: s.next + uint64(i), group: s.next, sum: a.sum}
		size += frameSize(&a.Record)
	}
	err := s.write(frames, size)
	s.mu.Lock()
	s.writeErr = err
	s.next += uint64(len(group)) // also after an error: some of them may be on disk
	if err != nil {
		s.used -= size
	} else {
		g := s.active
		if g.records == 0 {
			s.segments = append(s.segments, g)
		}
		for i := range frames {
			r := &frames[i].Record
			t := g.streams[r.Stream]
			t.add(frameSize(r))
			g.streams[r.Stream] = t
			t = s.streams[r.Stream]
			t.add(frameSize(r))
			s.streams[r.Stream] = t
			g.newestMs = max(g.newestMs, r.TimeMs)
		}
		g.end += size
		g.records += uint64(len(frames))
		g.next, g.durable, s.durable = s.next, s.next, s.next
		s.tell()
	}
	s.pending = s.pending || len(s.waiting) > 0
	s.mu.Unlock()
	for _, a := range group {
		a.result <- err
	}
}

// write makes frames durable at the end of the active segment, or of a new one. After an error there is no
// active segment.
func (s *Spool) write(frames []frame, size int64) error {
	if s.active != nil && s.active.end+size > s.opts.SegmentBytes {
		s.seal()
	}
	fresh := s.active == nil
	if fresh {
		if err := s.create(); err != nil {
			return fmt.Errorf("cannot begin a segment: %w", err)
		}
	}
	g := s.active
	b := s.buffer[:0]
	at := g.end
	if fresh {
		b, at = g.header.append(b), 0
	}
	for i := range frames {
		frames[i].index = uint32(g.records) + uint32(i)
		b = frames[i].append(b, g.header, at+int64(len(b)))
	}
	// The file grows ahead of the records, as a sync that changes no length is twice as fast.
	grown := g.size
	if end := at + int64(len(b)); end > grown {
		step := max(1, min(256<<10, s.opts.SegmentBytes/64))
		grown = (end + step - 1) / step * step
		b = append(b, make([]byte, grown-end)...)
	}
	s.buffer = b
	_, err := s.activeFile.WriteAt(b, at)
	if err == nil {
		err = s.activeFile.SyncData()
	}
	if err == nil && fresh {
		err = wholefile.SyncDir(s.opts.FS, s.dir)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", g.path, errors.Join(err, s.abandon()))
	}
	s.mu.Lock()
	g.size = grown
	s.mu.Unlock()
	return nil
}

// create begins a segment. Its header is written together with its first group.
func (s *Spool) create() error {
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return err
	}
	g := &segment{
		path:    s.opts.FS.PathJoin(s.dir, segmentName(s.next)),
		header:  header{salt: binary.LittleEndian.Uint64(salt[:]), first: s.next, before: s.durable},
		streams: map[string]tally{}, end: headerBytes, next: s.next,
	}
	// A file of that name has no acknowledged records.
	if err := s.opts.FS.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := s.opts.FS.OpenReadWrite(g.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	s.active, s.activeFile, s.activeSince = g, file, s.opts.Clock.Elapsed()
	return nil
}

// abandon gives up the active segment after a failed write. What was acknowledged of it stays.
func (s *Spool) abandon() error {
	g := s.active
	err := s.activeFile.Close()
	s.active, s.activeFile = nil, nil
	if g.records == 0 {
		// If it stays, it is read at the next Open, and has no acknowledged records.
		return errors.Join(err, s.opts.FS.Remove(g.path))
	}
	s.mu.Lock()
	g.sealed = true
	s.mu.Unlock()
	return err
}

// seal ends the active segment with its footer. Without one, if that fails, the next Open reads the segment.
func (s *Spool) seal() {
	g := s.active
	if g == nil {
		return
	}
	f := g.footer()
	b := f.append(nil, g.salt)
	_, err := s.activeFile.WriteAt(b, g.size)
	err = errors.Join(err, s.activeFile.Sync(), s.activeFile.Close())
	s.active, s.activeFile = nil, nil
	s.mu.Lock()
	defer s.mu.Unlock()
	g.sealed = true
	g.size += int64(len(b))
	if err != nil {
		s.writeErr = err
	}
}

// expire drops the segments whose records are all too old. The active one is sealed after a sixteenth of the
// age, so that its oldest records do not wait long for its newest ones.
func (s *Spool) expire() {
	if s.active != nil && s.opts.Clock.Elapsed()-s.activeSince > s.opts.MaxAge/16 {
		s.seal()
	}
	horizonMs := s.opts.Clock.Now().Add(-s.opts.MaxAge).UnixMilli()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.segments {
		if !g.sealed || g.newestMs >= horizonMs || len(g.streams) == 0 {
			continue
		}
		for stream, t := range s.unread(g) {
			s.lose(Loss{Stream: stream, Reason: Age, Records: t.Records, Bytes: t.Bytes})
		}
		s.empty(g)
	}
}

// empty drops all records of a sealed segment. s.mu is held.
func (s *Spool) empty(g *segment) {
	for stream := range g.streams {
		s.drop(g, stream)
	}
}

// release deletes the segments that nobody needs: all consumers are past them, or all their records are dropped.
func (s *Spool) release() {
	s.mu.Lock()
	lowest, some := s.oldest()
	var done []*segment
	for i, g := range s.segments {
		if !g.sealed || len(g.streams) > 0 && !(some && g.next <= lowest) {
			continue
		}
		if i == len(done) { // there is none before it
			for _, c := range s.consumers {
				c.acked = max(c.acked, g.next)
			}
		}
		done = append(done, g)
		s.gone = s.gone.with(interval{g.before, g.next})
	}
	s.mu.Unlock()
	if len(done) == 0 {
		return
	}
	// A full disk must not keep them: deleting is what makes room. A crash then reports them as missing.
	err := s.savePositions()
	if err != nil && !isNoSpace(err) {
		s.failed(err)
		return
	}
	for _, g := range done {
		if err := s.opts.FS.Remove(g.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.failed(err)
			return
		}
		s.mu.Lock()
		s.empty(g)
		s.segments = slices.DeleteFunc(s.segments, func(other *segment) bool { return other == g })
		s.mu.Unlock()
	}
	s.mu.Lock()
	s.pending = s.pending || len(s.waiting) > 0 // there is room
	s.mu.Unlock()
	// Before positions forget the numbers of these segments, which must not come back then.
	if err := wholefile.SyncDir(s.opts.FS, s.dir); err != nil {
		s.failed(err)
	}
}

func (s *Spool) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writeErr = err
}

// clean writes segments anew without their dropped records, once these take an eighth of MaxBytes. It begins
// with the segment that has most of them, so what it writes is at most eight times what it frees.
func (s *Spool) clean() {
	for {
		s.mu.Lock()
		var worst *segment
		var most, all int64
		for _, g := range s.segments {
			if dropped := g.end - headerBytes - g.live(); g.sealed && len(g.dropped) > 0 {
				all += dropped
				if dropped > most {
					worst, most = g, dropped
				}
			}
		}
		s.mu.Unlock()
		if all <= s.opts.MaxBytes/8 || worst == nil {
			return
		}
		if err := s.rewrite(worst); err != nil {
			s.failed(fmt.Errorf("cannot write %s anew: %w", worst.path, err))
			return
		}
	}
}

// rewrite replaces a sealed segment by one without its dropped records, and without those that all consumers
// have acknowledged. The records keep their numbers.
func (s *Spool) rewrite(g *segment) (err error) {
	s.mu.Lock()
	lowest, some := s.oldest()
	if !some {
		lowest = 0
	}
	s.mu.Unlock()
	from, err := s.opts.FS.Open(g.path)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }() // it was only read
	path := g.path + ".new"
	to, err := s.opts.FS.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	defer func() {
		if to != nil {
			err = errors.Join(err, to.Close(), s.opts.FS.Remove(path))
		}
	}()
	var salt [8]byte
	if _, err := rand.Read(salt[:]); err != nil {
		return err
	}
	n := &segment{header: g.header, streams: map[string]tally{}, next: g.next, durable: g.durable, newestMs: g.newestMs}
	n.salt = binary.LittleEndian.Uint64(salt[:])
	b := n.header.append(nil)
	flush := func() error {
		if _, err := to.Write(b); err != nil {
			return err
		}
		b = b[:0]
		return nil
	}
	n.end = headerBytes
	for sc := newScanner(from, g.header, g.end, g.records, g.durable); ; {
		f, bad, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if bad != nil {
			s.tellDamage(g, g.generation, bad)
			continue
		}
		if f.number < lowest || g.dropped[f.Stream] {
			continue
		}
		f.index = uint32(n.records)
		f.group = f.number // all below are durable
		b = f.append(b, n.header, n.end)
		n.end += frameSize(&f.Record)
		n.records++
		t := n.streams[f.Stream]
		t.add(frameSize(&f.Record))
		n.streams[f.Stream] = t
		if len(b) >= 1<<20 {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	foot := n.footer()
	b = foot.append(b, n.salt)
	n.size = n.end + int64(len(b))
	if err := flush(); err != nil {
		return err
	}
	if err := to.Sync(); err != nil {
		return err
	}
	err = to.Close()
	to = nil
	// A consumer that finds the new file waits for mu to learn that it is one.
	s.mu.Lock()
	if err == nil {
		err = s.opts.FS.Rename(path, g.path)
	}
	if err != nil {
		s.mu.Unlock()
		return errors.Join(err, s.opts.FS.Remove(path))
	}
	for stream, t := range g.streams {
		s.subtract(stream, t)
	}
	for stream, t := range n.streams {
		all := s.streams[stream]
		all.Records += t.Records
		all.Bytes += t.Bytes
		s.streams[stream] = all
		s.used += t.Bytes
	}
	g.header, g.streams, g.end, g.size, g.records = n.header, n.streams, n.end, n.size, n.records
	g.dropped, g.told = nil, nil
	g.generation++
	s.mu.Unlock()
	return wholefile.SyncDir(s.opts.FS, s.dir)
}

func (g *segment) footer() footer {
	return footer{next: g.next, end: g.end, durable: g.durable, newestMs: g.newestMs, records: g.records, streams: g.streams}
}

// tellDamage reports a damage once. In another generation of the segment it was reported already.
func (s *Spool) tellDamage(g *segment, generation int, d *damage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.generation != generation || g.told[d.offset] {
		return
	}
	if g.told == nil {
		g.told = map[int64]bool{}
	}
	g.told[d.offset] = true
	reason := Damaged
	if d.torn {
		reason = Torn
	}
	s.lose(Loss{
		Stream: d.stream, Reason: reason, Records: d.records, Bytes: d.bytes,
		Err: fmt.Errorf("%s: %w: %d bytes at offset %d", g.path, errDamaged, d.bytes, d.offset),
	})
}

func segmentName(first uint64) string { return fmt.Sprintf("%016x%s", first, segmentSuffix) }

func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
