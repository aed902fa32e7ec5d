package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/invariants"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Group holds the samples of one block in one raw slice. It is not empty, it is sorted by
// metric.CompareSamples, and no two samples have the same schedule and time.
type Group struct {
	Slice   metric.Slice
	Block   blocks.Range
	Samples []metric.Sample
}

// check asserts what chunks and marks rely on.
func (g *Group) check() {
	invariants.Check(len(g.Samples) > 0, "empty group of block %d", g.Block.Start)
	for i, s := range g.Samples {
		invariants.Check(g.Block.Contains(s.Schedule) && g.Slice.Contains(s.TimeMs),
			"schedule %d at %d lies outside block %d of slice %s", s.Schedule, s.TimeMs, g.Block.Start, g.Slice)
		invariants.Check(i == 0 || metric.CompareSamples(g.Samples[i-1], s) < 0,
			"samples of block %d are out of order at %d", g.Block.Start, i)
	}
}

// Writer is ingest's side of the protocol. It remembers which marks this process has written, so
// that a block costs two marks per slice instead of one per flush. It is not safe for concurrent
// use: flushes run one after the other.
//
// A flush takes these steps:
//
//  1. mend writes the chunks of earlier failed flushes again. While that fails for a block, Flush
//     accepts nothing else for the block.
//  2. begin chooses the marks. The first flush into a block of an open slice writes an open mark.
//     Samples for a slice that is over get a late mark in the current slice.
//  3. encode packs the raw chunks and, unless the slice is over, the cache chunks.
//  4. write stores everything as one batch, in the order slices, marks, chunks. A mark without data
//     costs one empty read. Data without a mark is never ground.
//  5. settle checks the clock again. If the slice that a group relies on has closed meanwhile, its
//     run may have missed the mark or the chunk. settle puts a late mark first, then deletes the
//     mark that no run may read.
//  6. succeeded or failed records the outcome of each unit. The chunks of a failed unit are kept in
//     torn for step 1 (ADR 27). The mark of its block stays open, so that the run reads the raw
//     table.
//
// When the slice has closed, Seal replaces the open marks by fresh ones with the number of cache
// chunks (ADR 3).
type Writer struct {
	cache     *Cache
	groupSize int

	// written holds what this process has written to the index of each slice, by the start of the
	// slice. Seal, or the next flush once the run is due, removes the entry. A mark in that index
	// covers all data that reaches the raw table before the slice's run begins.
	written map[int64]*written
	// closedMs is the end of the newest slice that Seal has found closed. If the clock goes back,
	// slices up to there may be opened again; Seal does not seal them.
	closedMs int64
	// torn holds the chunks that failed flushes may have left on some copies of the raw table. A
	// repair or a hint may bring them to light at any later time. The next flush, or Settle, writes
	// them again before anything else (see mend).
	torn map[blockKey]*torn
	// tornBytes is the size of torn; see torn.bytes.
	tornBytes int
	// stray are marks in slices that are over, which could not be deleted yet. Other marks stand
	// for the same work.
	stray []storage.PlacedMark
}

type blockKey struct {
	sliceMs int64
	start   metric.ScheduleID
}

func (k blockKey) compare(o blockKey) int {
	return cmp.Or(cmp.Compare(k.sliceMs, o.sliceMs), cmp.Compare(k.start, o.start))
}

// torn holds the raw chunks that failed flushes had for one block of one slice.
type torn struct {
	slice  metric.Slice
	block  blocks.Range
	chunks []storage.RawChunk
	// stray are marks of those flushes in slices that may be over. They are deleted once other
	// marks for the same work are written.
	stray []storage.PlacedMark
}

type written struct {
	// complete: the slice's run is over, whatever the clock says.
	complete bool
	open     map[metric.ScheduleID]*openBlock
	late     map[blockKey]lateRow
	// named is the number of schedules that the rows of late name together.
	named int
}

// openBlock is a block that this process has marked as open.
type openBlock struct {
	mark   blocks.ID
	chunks int
	// torn: a flush failed, and what it left in the cache is unknown. The mark stays open.
	torn bool
}

