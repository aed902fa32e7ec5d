package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/treecheck/invariants"
)

// BlocksError says that some blocks of a flush are durable and others are not.
type BlocksError struct {
	// Failed are the indexes, in the flush, of the BlockSamples that are not durable, ascending.
	Failed []int
	// Errs are the causes, in the order of Failed. Samples whose cause is storage.ErrRefused are
	// dropped: they are not written again.
	Errs []error
}

// Error implements error.
func (e *BlocksError) Error() string {
	return fmt.Sprintf("%d blocks not written: %s", len(e.Failed), e.Errs[0])
}

// Unwrap returns the causes.
func (e *BlocksError) Unwrap() []error { return e.Errs }

// blocksError returns the error of a flush, given the error of each block, or nil if there is none.
func blocksError(errs []error) error {
	e := &BlocksError{}
	for i, err := range errs {
		if err != nil {
			e.Failed, e.Errs = append(e.Failed, i), append(e.Errs, err)
		}
	}
	if len(e.Failed) == 0 {
		return nil
	}
	return e
}

// errTorn says that the chunks of an earlier failed flush come first, and cannot be written now.
var errTorn = fmt.Errorf("%w: an earlier write of the block failed and cannot be repeated yet", storage.ErrUnavailable)

// errUnmarked says that a unit waits because the store refuses its late mark.
var errUnmarked = fmt.Errorf("%w: the block cannot be marked", storage.ErrUnavailable)

// errStale is the error of flushes that took longer than maxFlush.
var errStale = fmt.Errorf("%w: %w", storage.ErrTimeout, blocks.ErrStale)

// maxFlush is the time in which chunks must be durable, from when their ids were drawn.
const maxFlush = 30 * time.Second

// Flush makes the samples durable, together with the marks that lead a run to them. It returns nil only
// if all samples are durable. A *BlocksError names the blocks whose samples are not; any other error
// concerns all of them.
//
// After an error, any part of the failed samples may have been written. No roll-up relies on a cache
// that may lack that part. A later Flush or Settle writes that part again (see mend). Until then Flush
// accepts nothing else for the block, so memory holds at most one flush of each block and slice.
// Samples that the store has refused for good are dropped, and not written again.
func (w *Writer) Flush(ctx context.Context, samples []BlockSamples) error {
	return w.FlushAt(ctx, samples, nil)
}

// FlushAt is Flush for samples that count as written when the place was taken: of two samples with the same schedule and
// time, one that was flushed since stays. nil is the place of a Flush.
func (w *Writer) FlushAt(ctx context.Context, samples []BlockSamples, at *blocks.Place) error {
	if invariants.Enabled {
		for _, g := range samples {
			g.check()
		}
	}
	lost := w.lostBlocks()
	if w.mendsFirst(samples, lost) {
		// What cannot be written to some blocks holds up no others.
		if err := w.mend(ctx); err != nil && (ctx.Err() != nil || w.tornBytes >= mostTornBytes) {
			return err
		}
		lost = w.lostBlocks()
	}
	errs := make([]error, len(samples))
	var units []*unit
	var index []int // in samples, of each unit
	away := w.outOfReach(ctx, samples)
	for i, g := range samples {
		if lost.has(g) {
			errs[i] = errTorn
			continue
		}
		if errs[i] = away[g.Slice.StartMs]; errs[i] != nil {
			continue
		}
		index, units = append(index, i), append(units, &unit{samples: samples[i : i+1]})
	}
	if len(units) == 0 && len(samples) > 0 {
		return errs[0]
	}
	f, err := w.begin(ctx, units)
	if err != nil {
		return err
	}
	f.at = at
	if w.stale(f) {
		return errStale
	}
	w.encode(f, at)
	if err := w.finish(ctx, f); err != nil {
		return err
	}
	for i, u := range units {
		errs[index[i]] = u.err
	}
	if w.overtakenBySettled(f) {
		return w.FlushAt(ctx, samples, nil)
	}
	return blocksError(errs)
}

// overtakenBySettled reports whether a flush took so long that another process may have packed chunks with greater ids. Then
// its samples, which have come after that, must be written again with new ids. A store with one writer has no greater ids.
func (w *Writer) overtakenBySettled(f *flush) bool {
	return f.at == nil && w.age(f) > maxFlush && w.cache.store.NewestID() == blocks.ID{}
}

