package cache

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/invariants"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Group is the samples of one block in one raw slice, sorted by
// metric.CompareSamples, no two with the same schedule and time, not empty.
type Group struct {
	Slice   metric.Slice
	Block   blocks.Range
	Samples []metric.Sample
}

// check asserts what a chunk and its mark rely on.
func (g *Group) check() {
	invariants.Check(len(g.Samples) > 0, "empty group of block %d", g.Block.Start)
	for i, s := range g.Samples {
		invariants.Check(g.Block.Contains(s.Schedule) && g.Slice.Contains(s.TimeMs),
			"schedule %d at %d lies outside block %d of slice %s", s.Schedule, s.TimeMs, g.Block.Start, g.Slice)
		invariants.Check(i == 0 || metric.CompareSamples(g.Samples[i-1], s) < 0,
			"samples of block %d are out of order at %d", g.Block.Start, i)
	}
}

// Writer is ingest's side of the protocol. It remembers which marks this process
// has written, so that a block costs two marks a slice and not one a flush. It is
// not safe for concurrent use: flushes come one after the other.
type Writer struct {
	cache     *Cache
	groupSize int

	// written is what the index of each slice that is not closed holds of this process,
	// by the slice's start. A mark that lies there stands for everything that reaches
	// the raw table before the slice's run begins.
	written map[int64]*written
	// closedMs is the end of the newest slice that Seal has found closed. What is opened in it again is not sealed.
	closedMs int64
	// suspect are blocks of closed slices that a flush failed on: what it left in the raw
	// table may have missed their run. Their marks go out with the next flush, or by Settle.
	suspect map[blockKey]struct{}
	// stray are marks of flushes that failed which may lie in closed slices, where nobody may look again. They are
	// taken back once those of the suspect blocks, which stand for the same, have been written.
	stray []storage.PlacedMark
}

type blockKey struct {
	sliceMs int64
	start   metric.ScheduleID
}

type lateKey struct {
	timeMs int64
	id     metric.ScheduleID
}

type written struct {
	// complete: the slice's run is over, whatever the clock says.
	complete bool
	open     map[metric.ScheduleID]*openBlock
	late     map[lateKey]struct{}
}

// openBlock is a block that this process has marked as open.
type openBlock struct {
	mark   blocks.ID
	chunks int
	// torn: a flush failed, and nobody knows what it left in cache and raw table. The
	// mark stays open.
	torn bool
}

// maxRememberedLate bounds the memory of late schedules per slice. Beyond it marks
// are written again, which costs rows and nothing else.
const maxRememberedLate = 1 << 18

// NewWriter makes the writing side for one ingest process.
func NewWriter(c *Cache) *Writer {
	return &Writer{
		cache:     c,
		groupSize: c.store.Settings().GroupSize,
		written:   make(map[int64]*written),
		suspect:   make(map[blockKey]struct{}),
	}
}

// Flush makes the groups durable together with the marks that lead a run to them,
// and returns nil only then. After an error any part of them may have been
// written, and no roll-up relies on a cache that may lack that part.
func (w *Writer) Flush(ctx context.Context, groups []Group) error {
	if invariants.Enabled {
		for _, g := range groups {
			g.check()
		}
	}
	f, err := w.begin(ctx, groups)
	if err != nil {
		return err
	}
	if err := w.write(ctx, f); err != nil {
		w.failed(f)
		return err
	}
	w.succeeded(f)
	return nil
}

// flush is one flush under way. Each group relies on a mark in its own slice, or in the slice that
// was current when the flush began if it was late by then.
type flush struct {
	startedMs int64
	current   metric.Slice
	groups    []Group
	suspects  []blockKey
	// opened are the marks of blocks that it is the first to write to, late those for
	// slices that are closed, and placed the same where they have been put.
	opened []storage.PlacedMark
	late   []storage.Mark
	placed []storage.PlacedMark
	// settledMs is when the races were settled; what was opened in slices that had
	// closed by then has been taken back.
	settledMs int64
}

func (w *Writer) begin(ctx context.Context, groups []Group) (*flush, error) {
	now := clock.NowMs(w.cache.clk)
	maps.DeleteFunc(w.written, func(start int64, _ *written) bool {
		return w.cache.timing.Due(w.cache.ladder.SliceAt(metric.Raw, start), now)
	})
	// Cache.current, with what the store answered remembered.
	current, err := w.cache.current(metric.Raw, now, func(s metric.Slice) (bool, error) {
		x, err := w.in(ctx, s, now)
		return err == nil && x.complete, err
	})
	if err != nil {
		return nil, err
	}
	f := &flush{
		startedMs: now, current: current, groups: groups,
		// In order, so that the same history writes the same rows in the same order.
		suspects: slices.SortedFunc(maps.Keys(w.suspect), func(a, b blockKey) int {
			return cmp.Or(cmp.Compare(a.sliceMs, b.sliceMs), cmp.Compare(a.start, b.start))
		}),
	}
	for _, g := range groups {
		if _, err := w.in(ctx, g.Slice, now); err != nil {
			return nil, err
		}
		if w.late(f, g.Slice) {
			f.late = w.appendLate(f.late, f.current, g)
		} else if w.written[g.Slice.StartMs].open[g.Block.Start] == nil {
			f.opened = append(f.opened, w.cache.own(storage.MarkOpen, metric.Raw, g.Slice, g.Block.Start, w.cache.ids.Next(now), 0))
		}
	}
	for _, k := range f.suspects {
		f.late = append(f.late, storage.Mark{Start: k.start, TimeMs: k.sliceMs, Kind: storage.MarkLate})
	}
	return f, nil
}