// lateRow is the one late mark that this process keeps per block of a closed slice in the index of
// an open slice. When other schedules of the block come late, the writer writes the mark again
// under the same id. That is safe until the slice whose index holds it closes: no run has read the
// mark yet.
type lateRow struct {
	id        blocks.ID
	schedules []metric.ScheduleID // sorted; empty means the whole block
}

// maxNamed is the maximum number of schedules that a late mark names. A mark with more stands for
// the whole block (ADR 26). The run then computes rows that do not change, but ingest does not
// write the mark again for each schedule.
const maxNamed = 32

// maxRememberedLate bounds the memory of late marks per slice, in blocks plus schedules. Beyond it
// the writer forgets them and writes new marks, which costs only rows.
const maxRememberedLate = 1 << 18

// Torn reports whether chunks of failed flushes wait to be written again.
func (w *Writer) Torn() bool { return len(w.torn) > 0 }

// NewWriter returns the writer of one ingest process.
func NewWriter(c *Cache) *Writer {
	return &Writer{
		cache:     c,
		groupSize: c.store.Settings().GroupSize,
		written:   make(map[int64]*written),
		torn:      make(map[blockKey]*torn),
	}
}

// GroupsError says that some groups of a flush are durable and others are not.
type GroupsError struct {
	// Failed are the indexes of the groups that are not durable, ascending.
	Failed []int
	// Errs are the causes, in the order of Failed. A group whose cause is storage.ErrRefused is
	// given up: it is not written again.
	Errs []error
}

// Error implements error.
func (e *GroupsError) Error() string {
	return fmt.Sprintf("%d blocks not written: %s", len(e.Failed), e.Errs[0])
}

// Unwrap returns the causes.
func (e *GroupsError) Unwrap() []error { return e.Errs }

func (e *GroupsError) add(at int, err error) {
	i, _ := slices.BinarySearch(e.Failed, at)
	e.Failed, e.Errs = slices.Insert(e.Failed, i, at), slices.Insert(e.Errs, i, err)
}

// errTorn says that the chunks of an earlier failed flush come first, and cannot be written now.
var errTorn = fmt.Errorf("%w: an earlier write of the block failed, and cannot be repeated yet", storage.ErrUnavailable)

const (
	// maxTornBytes bounds the memory of torn chunks, in bytes. Beyond it Flush refuses all groups,
	// so that torn holds at most this much and one flush.
	maxTornBytes = 32 << 20
	// tornOverhead is what a torn block counts for beside its chunks: some memory, and the requests
	// that write it again.
	tornOverhead = 4 << 10
)

// bytes returns the size that counts towards maxTornBytes.
func (t *torn) bytes() int {
	n := tornOverhead
	for i := range t.chunks {
		n += len(t.chunks[i].Data)
	}
	return n
}

// Flush makes the groups durable together with marks that lead a run to them, and returns nil only
// then. If only some groups are durable, it returns a *GroupsError that names the others.
//
// After any error, parts of the failed groups may be stored. No roll-up relies on a cache that may
// lack those parts. The next Flush writes these groups again first, and until they are durable it
// writes nothing else to their blocks. So the memory of one block and slice holds at most what one
// flush had. A group that the store refuses for good is not stored and not tried again.
func (w *Writer) Flush(ctx context.Context, groups []Group) error {
	if invariants.Enabled {
		for _, g := range groups {
			g.check()
		}
	}
	// A block that cannot be written does not hold up the others.
	if err := w.mend(ctx); err != nil && (ctx.Err() != nil || w.tornBytes >= maxTornBytes) {
		return err
	}
	refused := &GroupsError{}
	var units []*unit
	var at []int
	away := w.outOfReach(ctx, groups)
	for i, g := range groups {
		if w.isTorn(g) {
			refused.add(i, errTorn)
			continue
		}
		if err := away[g.Slice.StartMs]; err != nil {
			refused.add(i, err)
			continue
		}
		at, units = append(at, i), append(units, &unit{groups: groups[i : i+1]})
	}
	if len(units) == 0 && len(groups) > 0 {
		return refused.Errs[0]
	}
	f, err := w.begin(ctx, units)
	if err != nil {
		return err
	}
	w.encode(f)
	err = w.finish(ctx, f)
	var some *storage.PartsError
	switch {
	case err != nil && !errors.As(err, &some):
		return err
	case some != nil:
		for i, part := range some.Failed {
			refused.add(at[part], some.Errs[i])
		}
	}
	if len(refused.Failed) == 0 {
		return nil
	}
	return refused
}

