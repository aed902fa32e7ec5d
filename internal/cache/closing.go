package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// closing closes the race with the runs (invariant 4). If the slice whose run a unit relies on has closed before the write was
// done, that run may have read the index without the mark, or the raw table without the chunk. closing then puts a
// late mark for the block, which names all schedules of the mark in the closed slice, and deletes that.
func (w *Writer) closing(ctx context.Context, f *flush) {
	now := clock.NowMs(w.cache.clk)
	f.checkedMs = now
	var again lateMarks
	for _, u := range f.units {
		if u.tried && !u.lost && w.over(f.slice(u), now) {
			m := lateMark(&u.BlockSamples)
			if u.late && len(u.marks) > 0 {
				widen(&m, u.marks[0].Schedules)
			}
			again.add(m)
		}
	}
	failed := again.failed(w.cache.Put(ctx, 0, metric.Raw, again.marks))
	var back []storage.PlacedMark
	for _, u := range f.units {
		if !u.tried || u.lost {
			continue
		}
		err := failed[u.key()]
		if errors.Is(err, storage.ErrRefused) { // only the mark is refused: retry
			err = fmt.Errorf("%w: %s", errUnmarked, err.Error())
		}
		if err == nil && w.stale(f) {
			err = errStale
		}
		if err != nil {
			u.lost, u.err = true, cmp.Or(u.err, err)
			continue
		}
		back = append(back, u.marks...)
		if u.again != nil {
			back = append(back, u.again.marks...)
		}
	}
	w.cache.takeBack(ctx, 0, slices.DeleteFunc(back, func(m storage.PlacedMark) bool {
		return !w.over(w.cache.ladder.SliceAt(metric.Raw, m.Partition.StartMs), now)
	}))
}

// catchUp puts late marks for all blocks that this process has marked in slices whose run began before
// they were over, by any clock that was ahead. No row has the samples that came after the run read their
// block, and the run may have deleted the block's mark, even if it was aborted.
func (w *Writer) catchUp(ctx context.Context) error {
	var again lateMarks
	var back []storage.PlacedMark
	for _, start := range sortedKeys(w.written) {
		if x := w.written[start]; x.overtaken() {
			back = append(back, w.marksIn(w.cache.ladder.SliceAt(metric.Raw, start), x)...)
		}
	}
	for _, m := range back {
		again.add(storage.Mark{Start: m.Start, TimeMs: m.TimeMs, Kind: storage.MarkLate, Schedules: m.Schedules})
	}
	err := w.cache.Put(ctx, 0, metric.Raw, again.marks)
	failed := again.failed(err)
	back = slices.DeleteFunc(back, func(m storage.PlacedMark) bool { return failed[blockKey{m.TimeMs, m.Start}] != nil })
	for _, m := range back {
		w.written[m.Partition.StartMs].drop(m)
	}
	w.cache.takeBack(ctx, 0, back)
	if err != nil {
		return fmt.Errorf("write late marks for slices whose run began before their end: %w", err)
	}
	return nil
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

// failed returns, by block and slice, the errors of the marks that Put, which returned err, did not
// write.
func (l *lateMarks) failed(err error) map[blockKey]error {
	failed := make(map[blockKey]error)
	var some *storage.PartsError
	switch {
	case errors.As(err, &some):
		for i, at := range some.Failed {
			failed[blockKey{l.marks[at].TimeMs, l.marks[at].Start}] = some.Errs[i]
		}
	case err != nil:
		for k := range l.at {
			failed[k] = err
		}
	}
	return failed
}