// outOfReach returns, by start, the error for each slice whose state the store cannot answer now. The states of
// different days lie in different partitions, so some may be away.
func (w *Writer) outOfReach(ctx context.Context, samples []BlockSamples) (away map[int64]error) {
	now := clock.NowMs(w.cache.clk)
	for _, g := range samples {
		if away[g.Slice.StartMs] != nil {
			continue
		}
		if _, err := w.in(ctx, g.Slice, now); storage.IsAway(err) {
			if away == nil {
				away = make(map[int64]error)
			}
			away[g.Slice.StartMs] = err
		}
	}
	return away
}

// unit is the part of a flush that is stored or fails by itself: the samples of one block, or a torn
// block.
type unit struct {
	// samples has one element, or one for each block that a torn block is cut into by now. The latter
	// hold no samples and stand for all of their blocks. Each element relies on a mark in its own
	// slice or, if that slice was over when the flush began, on a late mark in the current slice.
	samples []BlockSamples
	mends   *blockKey
	// err says why the unit is not durable.
	err error
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
	return blockKey{u.samples[0].Slice.StartMs, u.samples[0].Block.Start}
}

// marks returns the marks that lead to the samples of this unit alone, or to more as well.
func (u *unit) marks() []storage.PlacedMark { return slices.Concat(u.opened, u.placed) }

// flush is the state of one flush.
type flush struct {
	startedMs int64         // by a clock that the store has confirmed, since ids are drawn at it
	began     time.Duration // by clock.Clock.Elapsed
	// at is the place of the chunks' ids; nil if they are drawn at startedMs.
	at      *blocks.Place
	current metric.Slice
	units   []*unit
	// late says, by its start, whether a slice was over when the flush began.
	late map[int64]bool
	// checkedMs is the time at which closeRace checked the clock. Marks opened in slices that were
	// over by then are deleted, or are in Writer.stray.
	checkedMs int64
}

// split divides the flush into the units that in selects and the others.
func (f *flush) split(in func(*unit) bool) (yes, no *flush) {
	a, b := *f, *f
	a.units, b.units = nil, nil
	for _, u := range f.units {
		if in(u) {
			a.units = append(a.units, u)
		} else {
			b.units = append(b.units, u)
		}
	}
	return &a, &b
}

// samples yields the BlockSamples of all units.
func (f *flush) samples() iter.Seq2[*unit, BlockSamples] {
	return func(yield func(*unit, BlockSamples) bool) {
		for _, u := range f.units {
			for _, g := range u.samples {
				if !yield(u, g) {
					return
				}
			}
		}
	}
}

func (w *Writer) begin(ctx context.Context, units []*unit) (*flush, error) {
	began := w.cache.clk.Elapsed()
	now, err := w.cache.confirmedMs(ctx)
	if err != nil {
		return nil, err
	}
	w.forget(ctx, now)
	// Cache.current, with what the store answered remembered.
	current, err := w.cache.current(metric.Raw, now, func(s metric.Slice) (bool, error) {
		x, err := w.in(ctx, s, now)
		return err == nil && x.begun, err
	})
	if err != nil {
		return nil, err
	}
	if err := w.makeRoom(ctx, current, w.written[current.StartMs]); err != nil {
		return nil, err
	}
	f := &flush{startedMs: now, began: began, current: current, units: units, late: make(map[int64]bool)}
	for u, g := range f.samples() {
		if _, err := w.in(ctx, g.Slice, now); err != nil {
			return nil, err
		}
		late := w.over(g.Slice, now)
		f.late[g.Slice.StartMs] = late
		if late {
			if m, ok := w.written[current.StartMs].unmarked(lateMark(g)); ok {
				m.ID = cmp.Or(m.ID, w.attempted(u, current, g))
				u.late = append(u.late, m)
			}
			continue
		}
		if w.written[g.Slice.StartMs].open[g.Block.Start] == nil {
			id := w.attempted(u, g.Slice, g)
			if id == (blocks.ID{}) {
				id = w.cache.ids.Next(now)
			}
			u.opened = append(u.opened, w.cache.own(storage.MarkOpen, metric.Raw, g.Slice, g.Block.Start, id, 0))
		}
	}
	return f, nil
}