// isTorn reports whether chunks wait to be written again to the group's block.
func (w *Writer) isTorn(g Group) bool {
	if len(w.torn) == 0 {
		return false
	}
	if w.torn[blockKey{g.Slice.StartMs, g.Block.Start}] != nil {
		return true
	}
	for _, t := range w.torn { // the block size may have changed since
		if t.slice.StartMs == g.Slice.StartMs && t.block.Start < g.Block.End && g.Block.Start < t.block.End {
			return true
		}
	}
	return false
}

// outOfReach returns the error for each slice of the groups whose state the store cannot answer
// now. The states of different days lie in different partitions, so some may be away.
func (w *Writer) outOfReach(ctx context.Context, groups []Group) map[int64]error {
	out := make(map[int64]error)
	now := clock.NowMs(w.cache.clk)
	for _, g := range groups {
		if out[g.Slice.StartMs] != nil {
			continue
		}
		if _, err := w.in(ctx, g.Slice, now); storage.IsAway(err) {
			out[g.Slice.StartMs] = err
		}
	}
	return out
}

// finish writes a flush and records the outcome of each unit. A *storage.PartsError names the units
// that failed.
func (w *Writer) finish(ctx context.Context, f *flush) error {
	err := w.write(ctx, f)
	var some *storage.PartsError
	if err != nil && !errors.As(err, &some) {
		w.failed(f)
		return err
	}
	stored := f
	if some != nil {
		var lost *flush
		stored, lost = f.split(some)
		w.failed(lost)
	}
	if serr := w.settle(ctx, stored); serr != nil {
		w.failed(stored)
		return serr
	}
	w.succeeded(stored)
	return err
}

// mend writes the chunks of failed flushes again. They may lie on a minority of the copies, and a
// repair or a hint could bring them to light after the last run that is led to their block. The
// rows would then differ from the raw table (invariant 2). So mend repeats the very same chunks,
// with marks for all of their blocks, until a write succeeds.
func (w *Writer) mend(ctx context.Context) error {
	if len(w.torn) == 0 {
		return nil
	}
	// Sorted, so that the same history writes the same rows in the same order.
	keys := slices.SortedFunc(maps.Keys(w.torn), blockKey.compare)
	err := w.mendBlocks(ctx, keys...)
	var some *storage.PartsError
	if err != nil && !errors.As(err, &some) && !storage.IsAway(err) && len(keys) > 1 {
		// The store has failed the whole batch. The cause may be one block, so try each by itself.
		err = nil
		for _, k := range keys {
			if ctx.Err() != nil || storage.IsAway(err) {
				break
			}
			err = cmp.Or(w.mendBlocks(ctx, k), err)
		}
	}
	if err != nil {
		return fmt.Errorf("write again what an earlier flush may have left of %d blocks: %w", len(keys), err)
	}
	return nil
}

// mendBlocks writes the chunks of the given torn blocks again. A block stays torn if the store
// cannot say whether its slice is complete; the others are written.
func (w *Writer) mendBlocks(ctx context.Context, keys ...blockKey) error {
	var units []*unit
	var unknown error
	away := w.look(ctx)
	epochs := w.cache.store.Settings().Epochs
	for _, k := range keys {
		t := w.torn[k]
		if err := away[t.slice.StartMs]; err != nil {
			unknown = err
			continue
		}
		u := &unit{mends: &k, raw: t.chunks}
		// If the slice was still to come, the block size may have changed for it since.
		for id := t.block.Start; id < t.block.End; {
			block := epochs.BlockAt(id, t.slice.StartMs)
			u.groups = append(u.groups, Group{Slice: t.slice, Block: block})
			id = block.End
		}
		units = append(units, u)
	}
	if len(units) == 0 {
		return unknown
	}
	f, err := w.begin(ctx, units)
	if err == nil {
		err = away[f.current.StartMs]
	}
	if err != nil {
		return err
	}
	return cmp.Or(w.finish(ctx, f), unknown)
}

