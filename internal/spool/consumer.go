package spool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strconv"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Start is where a new consumer begins.
type Start int

const (
	// Oldest begins with all that the spool has.
	Oldest Start = iota
	// End begins with what is appended from now on.
	End
)

// Consumer reads the spool for one server. Next and Rewind are for one goroutine at a time.
type Consumer struct {
	spool *Spool
	name  string

	// acked is the position, and removed says that there is none any more. spool.mu guards both.
	acked   uint64
	removed bool

	// number is what the next batch begins with, or more.
	number uint64
	// file is open if it is not nil: the segment that begins with first, in its generation.
	file       vfs.File
	scanner    *scanner
	first      uint64
	generation int
}

// Batch is records in their order.
type Batch struct {
	Records []Record
	// End is the position after them, for Ack.
	End uint64
}

// Consumer returns the consumer of that name. If there is none yet, it is made durable first, and begins at
// start. Ask for each consumer once.
func (s *Spool) Consumer(name string, start Start) (*Consumer, error) {
	s.mu.Lock()
	c, ok := s.consumers[name]
	if !ok {
		c = &Consumer{spool: s, name: name, acked: s.durable}
		if start == Oldest && len(s.segments) > 0 {
			c.acked = min(s.durable, s.segments[0].first)
		}
		s.consumers[name] = c
	}
	s.mu.Unlock()
	if ok {
		return c, nil
	}
	if err := s.savePositions(); err != nil {
		s.mu.Lock()
		delete(s.consumers, name)
		s.mu.Unlock()
		return nil, err
	}
	return c, nil
}

// RemoveConsumer forgets a consumer and its position, so that it holds no segments. Its Next returns ErrClosed.
func (s *Spool) RemoveConsumer(name string) error {
	s.mu.Lock()
	if c, ok := s.consumers[name]; ok {
		c.removed = true
		delete(s.consumers, name)
		s.wake()
		s.tell()
	}
	s.mu.Unlock()
	return s.savePositions()
}

// Next returns the next records, in order: at least one, and more while their payloads have at most maxBytes
// together. It waits for the first, and ends with ctx. The caller owns the payloads.
//
// What is damaged is passed over and reported. An error of the file system is returned, and the next call
// tries again.
func (c *Consumer) Next(ctx context.Context, maxBytes int64) (Batch, error) {
	defer c.spool.report()
	for {
		if err := context.Cause(ctx); err != nil {
			return Batch{}, err
		}
		g, grown, err := c.segment()
		if err != nil {
			return Batch{}, err
		}
		if g == nil {
			select {
			case <-grown:
			case <-ctx.Done():
			}
			continue
		}
		b, err := c.read(g, maxBytes)
		if err != nil || len(b.Records) > 0 {
			return b, err
		}
	}
}

// view is what a consumer needs to know of a segment.
type view struct {
	segment    *segment
	header     header
	path       string
	generation int
	next       uint64
	end        int64
	records    uint64
	durable    uint64
	dropped    map[string]bool
}

// segment returns the segment with the next record, or nil and a channel that is closed when there may be one.
func (c *Consumer) segment() (*view, <-chan struct{}, error) {
	s := c.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || c.removed {
		return nil, nil, errors.Join(ErrClosed, c.close())
	}
	c.number = max(c.number, c.acked)
	// Segments ascend, and few are before the one that is read.
	i := slices.IndexFunc(s.segments, func(g *segment) bool { return g.next > c.number })
	if i < 0 {
		return nil, s.grown, nil
	}
	g := s.segments[i]
	return &view{
		segment: g, header: g.header, path: g.path, generation: g.generation, next: g.next, end: g.end,
		records: g.records, durable: g.durable, dropped: maps.Clone(g.dropped),
	}, nil, nil
}

// read reads a batch from a segment. At the segment's end it has no records, and the consumer is past it.
func (c *Consumer) read(v *view, maxBytes int64) (b Batch, err error) {
	if c.file == nil || c.first != v.header.first || c.generation != v.generation {
		err := c.open(v)
		switch {
		case err == nil:
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, errDamaged):
			return b, err
		case !c.spool.has(v):
			return b, nil // it was deleted or written anew meanwhile
		default:
			c.spool.tellDamage(v.segment, v.generation, &damage{bytes: v.end, records: min(v.records, v.next-c.number)})
			c.number = v.next
			return b, nil
		}
	}
	// The active segment has grown since the last call.
	c.scanner.end, c.scanner.records, c.scanner.durable = v.end, v.records, v.durable
	var size int64
	for {
		off, number, index := c.scanner.off, c.scanner.number, c.scanner.index
		f, bad, err := c.scanner.next()
		switch {
		case errors.Is(err, io.EOF):
			c.number = v.next
			b.End = c.number
			return b, nil
		case err != nil:
			// What is in the batch is read again.
			return Batch{}, errors.Join(err, c.Rewind())
		case bad != nil:
			c.spool.tellDamage(v.segment, v.generation, bad)
			continue
		case f.number < c.number || v.dropped[f.Stream]:
			continue
		case len(b.Records) > 0 && size+int64(len(f.Payload)) > maxBytes:
			c.scanner.off, c.scanner.number, c.scanner.index = off, number, index // read it again
			b.End = c.number
			return b, nil
		}
		f.Payload = slices.Clone(f.Payload)
		size += int64(len(f.Payload))
		b.Records = append(b.Records, f.Record)
		c.number = f.number + 1
	}
}

