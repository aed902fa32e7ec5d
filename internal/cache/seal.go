package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Settle writes again what flushes that failed may have left, as the next flush would: there may be none for long, or ever. And it
// looks whether a slice has been ground that is not over, and marks late what this process has written to it: to be called every
// second, and before the process ends, so that little is in its memory alone.
func (w *Writer) Settle(ctx context.Context) error {
	var err error
	if len(w.torn) > 0 {
		err = w.mendTorn(ctx) // which looks too
	} else {
		away := w.look(ctx)
		for _, start := range slices.Sorted(maps.Keys(away)) {
			err = cmp.Or(err, away[start])
		}
	}
	return errors.Join(err, w.catchUp(ctx))
}

// Seal says of every slice that has closed since the last call which of its blocks this process
// is done with, so that their run may use the cache. All other marks of this process that lie there it writes again: a run that
// was begun by a clock that was ahead, and aborted, may have deleted them. It is to be called between a
// slice's end plus the grace and the run. Where it comes too late, or
// not at all, those blocks are ground from the raw table. A slice that is complete, by the clock of others, is not sealed.
func (w *Writer) Seal(ctx context.Context) error {
	away := w.look(ctx)
	unknown := w.catchUp(ctx)
	now := clock.NowMs(w.cache.clk)
	closedMs := w.closedMs
	b := &storage.Batch{}
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		s, x := w.cache.ladder.SliceAt(metric.Raw, start), w.written[start]
		if !w.cache.timing.Closed(s, now) || x.overtaken() {
			continue
		}
		if err := away[start]; err != nil {
			unknown = err // the next call asks again
			continue
		}
		delete(w.written, start)
		w.closedMs = max(w.closedMs, s.EndMs)
		if w.cache.timing.Due(s, now) || x.complete {
			continue // its run may be reading the marks, or has
		}
		for _, m := range w.marksIn(s, x) {
			// If the clock went back a run may have deleted what the cache had before.
			if o := x.open[m.Start]; m.Kind == storage.MarkOpen && !o.torn && s.EndMs > closedMs {
				m.Kind, m.Chunks = storage.MarkFresh, o.chunks
			}
			b.Marks = append(b.Marks, m)
		}
	}
	if len(b.Marks) == 0 {
		return unknown
	}
	b.Parts = slices.Repeat([]storage.Part{{Marks: 1}}, len(b.Marks))
	err := w.cache.store.Write(ctx, b)
	var some *storage.PartsError
	if err != nil && !errors.As(err, &some) {
		return errors.Join(unknown, fmt.Errorf("seal %d blocks: %w", len(b.Marks), err))
	}
	return errors.Join(unknown, err, w.unseal(ctx, b.Marks))
}

// unseal takes back seals that came so late that the run may have begun. The run may have deleted
// the mark before the seal wrote it again, and then no run would read it. unseal first puts a late
// mark, which leads a later run to the block, and then deletes the sealed mark.
func (w *Writer) unseal(ctx context.Context, sealed []storage.PlacedMark) error {
	gone := make(map[int64]bool)
	for _, m := range sealed {
		if _, ok := gone[m.Partition.StartMs]; ok {
			continue
		}
		complete, err := w.cache.complete(ctx, metric.Raw, w.cache.ladder.SliceAt(metric.Raw, m.Partition.StartMs))
		if err != nil {
			return err
		}
		gone[m.Partition.StartMs] = complete
	}
	now := clock.NowMs(w.cache.clk)
	var late []storage.Mark
	var back []storage.PlacedMark
	for _, m := range sealed {
		if gone[m.Partition.StartMs] || w.cache.timing.Due(w.cache.ladder.SliceAt(metric.Raw, m.Partition.StartMs), now) {
			late = append(late, storage.Mark{Start: m.Start, TimeMs: m.TimeMs, Kind: storage.MarkLate, Schedules: m.Schedules})
			back = append(back, m)
		}
	}
	if err := w.cache.Put(ctx, 0, metric.Raw, late); err != nil {
		return err
	}
	return w.cache.takeBack(ctx, 0, back)
}