// unit is the part of a flush that is stored or fails by itself: a group, or a torn block.
type unit struct {
	// groups is one group, or the groups that a torn block is cut into by now. The latter have no
	// samples and stand for all of their blocks. A group relies on a mark in its own slice or, if
	// that slice was over when the flush began, on a late mark in the current slice.
	groups []Group
	mends  *blockKey
	// refused: the store has refused some of its chunks for good. The others are stored, and none
	// is in doubt.
	refused bool
	// opened are open marks for the blocks that this unit is the first to write to. late are the
	// marks for closed slices, and placed are the same marks with their partitions.
	opened []storage.PlacedMark
	late   []storage.Mark
	placed []storage.PlacedMark
	raw    []storage.RawChunk
	cached []storage.CacheChunk
}

// key returns the key in Writer.torn if the unit fails.
func (u *unit) key() blockKey {
	if u.mends != nil {
		return *u.mends
	}
	return blockKey{u.groups[0].Slice.StartMs, u.groups[0].Block.Start}
}

// flush is the state of one flush.
type flush struct {
	startedMs int64
	current   metric.Slice
	units     []*unit
	// late says, by its start, whether a slice was over when the flush began.
	late map[int64]bool
	// settledMs is the time at which settle checked the clock. Marks opened in slices that were
	// over by then are deleted, except for those in left.
	settledMs int64
	left      []storage.PlacedMark
}

// split separates stored and refused units from units in doubt. If the store refuses a unit that is
// written again, the unit stays in doubt: the refusal says nothing of the first attempt.
func (f *flush) split(failed *storage.PartsError) (stored, lost *flush) {
	stored, lost = &flush{startedMs: f.startedMs, current: f.current, late: f.late}, &flush{startedMs: f.startedMs, current: f.current, late: f.late}
	for i, u := range f.units {
		to := stored
		if at, ok := slices.BinarySearch(failed.Failed, i); ok {
			u.refused = u.mends == nil && errors.Is(failed.Errs[at], storage.ErrRefused)
			if !u.refused {
				to = lost
			}
		}
		to.units = append(to.units, u)
	}
	return stored, lost
}

// groups yields the groups of all units.
func (f *flush) groups() iter.Seq2[*unit, Group] {
	return func(yield func(*unit, Group) bool) {
		for _, u := range f.units {
			for _, g := range u.groups {
				if !yield(u, g) {
					return
				}
			}
		}
	}
}

// marks returns the marks of all units.
func (f *flush) marks() (out []storage.PlacedMark) {
	for _, u := range f.units {
		out = append(out, u.marks()...)
	}
	return out
}

func (u *unit) marks() []storage.PlacedMark { return slices.Concat(u.opened, u.placed) }

func (w *Writer) begin(ctx context.Context, units []*unit) (*flush, error) {
	now := clock.NowMs(w.cache.clk)
	maps.DeleteFunc(w.written, func(start int64, _ *written) bool {
		return w.cache.timing.Due(w.cache.ladder.SliceAt(metric.Raw, start), now)
	})
	// Like other calls of Cache.current, except that w.in remembers the store's answers.
	current, err := w.cache.current(metric.Raw, now, func(s metric.Slice) (bool, error) {
		x, err := w.in(ctx, s, now)
		return err == nil && x.complete, err
	})
	if err != nil {
		return nil, err
	}
	f := &flush{startedMs: now, current: current, units: units, late: make(map[int64]bool)}
	for u, g := range f.groups() {
		if _, err := w.in(ctx, g.Slice, now); err != nil {
			return nil, err
		}
		if f.late[g.Slice.StartMs] = w.over(g.Slice, now); w.late(f, g.Slice) {
			if m, ok := w.written[current.StartMs].unmarked(lateMark(g)); ok {
				u.late = append(u.late, m)
			}
		} else if w.written[g.Slice.StartMs].open[g.Block.Start] == nil {
			u.opened = append(u.opened, w.cache.own(storage.MarkOpen, metric.Raw, g.Slice, g.Block.Start, w.cache.ids.Next(now), 0))
		}
	}
	return f, nil
}

// over reports whether the slice is closed by this clock, or already complete: its run may have
// begun.
func (w *Writer) over(s metric.Slice, nowMs int64) bool {
	x := w.written[s.StartMs]
	return w.cache.timing.Closed(s, nowMs) || x != nil && x.complete
}