// has reports whether the segment is still there, in the same generation.
func (s *Spool) has(v *view) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Contains(s.segments, v.segment) && v.segment.generation == v.generation
}

func (c *Consumer) open(v *view) error {
	if err := c.close(); err != nil {
		return err
	}
	file, err := c.spool.opts.FS.Open(v.path)
	if err != nil {
		return err
	}
	// The file may be of another generation by now. Then its salt is another one, too.
	var b [headerBytes]byte
	if _, err := file.ReadAt(b[:], 0); err != nil && !errors.Is(err, io.EOF) {
		return errors.Join(err, file.Close())
	}
	if h, err := decodeHeader(b[:]); err != nil || h != v.header {
		return errors.Join(fmt.Errorf("%s: %w: its header has changed", v.path, errDamaged), file.Close())
	}
	c.file, c.first, c.generation = file, v.header.first, v.generation
	c.scanner = newScanner(file, v.header, v.end, v.records, v.durable)
	return nil
}

// Close lets go of the file that Next reads. The consumer and its position stay.
func (c *Consumer) Close() error { return c.Rewind() }

func (c *Consumer) close() error {
	if c.file == nil {
		return nil
	}
	err := c.file.Close()
	c.file, c.scanner = nil, nil
	return err
}

// Ack says that the server has all records before end, the End of a batch. The position is durable after the
// next Sync. An end below the position changes nothing.
func (c *Consumer) Ack(end uint64) {
	s := c.spool
	s.mu.Lock()
	defer s.mu.Unlock()
	c.acked = max(c.acked, min(end, s.next))
	if len(s.segments) > 0 && s.segments[0].sealed && s.segments[0].next <= c.acked {
		s.wake()
	}
}

// Rewind has Next begin with the first record that is not acknowledged.
func (c *Consumer) Rewind() error {
	c.number = 0
	return c.close()
}

// The file of positions: its name, its first word, and the version of its format.
const (
	positionsName    = "positions"
	positionsKind    = "quern-spool-positions"
	positionsVersion = 1
)

// positions is the JSON behind that file's first line.
type positions struct {
	// Consumers has the position of each.
	Consumers map[string]uint64 `json:"consumers"`
	// Dropped has the streams whose records in a segment are dropped. Segments are named by their first number.
	Dropped map[string][]string `json:"dropped,omitempty"`
	// Gone has the numbers of segments that were deleted while there were older ones.
	Gone intervals `json:"gone,omitempty"`
}

// interval is the numbers [from, to).
type interval [2]uint64

// intervals ascend, and do not touch.
type intervals []interval

// with returns the intervals and another one, which overlaps none.
func (is intervals) with(add interval) intervals {
	i, _ := slices.BinarySearchFunc(is, add, func(a, b interval) int { return cmp.Compare(a[0], b[0]) })
	is = slices.Insert(slices.Clone(is), i, add)
	merged := is[:1]
	for _, next := range is[1:] {
		if last := &merged[len(merged)-1]; next[0] <= last[1] {
			last[1] = max(last[1], next[1])
		} else {
			merged = append(merged, next)
		}
	}
	return merged
}

// without returns the parts of an interval that are in none of these.
func (is intervals) without(from, to uint64) (parts intervals) {
	for _, i := range is {
		if i[0] > from && from < to {
			parts = append(parts, interval{from, min(i[0], to)})
		}
		from = max(from, i[1])
	}
	if from < to {
		parts = append(parts, interval{from, to})
	}
	return parts
}

// savePositions makes the positions of all consumers durable, unless they already are.
func (s *Spool) savePositions() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	p := positions{Consumers: map[string]uint64{}}
	for name, c := range s.consumers {
		p.Consumers[name] = c.acked
	}
	if len(s.segments) == 0 {
		s.gone = nil
	} else {
		s.gone = slices.DeleteFunc(s.gone, func(i interval) bool { return i[1] <= s.segments[0].first })
	}
	p.Gone = slices.Clone(s.gone)
	for _, g := range s.segments {
		if len(g.dropped) > 0 {
			if p.Dropped == nil {
				p.Dropped = map[string][]string{}
			}
			p.Dropped[strconv.FormatUint(g.first, 10)] = slices.Sorted(maps.Keys(g.dropped))
		}
	}
	s.mu.Unlock()
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	if string(data) == string(s.saved) {
		return nil
	}
	if err := s.positions.Replace(append(data, '\n')); err != nil {
		return fmt.Errorf("cannot write the positions of the spool's consumers: %w", err)
	}
	s.saved = data
	return nil
}