// attempted returns the id of the mark for g that the last attempt to write the unit put into the index of slice in, zero
// if there is none.
func (w *Writer) attempted(u *unit, in metric.Slice, g BlockSamples) blocks.ID {
	if u.mends == nil {
		return blocks.ID{}
	}
	return w.torn[*u.mends].id(w.cache.partition(metric.Raw, in, g.Block.Start), g.Slice.StartMs, g.Block.Start)
}

// write stores the flush as one batch. If the store tells the units apart, write records why each of
// them has failed, and returns nil.
func (w *Writer) write(ctx context.Context, f *flush) error {
	var b storage.Batch
	for _, u := range f.units {
		u.placed = w.cache.place(metric.Raw, f.current, u.late, f.startedMs)
		b.Marks = append(b.Marks, u.marks()...)
		b.Raw, b.Cache = append(b.Raw, u.raw...), append(b.Cache, u.cached...)
		b.Parts = append(b.Parts, storage.Part{Marks: len(u.opened) + len(u.placed), Raw: len(u.raw), Cache: len(u.cached)})
	}
	b.Open = slicesOf(b.Marks)
	err := w.cache.store.Write(ctx, &b)
	for _, u := range f.units {
		w.cache.onLate(u.placed)
	}
	var some *storage.PartsError
	if !errors.As(err, &some) {
		return err
	}
	for i, part := range some.Failed {
		u := f.units[part]
		u.err = some.Errs[i]
		// What is refused now of a unit that is written again says nothing of the first attempt,
		// unless that was refused too.
		u.refused = (u.mends == nil || len(u.raw) == 0) && errors.Is(u.err, storage.ErrRefused)
	}
	return nil
}

// finish writes a flush and records the outcome of each unit, in Writer and in unit.err. It returns
// an error if all units have failed for the same reason.
func (w *Writer) finish(ctx context.Context, f *flush) error {
	if err := w.write(ctx, f); err != nil {
		w.failed(f)
		return err
	}
	stored, lost := f.split(func(u *unit) bool { return u.err == nil || u.refused })
	w.failed(lost)
	unmarked, err := w.closeRace(ctx, stored)
	if err == nil && w.stale(f) {
		err = errStale
	}
	if err != nil {
		w.failed(stored)
		return err
	}
	lost, stored = stored.split(func(u *unit) bool { return unmarked[u] })
	w.failed(lost)
	w.succeeded(stored)
	return nil
}

// stale reports whether the place of a flush has passed.
func (w *Writer) stale(f *flush) bool { return f.at != nil && w.age(f) > maxFlush }

// age returns how long ago the ids of a flush were drawn, by whichever clock says more.
func (w *Writer) age(f *flush) time.Duration {
	drawnMs := f.startedMs
	if f.at != nil {
		drawnMs = min(drawnMs, f.at.TimeMs())
	}
	return max(w.cache.clk.Elapsed()-f.began, time.Duration(clock.NowMs(w.cache.clk)-drawnMs)*time.Millisecond)
}

// failed records the units that may be stored in part.
func (w *Writer) failed(f *flush) {
	for u, g := range f.samples() {
		if x := w.written[g.Slice.StartMs]; x != nil && x.open[g.Block.Start] != nil {
			x.open[g.Block.Start].torn = true
		}
		// The next attempt puts the marks again. They stay open, so the run does not use the cache.
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
		t.marks = u.marks()
		t.stray = append(t.stray, w.placedInOver(u.marks(), now)...)
	}
}

// succeeded records what the index holds now.
func (w *Writer) succeeded(f *flush) {
	for _, u := range f.units {
		if u.mends != nil {
			w.tornBytes -= w.torn[*u.mends].bytes()
			delete(w.torn, *u.mends)
		}
		if u.refused { // its marks need not be there either
			continue
		}
		for _, m := range u.opened {
			if !w.over(w.cache.ladder.SliceAt(metric.Raw, m.TimeMs), f.checkedMs) {
				w.written[m.TimeMs].open[m.Start] = &openBlock{mark: m.ID}
			}
		}
	}
	for u, g := range f.samples() {
		if f.late[g.Slice.StartMs] {
			continue
		}
		if o := w.written[g.Slice.StartMs].open[g.Block.Start]; o != nil {
			o.chunks += g.chunks()
			o.torn = o.torn || u.mends != nil || u.refused
		}
	}
	if !w.over(f.current, f.checkedMs) {
		for _, u := range f.units {
			if !u.refused {
				w.written[f.current.StartMs].remember(u.placed)
			}
		}
	}
}