// late reports whether the slice was over when the flush began.
func (w *Writer) late(f *flush, s metric.Slice) bool { return f.late[s.StartMs] }

// look asks the store again which of the remembered slices are complete: the clock of another
// process may be ahead of this one's. It returns, by start, the error for each slice that the store
// cannot answer for.
func (w *Writer) look(ctx context.Context) (away map[int64]error) {
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		x := w.written[start]
		if x.complete {
			continue
		}
		complete, err := w.cache.complete(ctx, metric.Raw, w.cache.ladder.SliceAt(metric.Raw, start))
		if err != nil {
			if away == nil {
				away = make(map[int64]error)
			}
			away[start] = err
			continue
		}
		x.complete = complete
	}
	return away
}

// missed reports whether the run that a group of the slice relies on may have begun by nowMs.
func (w *Writer) missed(f *flush, s metric.Slice, nowMs int64) bool {
	if w.late(f, s) {
		s = f.current
	}
	return w.over(s, nowMs)
}

func (w *Writer) write(ctx context.Context, f *flush) error {
	var b storage.Batch
	for _, u := range f.units {
		u.placed = w.cache.place(metric.Raw, f.current, u.late)
		b.Marks = append(b.Marks, u.marks()...)
		b.Raw, b.Cache = append(b.Raw, u.raw...), append(b.Cache, u.cached...)
		b.Parts = append(b.Parts, storage.Part{Marks: len(u.opened) + len(u.placed), Raw: len(u.raw), Cache: len(u.cached)})
	}
	b.Open = slicesOf(b.Marks)
	err := w.cache.store.Write(ctx, &b)
	for _, u := range f.units {
		w.cache.onLate(u.placed)
	}
	return err
}

// settle closes the race with the runs (invariant 4). If the slice that a group relies on has
// closed before the write was done, its run may have read the index without the mark, or the raw
// table without the chunk. settle then puts a late mark for the group, and deletes the mark that no
// run may read. If the deleted mark was a lateRow that was written again, the new mark covers all
// of its schedules.
func (w *Writer) settle(ctx context.Context, f *flush) error {
	mends := func(u *unit) bool { return u.mends != nil }
	if slices.ContainsFunc(f.units, mends) {
		away := w.look(ctx)
		err := away[f.current.StartMs]
		for _, g := range f.groups() {
			err = cmp.Or(err, away[g.Slice.StartMs])
		}
		if err != nil {
			return err
		}
	}
	now := clock.NowMs(w.cache.clk)
	f.settledMs = now
	var again lateMarks
	for _, g := range f.groups() {
		if w.missed(f, g.Slice, now) {
			again.add(lateMark(g))
		}
	}
	if w.over(f.current, now) {
		for _, u := range f.units {
			for _, m := range u.late {
				m.ID = blocks.ID{}
				again.add(m)
			}
		}
	}
	if err := w.cache.Put(ctx, 0, metric.Raw, again.marks); err != nil {
		return err
	}
	back := slices.Concat(w.stray, f.marks())
	for _, u := range f.units {
		if u.mends != nil {
			back = append(back, w.torn[*u.mends].stray...)
		}
	}
	back = w.placedInOver(back, now)
	if err := w.cache.takeBack(ctx, 0, back); err != nil {
		// Other marks cover this work already, so a failed delete fails no report.
		f.left = back
	}
	return nil
}

// placedInOver returns the marks that lie in slices which are over.
func (w *Writer) placedInOver(marks []storage.PlacedMark, nowMs int64) []storage.PlacedMark {
	return slices.DeleteFunc(marks, func(m storage.PlacedMark) bool {
		return !w.over(w.cache.ladder.SliceAt(metric.Raw, m.Partition.StartMs), nowMs)
	})
}

// failed records the units that may be stored in part.
func (w *Writer) failed(f *flush) {
	for u, g := range f.groups() {
		if x := w.written[g.Slice.StartMs]; x != nil && x.open[g.Block.Start] != nil {
			x.open[g.Block.Start].torn = true
		}
		// The next attempt opens the block under a new mark. If the first mark was written, it
		// stays open, and the run does not use the cache.
		if u.mends == nil {
			t := &torn{slice: g.Slice, block: g.Block, chunks: u.raw}
			w.torn[u.key()] = t
			w.tornBytes += t.bytes()
		}
	}
	now := clock.NowMs(w.cache.clk)
	for _, u := range f.units {
		t := w.torn[u.key()]
		t.stray = append(t.stray, w.placedInOver(u.marks(), now)...)
	}
}

