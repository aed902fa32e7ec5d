package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// missed reports whether the slice whose run samples of s rely on is over at nowMs.
func (w *Writer) missed(f *flush, s metric.Slice, nowMs int64) bool {
	if f.late[s.StartMs] {
		s = f.current
	}
	return w.over(s, nowMs)
}

// closeRace closes the race with the runs (invariant 4). If the slice that samples rely on has
// closed before the write was done, its run may have read the index without the mark, or the raw
// table without the chunk. closeRace then puts a late mark for their block, and deletes the mark in the
// closed slice. If that was a lateRow that was written again, the new mark names all of its schedules.
//
// closeRace returns the units whose late mark could not be put. Their other marks stay, and unit.err
// says why. An error concerns all units.
func (w *Writer) closeRace(ctx context.Context, f *flush) (unmarked map[*unit]bool, err error) {
	mends := func(u *unit) bool { return u.mends != nil }
	if slices.ContainsFunc(f.units, mends) {
		away := w.look(ctx)
		err := away[f.current.StartMs]
		for _, g := range f.samples() {
			err = cmp.Or(err, away[g.Slice.StartMs])
		}
		if err != nil {
			return nil, err
		}
	}
	now := clock.NowMs(w.cache.clk)
	f.checkedMs = now
	var again lateMarks
	for _, g := range f.samples() {
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
	failed := again.failed(w.cache.Put(ctx, 0, metric.Raw, again.marks))
	for u, g := range f.samples() {
		if err := failed[blockKey{g.Slice.StartMs, g.Block.Start}]; err != nil {
			if unmarked == nil {
				unmarked = make(map[*unit]bool)
			}
			if errors.Is(err, storage.ErrRefused) { // only the mark is refused: retry
				err = fmt.Errorf("%w: %s", errUnmarked, err.Error())
			}
			unmarked[u], u.err = true, cmp.Or(u.err, err)
		}
	}
	var back []storage.PlacedMark
	if w.strayRest.over(w.cache.clk) {
		back, w.stray = w.stray, nil
	}
	for _, u := range f.units {
		if unmarked[u] {
			continue
		}
		back = append(back, u.marks()...)
		if u.mends != nil {
			back = append(back, w.torn[*u.mends].stray...)
		}
	}
	// Other marks cover this work already, so a failed delete fails no report.
	_ = w.takeBack(ctx, w.placedInOver(back, now))
	return unmarked, nil
}

// placedInOver returns the marks that lie in slices which are over.
func (w *Writer) placedInOver(marks []storage.PlacedMark, nowMs int64) []storage.PlacedMark {
	return slices.DeleteFunc(marks, func(m storage.PlacedMark) bool {
		return !w.over(w.cache.ladder.SliceAt(metric.Raw, m.Partition.StartMs), nowMs)
	})
}

// takeBack is Cache.takeBack. It keeps the marks that it cannot delete.
func (w *Writer) takeBack(ctx context.Context, marks []storage.PlacedMark) error {
	began := w.cache.clk.Elapsed()
	left, err := w.cache.takeBack(ctx, 0, marks)
	w.stray = append(w.stray, left...)
	if err != nil {
		w.strayRest = pauseAfter(w.cache.clk, began)
	}
	return err
}

// look asks the store again which remembered slices have a run that has begun: the clock of another
// process may be ahead of this one's, or this one's may have been. It returns, by start, the error for
// each slice that the store cannot answer for.
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
	if !x.begun {
		x.begun, err = w.cache.begun(ctx, metric.Raw, s)
	}
	return err
}

// marked reports whether the slice's index holds marks of this process.
func (x *written) marked() bool { return len(x.open)+len(x.late) > 0 }

// overtaken reports whether a run of the slice began while its index held marks of this process.
func (x *written) overtaken() bool { return x.begun && x.marked() }

// catchUp puts late marks for all blocks that this process has marked in slices whose run began before
// they were over, by any clock that was ahead. No row has the samples that came after the run read their
// block, and the run may have deleted the block's mark, even if it was aborted.
func (w *Writer) catchUp(ctx context.Context) error {
	var again lateMarks
	var back []storage.PlacedMark
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		x := w.written[start]
		if !x.overtaken() {
			continue
		}
		for _, m := range w.marksIn(w.cache.ladder.SliceAt(metric.Raw, start), x) {
			again.add(storage.Mark{Start: m.Start, TimeMs: m.TimeMs, Kind: storage.MarkLate, Schedules: m.Schedules})
			back = append(back, m)
		}
	}
	if len(back) == 0 {
		return nil
	}
	err := w.cache.Put(ctx, 0, metric.Raw, again.marks)
	failed := again.failed(err)
	back = slices.DeleteFunc(back, func(m storage.PlacedMark) bool { return failed[blockKey{m.TimeMs, m.Start}] != nil })
	for _, m := range back {
		w.written[m.Partition.StartMs].drop(m)
	}
	_ = w.takeBack(ctx, back) // the late marks are there
	if err != nil {
		return fmt.Errorf("write late marks for slices whose run began before their end: %w", err)
	}
	return nil
}

// marksIn returns the marks of this process in the index of a slice: those of open blocks, and late ones.
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
