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

// Seal seals the blocks of this process in every slice that has closed since the last call, so that the
// slice's run may use the cache.
//
// Call it after a slice's end plus the grace, and before the run. Sealing is a hint: blocks that are sealed
// too late, or not at all, are ground from the raw table. So a seal that fails is not repeated. The marks
// are there, since the run had not begun when Seal asked the store. If it had begun, by whatever clock, Seal
// puts late marks until that succeeds.
//
// Seal does not seal blocks of a slice if it, or a later one, has ever been ground: the cache may lack what was
// ground then.
func (w *Writer) Seal(ctx context.Context) error {
	away := w.look(ctx)
	unknown := w.catchUp(ctx)
	now := clock.NowMs(w.cache.clk)
	b := &storage.Batch{}
	sealed := make(map[int64]*written)
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
		if w.cache.timing.Due(s, now) || x.begun {
			continue // its run may be reading the marks, or there are none
		}
		trusted, err := w.cache.Trusts(ctx, storage.SliceKey{Bucket: metric.Raw, StartMs: s.StartMs})
		if err != nil {
			unknown = err // its blocks stay open
			continue
		}
		if !trusted {
			continue
		}
		for _, id := range slices.Sorted(maps.Keys(x.open)) {
			if o := x.open[id]; !o.torn {
				b.Marks = append(b.Marks, w.cache.own(storage.MarkFresh, metric.Raw, s, id, o.mark, o.chunks))
			}
		}
		sealed[start] = x
	}
	if len(b.Marks) == 0 {
		return unknown
	}
	b.Parts = slices.Repeat([]storage.Part{{Marks: 1}}, len(b.Marks))
	err := w.cache.store.Write(ctx, b)
	var some *storage.PartsError
	if err != nil && !errors.As(err, &some) {
		err = fmt.Errorf("seal %d blocks: %w", len(b.Marks), err)
	}
	return errors.Join(unknown, err, w.unseal(ctx, sealed))
}

// unseal takes back seals that were so slow that the run has begun. The run may have deleted the mark before
// the seal wrote it again, and then no run would read it. catchUp first puts a late mark, which leads a later
// run to the block, and then deletes the sealed mark.
func (w *Writer) unseal(ctx context.Context, sealed map[int64]*written) error {
	var unknown error
	for _, start := range slices.Sorted(maps.Keys(sealed)) {
		x := sealed[start]
		err := w.lookAt(ctx, w.cache.ladder.SliceAt(metric.Raw, start), x)
		if err != nil || x.begun {
			w.written[start], unknown = x, cmp.Or(unknown, err)
		}
	}
	return errors.Join(unknown, w.catchUp(ctx))
}