// succeeded records what the index holds now.
func (w *Writer) succeeded(f *flush) {
	w.stray = f.left
	for _, u := range f.units {
		if u.mends != nil {
			w.tornBytes -= w.torn[*u.mends].bytes()
			delete(w.torn, *u.mends)
		}
		if u.refused { // its marks need not be there either
			continue
		}
		for _, m := range u.opened {
			if !w.over(w.cache.ladder.SliceAt(metric.Raw, m.TimeMs), f.settledMs) {
				w.written[m.TimeMs].open[m.Start] = &openBlock{mark: m.ID}
			}
		}
	}
	for u, g := range f.groups() {
		if w.late(f, g.Slice) {
			continue
		}
		if o := w.written[g.Slice.StartMs].open[g.Block.Start]; o != nil {
			o.chunks += g.chunks()
			o.torn = o.torn || u.mends != nil || u.refused
		}
	}
	if !w.over(f.current, f.settledMs) {
		for _, u := range f.units {
			if !u.refused {
				w.written[f.current.StartMs].remember(u.placed)
			}
		}
	}
}

// unmarked merges m with the late mark that this process has already put for the block, under that
// mark's id, so that writing it replaces the old row. It returns false if m adds no schedule.
func (x *written) unmarked(m storage.Mark) (storage.Mark, bool) {
	known, ok := x.late[blockKey{m.TimeMs, m.Start}]
	if !ok {
		return m, true
	}
	all := storage.Mark{Start: m.Start, TimeMs: m.TimeMs, ID: known.id, Kind: storage.MarkLate, Schedules: known.schedules}
	widen(&all, m.Schedules)
	return all, len(all.Schedules) != len(known.schedules)
}

// remember records late marks that the slice's index now holds.
func (x *written) remember(placed []storage.PlacedMark) {
	for _, m := range placed {
		if len(x.late)+x.named >= maxRememberedLate {
			clear(x.late)
			x.named = 0
		}
		k := blockKey{m.TimeMs, m.Start}
		x.named += len(m.Schedules) - len(x.late[k].schedules)
		x.late[k] = lateRow{m.ID, m.Schedules}
	}
}

// lateMarks collects marks for closed slices, one per block. The zero value is empty.
type lateMarks struct {
	marks []storage.Mark
	at    map[blockKey]int
}

func (l *lateMarks) add(m storage.Mark) {
	k := blockKey{m.TimeMs, m.Start}
	if i, ok := l.at[k]; ok {
		widen(&l.marks[i], m.Schedules)
		return
	}
	if l.at == nil {
		l.at = make(map[blockKey]int)
	}
	l.at[k] = len(l.marks)
	l.marks = append(l.marks, m)
}

func lateMark(g Group) storage.Mark {
	m := storage.Mark{Start: g.Block.Start, TimeMs: g.Slice.StartMs, Kind: storage.MarkLate}
	for i, s := range g.Samples {
		if i == 0 || s.Schedule != g.Samples[i-1].Schedule {
			m.Schedules = append(m.Schedules, s.Schedule)
		}
	}
	if len(m.Schedules) > maxNamed {
		m.Schedules = nil
	}
	return m
}

// widen adds schedules to a late mark; with none, the mark stands for the whole block. It does not
// modify the slice m.Schedules in place, which others may share.
func widen(m *storage.Mark, schedules []metric.ScheduleID) {
	if len(m.Schedules) == 0 || len(schedules) == 0 {
		m.Schedules = nil
		return
	}
	all := slices.Concat(m.Schedules, schedules)
	slices.Sort(all)
	if m.Schedules = slices.Compact(all); len(m.Schedules) > maxNamed {
		m.Schedules = nil
	}
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

// in returns what this process has written to the index of a slice, nil for a closed slice that it
// does not remember. On the first call for a slice, in asks the store whether it is complete.
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
		late:     make(map[blockKey]lateRow),
	}
	w.written[s.StartMs] = x
	return x, nil
}
