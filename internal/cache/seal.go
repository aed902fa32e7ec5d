package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Settle writes again what flushes that failed may have left, as the next flush would: there may be none for long, or ever.
func (w *Writer) Settle(ctx context.Context) error { return w.mend(ctx) }

// Seal says of every slice that has closed since the last call which of its blocks this process
// is done with, so that their run may use the cache. It is to be called between a
// slice's end plus the grace and the run. Nothing is lost when it comes too late, or
// not at all: those blocks are ground from the raw table. A slice that is complete, by the clock of others, is not sealed.
func (w *Writer) Seal(ctx context.Context) error {
	away := w.look(ctx)
	var unknown error
	now := clock.NowMs(w.cache.clk)
	closedMs := w.closedMs
	b := &storage.Batch{}
	for _, start := range slices.Sorted(maps.Keys(w.written)) {
		s := w.cache.ladder.SliceAt(metric.Raw, start)
		if !w.cache.timing.Closed(s, now) {
			continue
		}
		if err := away[start]; err != nil {
			unknown = err // the next call asks again
			continue
		}
		open, complete := w.written[start].open, w.written[start].complete
		delete(w.written, start)
		w.closedMs = max(w.closedMs, s.EndMs)
		if w.cache.timing.Due(s, now) || complete {
			continue // its run may be reading the marks, or has
		}
		if s.EndMs <= closedMs {
			continue // the clock went back, and a run may have deleted what the cache had before
		}
		for _, id := range slices.Sorted(maps.Keys(open)) {
			if o := open[id]; !o.torn {
				b.Marks = append(b.Marks, w.cache.own(storage.MarkFresh, metric.Raw, s, id, o.mark, o.chunks))
			}
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

// unseal takes back what was sealed so late that the run may have begun: it may have
// deleted the mark before, and nobody would read the new one. If it has not read
// the mark yet, the late one that is put first leads a run to the block.
func (w *Writer) unseal(ctx context.Context, sealed []storage.PlacedMark) error {
	gone := make(map[int64]bool)
	for _, m := range sealed {
		if _, ok := gone[m.TimeMs]; ok {
			continue
		}
		complete, err := w.cache.complete(ctx, metric.Raw, w.cache.ladder.SliceAt(metric.Raw, m.TimeMs))
		if err != nil {
			return err
		}
		gone[m.TimeMs] = complete
	}
	now := clock.NowMs(w.cache.clk)
	var late []storage.Mark
	var back []storage.PlacedMark
	for _, m := range sealed {
		if gone[m.TimeMs] || w.cache.timing.Due(w.cache.ladder.SliceAt(metric.Raw, m.TimeMs), now) {
			late = append(late, storage.Mark{Start: m.Start, TimeMs: m.TimeMs, Kind: storage.MarkLate})
			back = append(back, m)
		}
	}
	if err := w.cache.Put(ctx, 0, metric.Raw, late); err != nil {
		return err
	}
	return w.cache.takeBack(ctx, 0, back)
}
