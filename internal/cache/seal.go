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

// Settle writes the chunks of failed flushes again, as the next flush would. The next flush may be
// far away, or never come.
func (w *Writer) Settle(ctx context.Context) error { return w.mend(ctx) }

// Seal seals the blocks of every slice that has closed since the last call, so that the slice's run
// may use their cache. Call it between a slice's end plus the grace and its run. A seal that comes
// too late, or never, loses nothing: the run grinds those blocks from the raw table. Seal skips a
// slice that the store says is complete. A slice whose state the store cannot tell waits for the
// next call.
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
			continue // its run may have begun
		}
		if s.EndMs <= closedMs {
			continue // the clock went back, and a run may have deleted the earlier chunks from the cache
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

// unseal takes back seals that came so late that the run may have begun. The run may have deleted
// the mark before the seal wrote it again, and then no run would read it. unseal first puts a late
// mark, which leads a later run to the block, and then deletes the sealed mark.
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
