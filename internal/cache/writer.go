package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"

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
	// What is in open and late then was marked where nobody looks again, until catchUp has marked it elsewhere.
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

// Owes says whether something waits to be written again, or to be marked again.
func (w *Writer) Owes() bool {
	for _, x := range w.written {
		if x.overtaken() {
			return true
		}
	}
	return len(w.torn) > 0
}

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
	// maxTornBytes is how much may wait to be written again before no more is taken for the blocks that it is of, in whatever slice. What
	// is added then is of one flush for each block that is lost beside those.
	maxTornBytes = 32 << 20
	// mostTornBytes is with how much nothing else is taken at all, so that there is no more than this and one flush.
	mostTornBytes = 2 * maxTornBytes
	// tornOverhead is what a block counts for beside its chunks: some memory, and the requests that write it again.
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

// Flush makes the groups durable together with the marks that lead a run to them,
// and returns nil only then, or a *GroupsError that names those of which this is not so. After an error any part of them
// may have been written, and no roll-up relies on a cache that may lack that part. The next Flush begins with that part. Until it is durable nothing else is written to its block, so what waits in memory of a block of a
// slice is never more than of one flush. What the store has refused for good is not there, and is not tried again.
func (w *Writer) Flush(ctx context.Context, groups []Group) error {
	if invariants.Enabled {
		for _, g := range groups {
			g.check()
		}
	}
	// What cannot be written to some blocks holds up no others.
	if err := w.mendTorn(ctx); err != nil && (ctx.Err() != nil || w.tornBytes >= mostTornBytes) {
		return err
	}
	refused := &GroupsError{}
	var units []*unit
	var at []int
	away, lost := w.outOfReach(ctx, groups), w.lostBlocks()
	for i, g := range groups {
		if lost.has(g) {
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

// lostBlocks are those to which something waits to be written again.
type lostBlocks struct {
	// in are they by slice, sorted, none over another.
	in map[int64][]blocks.Range
	// starts are they in all slices, if no more is to wait of any of them.
	starts map[metric.ScheduleID]bool
}

func (w *Writer) lostBlocks() lostBlocks {
	lost := lostBlocks{in: make(map[int64][]blocks.Range), starts: make(map[metric.ScheduleID]bool)}
	for k, t := range w.torn {
		lost.in[k.sliceMs] = append(lost.in[k.sliceMs], t.block)
		if w.tornBytes >= maxTornBytes {
			lost.starts[k.start] = true
		}
	}
	for _, in := range lost.in {
		slices.SortFunc(in, func(a, b blocks.Range) int { return cmp.Compare(a.Start, b.Start) })
	}
	return lost
}

// has says whether nothing is written for the block of a group.
func (l lostBlocks) has(g Group) bool {
	in := l.in[g.Slice.StartMs] // blocks may have been cut anew since
	i := sort.Search(len(in), func(i int) bool { return in[i].End > g.Block.Start })
	return i < len(in) && in[i].Start < g.Block.End || l.starts[g.Block.Start]
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

// mendTorn is mend, for which nothing has failed when what could not be written was given up.
func (w *Writer) mendTorn(ctx context.Context) error {
	if err := w.mend(ctx); len(w.torn) > 0 || ctx.Err() != nil {
		return err
	}
	return nil // what was not written again was given up
}

// mend writes again what flushes that failed may have left on a minority of the copies: the very same chunks, until a write of
// them succeeds, with marks for all of their blocks. Otherwise they might come to light after the last run
// that is led to their block, by a repair or a hint, and its rows would not be what the raw table says (invariant 2).
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

// split parts the units of which nobody knows what is there from the others. What is refused now of a unit that is written again
// says nothing of the first attempt, unless that was refused too.
func (f *flush) split(failed *storage.PartsError) (stored, lost *flush) {
	stored, lost = &flush{startedMs: f.startedMs, current: f.current, late: f.late}, &flush{startedMs: f.startedMs, current: f.current, late: f.late}
	for i, u := range f.units {
		to := stored
		if at, ok := slices.BinarySearch(failed.Failed, i); ok {
			u.refused = (u.mends == nil || len(u.raw) == 0) && errors.Is(failed.Errs[at], storage.ErrRefused)
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
	w.forget(ctx, now)
	// Cache.current, with what the store answered remembered.
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

// forget drops what is known of slices whose run is due. It looks at each first: one that is complete may have been ground long
// before it was over. One that the store cannot be asked about is kept.
func (w *Writer) forget(ctx context.Context, nowMs int64) {
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		s, x := w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]
		if w.cache.timing.Due(s, nowMs) && w.lookAt(ctx, s, x) == nil && !x.overtaken() {
			delete(w.written, start)
		}
	}
}

// overtaken says whether the slice was ground while marks of this process lay in it.
func (x *written) overtaken() bool { return x.complete && len(x.open)+len(x.late) > 0 }

// over says whether a run of the slice may have begun, or has.
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
		if err := w.lookAt(ctx, w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]); err != nil {
			if away == nil {
				away = make(map[int64]error)
			}
			away[start] = err
		}
	}
	return away
}

func (w *Writer) lookAt(ctx context.Context, s metric.Slice, x *written) (err error) {
	if !x.complete {
		x.complete, err = w.cache.complete(ctx, metric.Raw, s)
	}
	return err
}

// catchUp marks late all that this process has marked in slices that were ground before they were over: by a clock that was ahead,
// be it this process's or another's. What was written after the run had read a block's mark is in no row, and what was deleted
// with it has no mark.
func (w *Writer) catchUp(ctx context.Context) error {
	var again lateMarks
	var back []storage.PlacedMark
	var overtaken []*written
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		x := w.written[start]
		if !x.overtaken() {
			continue
		}
		overtaken = append(overtaken, x)
		for _, m := range w.marksIn(w.cache.ladder.SliceAt(metric.Raw, start), x) {
			again.add(storage.Mark{Start: m.Start, TimeMs: m.TimeMs, Kind: storage.MarkLate, Schedules: m.Schedules})
			back = append(back, m)
		}
	}
	if len(overtaken) == 0 {
		return nil
	}
	if err := w.cache.Put(ctx, 0, metric.Raw, again.marks); err != nil {
		return fmt.Errorf("mark late what is in slices that were ground before they were over: %w", err)
	}
	for _, x := range overtaken {
		x.open, x.late, x.named = make(map[metric.ScheduleID]*openBlock), make(map[blockKey]lateRow), 0
	}
	w.stray = append(w.stray, back...) // the next flush takes back what this one cannot
	slices.SortStableFunc(back, func(a, b storage.PlacedMark) int {
		return cmp.Or(cmp.Compare(a.Partition.StartMs, b.Partition.StartMs), cmp.Compare(a.Partition.Shard, b.Partition.Shard))
	})
	for len(back) > 0 {
		p, marks := back[0].Partition, []storage.Mark(nil)
		for ; len(back) > 0 && back[0].Partition == p; back = back[1:] {
			marks = append(marks, back[0].Mark)
		}
		if w.cache.store.DeleteMarks(ctx, 0, p, marks) == nil {
			w.stray = slices.DeleteFunc(w.stray, func(m storage.PlacedMark) bool { return m.Partition == p })
		}
	}
	return nil
}

// marksIn are the marks that this process has in the index of a slice: of open blocks as they are, and late ones.
func (w *Writer) marksIn(s metric.Slice, x *written) (out []storage.PlacedMark) {
	for _, id := range slices.Sorted(maps.Keys(x.open)) {
		out = append(out, w.cache.own(storage.MarkOpen, metric.Raw, s, id, x.open[id].mark, 0))
	}
	for _, k := range slices.SortedFunc(maps.Keys(x.late), blockKey.compare) {
		out = append(out, storage.PlacedMark{
			Partition: w.cache.partition(metric.Raw, s, k.start),
			Mark: storage.Mark{
				Start: k.start, TimeMs: k.sliceMs, ID: x.late[k].id, Kind: storage.MarkLate,
				DueMs: s.EndMs, Schedules: x.late[k].schedules,
			},
		})
	}
	return out
}

// missed says whether the run that a group of the slice relies on may have begun by nowMs.
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
			if u.refused { // what is there of it needs marks, and the rest is given up
				t.chunks = nil
			}
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
