package spool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/quern/quern/internal/wholefile"
)

const (
	segmentSuffix = ".spool"
	lockName      = "LOCK"
	// damagedSuffix is added to the name of a segment that has no header: nothing in it can be read.
	damagedSuffix = ".damaged"
)

// Open opens the spool in dir, which it creates, and locks it. It reads the footers of the segments, and as a
// whole only those that have none, which is the last one after a crash.
//
// It fails if another process has the directory, if a segment or the positions are of an unknown version
// (ErrVersion, wholefile.ErrVersion), or if the file system does. All that is damaged is reported to
// Options.OnLoss and passed over.
func Open(dir string, opts Options) (_ *Spool, err error) {
	opts.ensureDefaults()
	if opts.SegmentBytes < 1024 {
		return nil, fmt.Errorf("a spool of %d bytes is too small: it needs 32 KiB, in segments of 1 KiB", opts.MaxBytes)
	}
	if err := wholefile.MakeDir(opts.FS, dir); err != nil {
		return nil, err
	}
	lock, err := opts.FS.Lock(opts.FS.PathJoin(dir, lockName))
	if err != nil {
		return nil, fmt.Errorf("cannot lock %s, which one process at a time may use: %w", dir, err)
	}
	s := &Spool{
		opts: opts, dir: dir, lock: lock, done: make(chan struct{}), grown: make(chan struct{}),
		policies: map[string]OnFull{}, streams: map[string]tally{}, consumers: map[string]*Consumer{}, losses: map[LossKey]tally{},
		positions: wholefile.New(opts.FS, dir, positionsName, positionsKind, positionsVersion),
	}
	s.work.L = &s.mu
	if err := s.recover(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	s.report()
	go s.run()
	return s, nil
}

func (s *Spool) recover() error {
	if err := s.findSegments(); err != nil {
		return err
	}
	fallback, err := s.loadPositions()
	if err != nil {
		return err
	}
	// A gap between segments is a segment that is missing, or the damaged end of one. It is no loss where all
	// consumers are past it.
	lowest, some := s.lowestPosition()
	for i, g := range s.segments {
		if i > 0 && s.segments[i-1].next < g.before {
			s.missing(max(lowest, s.segments[i-1].next), g.before)
		}
		s.durable = max(s.durable, g.next)
	}
	if some && len(s.segments) > 0 && !fallback {
		s.missing(lowest, s.segments[0].before)
	}
	for _, c := range s.consumers {
		if c.acked > s.durable {
			s.missing(s.durable, c.acked)
			s.durable = c.acked
		}
	}
	s.next = s.durable
	for _, g := range s.segments {
		for stream, t := range g.streams {
			all := s.streams[stream]
			all.Records += t.Records
			all.Bytes += t.Bytes
			s.streams[stream] = all
			s.used += t.Bytes
		}
	}
	return nil
}

func (s *Spool) lowestPosition() (lowest uint64, ok bool) {
	for _, c := range s.consumers {
		if !ok || c.acked < lowest {
			lowest, ok = c.acked, true
		}
	}
	return lowest, ok
}

func (s *Spool) missing(from, to uint64) {
	for _, part := range s.gone.without(from, to) {
		s.lose(Loss{
			Reason: Damaged, Records: part[1] - part[0],
			Err: fmt.Errorf("%s: %w: the records %d to %d are missing, with the segment that had them or with its end", s.dir, errDamaged, part[0], part[1]-1),
		})
	}
}

func (s *Spool) findSegments() error {
	names, err := s.opts.FS.List(s.dir)
	if err != nil {
		return err
	}
	slices.Sort(names)
	last := ""
	for _, name := range names {
		if strings.HasSuffix(name, segmentSuffix) {
			last = name
		}
	}
	for _, name := range names {
		path := s.opts.FS.PathJoin(s.dir, name)
		if strings.HasSuffix(name, segmentSuffix+".new") {
			// It was to replace a segment, which is still there.
			if err := s.opts.FS.Remove(path); err != nil {
				return err
			}
			continue
		}
		first, err := strconv.ParseUint(strings.TrimSuffix(name, segmentSuffix), 16, 64)
		if err != nil || name != segmentName(first) {
			continue
		}
		g, err := s.load(path, first, name == last)
		switch {
		case errors.Is(err, errDamaged):
			s.lose(Loss{Reason: Damaged, Err: fmt.Errorf("%s: %w; it is kept as %s", path, err, name+damagedSuffix)})
			if err := s.opts.FS.Rename(path, path+damagedSuffix); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		case g.records == 0 && g.next == first:
			// A crash came before its first group was durable.
			if err := s.opts.FS.Remove(path); err != nil {
				return err
			}
		default:
			s.segments = append(s.segments, g)
		}
	}
	return nil
}

// load reads what is to know of a segment: from its footer, or from its records, which then get a footer.
func (s *Spool) load(path string, first uint64, last bool) (*segment, error) {
	file, err := s.opts.FS.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	g := &segment{path: path, size: info.Size(), next: first, sealed: true, streams: map[string]tally{}}
	b := make([]byte, headerBytes)
	n, err := file.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if b = b[:n]; len(strings.Trim(string(b), "\x00")) == 0 && (last || g.size == 0) {
		return g, nil // not begun
	}
	if g.header, err = decodeHeader(b); err != nil {
		return nil, err
	}
	if g.first != first {
		return nil, fmt.Errorf("%w: its name says that it begins with record %d, its header %d", errDamaged, first, g.first)
	}
	if f, ok := readFooter(file, g.size, g.header); ok {
		g.next, g.end, g.durable, g.newestMs, g.records, g.streams = f.next, f.end, f.durable, f.newestMs, f.records, f.streams
		return g, nil
	}
	if err := s.scan(g, file); err != nil {
		return nil, err
	}
	s.addFooter(g)
	return g, nil
}

// scan reads a segment without a footer: its writer was interrupted. What is behind its last record is cut off.
func (s *Spool) scan(g *segment, file vfs.File) error {
	g.end = headerBytes
	var tail *damage
	for sc := newScanner(file, g.header, g.size, 0, 0); ; {
		f, bad, err := sc.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if bad != nil {
			if tail == nil {
				tail = &damage{offset: bad.offset, torn: true}
			}
			tail.bytes += bad.bytes
			continue
		}
		tail = nil
		g.end = sc.off
		g.next = f.number + 1
		g.records = uint64(f.index) + 1
		g.durable = max(g.durable, f.group)
		g.newestMs = max(g.newestMs, f.TimeMs)
		t := g.streams[f.Stream]
		t.add(frameSize(&f.Record))
		g.streams[f.Stream] = t
	}
	if tail != nil {
		s.tellDamage(g, g.generation, tail)
	}
	return nil
}

// addFooter saves the next Open the reading. It does not matter if it fails.
func (s *Spool) addFooter(g *segment) {
	file, err := s.opts.FS.OpenReadWrite(g.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return
	}
	f := g.footer()
	b := f.append(nil, g.salt)
	_, err = file.WriteAt(b, g.size)
	if errors.Join(err, file.Sync(), file.Close()) == nil {
		g.size += int64(len(b))
	}
}

// loadPositions returns true if they may be older than what the segments say.
func (s *Spool) loadPositions() (fallback bool, err error) {
	var p positions
	warning, err := s.positions.Load(func(data []byte) error {
		p = positions{}
		if err := json.Unmarshal(data, &p); err != nil {
			return s.positions.Damaged("%v", err)
		}
		return nil
	})
	switch {
	case errors.Is(err, wholefile.ErrDamaged):
		// Without positions all is sent again, which counts once.
		warning = fmt.Errorf("%w; consumers begin with the oldest record", err)
	case err != nil:
		return false, err
	}
	if warning != nil {
		s.lose(Loss{Reason: Damaged, Err: warning})
	}
	s.gone = p.Gone
	for name, position := range p.Consumers {
		s.consumers[name] = &Consumer{spool: s, name: name, acked: position}
	}
	for _, g := range s.segments {
		for _, stream := range p.Dropped[strconv.FormatUint(g.first, 10)] {
			if g.dropped == nil {
				g.dropped = map[string]bool{}
			}
			g.dropped[stream] = true
			delete(g.streams, stream)
		}
	}
	return warning != nil, nil
}