// late says whether the slice was closed when the flush began.
func (w *Writer) late(f *flush, s metric.Slice) bool {
	return w.cache.timing.Closed(s, f.startedMs) || w.written[s.StartMs].complete
}

// missed says whether the run that a group of the slice relies on may have begun by nowMs.
func (w *Writer) missed(f *flush, s metric.Slice, nowMs int64) bool {
	if w.late(f, s) {
		s = f.current
	}
	return w.cache.timing.Closed(s, nowMs)
}

func (w *Writer) write(ctx context.Context, f *flush) error {
	f.placed = w.cache.place(metric.Raw, f.current, f.late)
	b := &storage.Batch{Marks: slices.Concat(f.opened, f.placed)}
	b.Open = slicesOf(b.Marks)
	w.encode(b, f)
	if err := w.cache.store.Write(ctx, b); err != nil {
		return err
	}
	return w.settle(ctx, f)
}

// settle closes the race with the runs (invariant 4). Where the slice that a group
// relies on has closed before the write was done, its run may have read the index
// without the mark or the raw table without the chunk: such a group gets a late
// mark, and the mark that nobody may ever look at is taken back.
func (w *Writer) settle(ctx context.Context, f *flush) error {
	now := clock.NowMs(w.cache.clk)
	f.settledMs = now
	var again []storage.Mark
	for _, g := range f.groups {
		if w.missed(f, g.Slice, now) {
			again = append(again, lateMark(g))
		}
	}
	if w.cache.timing.Closed(f.current, now) {
		for _, m := range f.late {
			if len(m.Schedules) == 0 {
				again = append(again, m)
			}
		}
	}
	if err := w.cache.Put(ctx, 0, metric.Raw, again); err != nil {
		return err
	}
	return w.cache.takeBack(ctx, 0, slices.Concat(w.stray, f.opened, f.placed), now)
}

// failed notes what may be there in part.
func (w *Writer) failed(f *flush) {
	now := clock.NowMs(w.cache.clk)
	for _, g := range f.groups {
		if w.missed(f, g.Slice, now) {
			w.suspect[blockKey{g.Slice.StartMs, g.Block.Start}] = struct{}{}
		} else if w.late(f, g.Slice) {
			continue // its late mark was written before its chunk, or neither was
		} else if o := w.written[g.Slice.StartMs].open[g.Block.Start]; o != nil {
			o.torn = true
		}
		// A block that was to be opened is opened by another mark next time. If the first
		// one was written, it stays open and says that the cache is not to be used.
	}
	for _, m := range slices.Concat(f.opened, f.placed) {
		if w.cache.timing.Closed(w.cache.ladder.SliceAt(metric.Raw, m.Partition.StartMs), now) {
			w.stray = append(w.stray, m)
		}
	}
}

// succeeded notes what the index holds now.
func (w *Writer) succeeded(f *flush) {
	for _, k := range f.suspects {
		delete(w.suspect, k)
	}
	w.stray = nil // all were in closed slices
	for _, m := range f.opened {
		if !w.cache.timing.Closed(w.cache.ladder.SliceAt(metric.Raw, m.TimeMs), f.settledMs) {
			w.written[m.TimeMs].open[m.Start] = &openBlock{mark: m.ID}
		}
	}
	for _, g := range f.groups {
		if w.late(f, g.Slice) {
			continue
		}
		if o := w.written[g.Slice.StartMs].open[g.Block.Start]; o != nil {
			o.chunks += g.chunks()
		}
	}
	known := w.written[f.current.StartMs].late
	for _, m := range f.late {
		for _, id := range m.Schedules {
			if len(known) >= maxRememberedLate {
				clear(known)
			}
			known[lateKey{m.TimeMs, id}] = struct{}{}
		}
	}
}

// appendLate adds a mark for those of the group's schedules that the current
// slice's index does not hold yet.
func (w *Writer) appendLate(marks []storage.Mark, current metric.Slice, g Group) []storage.Mark {
	known := w.written[current.StartMs].late
	m := lateMark(g)
	m.Schedules = slices.DeleteFunc(m.Schedules, func(id metric.ScheduleID) bool {
		_, ok := known[lateKey{g.Slice.StartMs, id}]
		return ok
	})
	if len(m.Schedules) == 0 {
		return marks
	}
	return append(marks, m)
}

func lateMark(g Group) storage.Mark {
	m := storage.Mark{Start: g.Block.Start, TimeMs: g.Slice.StartMs, Kind: storage.MarkLate}
	for i, s := range g.Samples {
		if i == 0 || s.Schedule != g.Samples[i-1].Schedule {
			m.Schedules = append(m.Schedules, s.Schedule)
		}
	}
	return m
}

func slicesOf(marks []storage.PlacedMark) []storage.SliceKey {
	var out []storage.SliceKey
	for _, m := range marks {
		if !slices.Contains(out, m.Partition.SliceKey) {
			out = append(out, m.Partition.SliceKey)
		}
	}
	return out
}

// in is what the index of a slice holds of this process, nil for a closed one. The
// first time that a slice is asked for, the store is asked whether it is complete.
func (w *Writer) in(ctx context.Context, s metric.Slice, nowMs int64) (*written, error) {
	x := w.written[s.StartMs]
	if x != nil || w.cache.timing.Closed(s, nowMs) {
		return x, nil
	}
	complete, err := w.cache.complete(ctx, metric.Raw, s)
	if err != nil {
		return nil, err
	}
	x = &written{
		complete: complete,
		open:     make(map[metric.ScheduleID]*openBlock),
		late:     make(map[lateKey]struct{}),
	}
	w.written[s.StartMs] = x
	return x, nil
}
