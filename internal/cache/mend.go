package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// torn holds the raw chunks that failed flushes had for one block of one slice.
type torn struct {
	slice  metric.Slice
	block  blocks.Range
	chunks []storage.RawChunk
	// marks are those of the last attempt. They may be there, so the next attempt puts them under the same ids: otherwise
	// each would leave one more.
	marks []storage.PlacedMark
	// stray are marks of those flushes in slices that may be over. They are deleted once other
	// marks for the same work are written.
	stray []storage.PlacedMark
}

// id returns the id under which the last attempt put the mark of a block into an index partition, zero if it put none.
func (t *torn) id(p storage.IndexPartition, timeMs int64, start metric.ScheduleID) blocks.ID {
	for i := range t.marks {
		if m := &t.marks[i]; m.Partition == p && m.TimeMs == timeMs && m.Start == start {
			return m.ID
		}
	}
	return blocks.ID{}
}

// bytes returns the size that counts towards maxTornBytes.
func (t *torn) bytes() int {
	n := tornOverhead
	for i := range t.chunks {
		n += len(t.chunks[i].Data)
	}
	return n
}

const (
	// maxTornBytes is the size of torn from which Flush accepts nothing for the torn blocks in any
	// slice. From then on torn grows only by one flush of each further block that fails.
	maxTornBytes = 32 << 20
	// mostTornBytes is the size of torn from which Flush accepts nothing at all. So torn never exceeds
	// this size and one flush.
	mostTornBytes = 2 * maxTornBytes
	// tornOverhead is what a torn block counts beside its chunks: its memory, and the requests that
	// write it again.
	tornOverhead = 4 << 10
)

// pause is the time without attempts after a failed one. The zero value is over.
type pause struct {
	from, span time.Duration // by the clock's Elapsed
}

const (
	// pauseFactor is the ratio of a pause to the attempt before it. Commits wait for attempts, so this
	// bounds the share of time that they lose to what fails.
	pauseFactor = 10
	// maxPause bounds a pause, so that a block is written soon after it is in reach again.
	maxPause = 30 * time.Second
)

// pauseAfter returns the pause after an attempt that began at the given time and has just failed.
func pauseAfter(clk clock.Clock, began time.Duration) pause {
	now := clk.Elapsed()
	return pause{now, min(pauseFactor*(now-began), maxPause)}
}

func (p pause) over(clk clock.Clock) bool { return p.span == 0 || clk.Elapsed()-p.from >= p.span }

// Owes reports whether chunks wait to be written again, or blocks to be marked again.
func (w *Writer) Owes() bool {
	for _, x := range w.written {
		if x.overtaken() {
			return true
		}
	}
	return len(w.torn) > 0
}

// Settle does what the next flush would do first, because there may be no next flush:
//
//   - It writes the chunks of failed flushes again, except during the pause after a failed attempt (see
//     Hurry).
//   - It looks for slices that were ground before they were over, and marks late what this process has
//     written to them.
//
// Call it every second and before the process ends, so that little exists only in memory.
func (w *Writer) Settle(ctx context.Context) error {
	var err error
	if len(w.torn) > 0 && w.rest.over(w.cache.clk) {
		err = w.mend(ctx) // which looks too
	} else {
		away := w.look(ctx)
		for _, start := range slices.Sorted(maps.Keys(away)) {
			err = cmp.Or(err, away[start])
		}
	}
	return errors.Join(err, w.catchUp(ctx))
}

// Hurry ends the pause after a failed attempt to write torn chunks again: the next Settle tries at
// once. It is for the last moments of a slice or of the process.
func (w *Writer) Hurry() { w.rest = pause{} }

func (w *Writer) lostBlocks() lostBlocks {
	if len(w.torn) == 0 {
		return lostBlocks{}
	}
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

// lostBlocks are the blocks for which chunks wait to be written again.
type lostBlocks struct {
	// in holds the blocks by slice, sorted; no two overlap.
	in map[int64][]blocks.Range
	// starts holds the first schedules of the blocks of all slices, once torn is larger than
	// maxTornBytes.
	starts map[metric.ScheduleID]bool
}

// has reports whether the samples belong to a lost block.
func (l lostBlocks) has(g BlockSamples) bool {
	in := l.in[g.Slice.StartMs] // the block size may have changed since
	i := sort.Search(len(in), func(i int) bool { return in[i].End > g.Block.Start })
	return i < len(in) && in[i].Start < g.Block.End || l.starts[g.Block.Start]
}

// mendsFirst reports whether a flush of the samples begins with mend. During the pause after a failed
// attempt it does so only if all samples belong to torn blocks: then no healthy block waits.
func (w *Writer) mendsFirst(samples []BlockSamples, lost lostBlocks) bool {
	return w.rest.over(w.cache.clk) || w.tornBytes >= mostTornBytes ||
		!slices.ContainsFunc(samples, func(g BlockSamples) bool { return !lost.has(g) })
}

// mend writes the chunks of failed flushes again, with marks for all of their blocks, until the write
// succeeds. A failed flush may have left chunks on a minority of the copies. A repair or a hint may bring
// them to light after the last run of their block, and then its rows would not be what the raw table says
// (invariant 2). So mend writes exactly the same chunks.
//
// mend returns an error only if a block is still torn, and then a pause begins, or if ctx is done. The error is
// never storage.ErrRefused, since nothing is given up: the first attempt may have landed.
func (w *Writer) mend(ctx context.Context) error {
	if len(w.torn) == 0 {
		return nil
	}
	began := w.cache.clk.Elapsed()
	// Sorted, so that the same history writes the same rows in the same order.
	keys := slices.SortedFunc(maps.Keys(w.torn), blockKey.compare)
	unknown, err := w.mendBlocks(ctx, keys...)
	var some *storage.PartsError
	if err != nil && !errors.As(err, &some) && !storage.IsAway(err) && len(keys) > 1 {
		// The store has failed the whole batch. The cause may be one block, so try each by itself.
		err = nil
		for _, k := range keys {
			if ctx.Err() != nil || storage.IsAway(err) {
				break
			}
			if w.torn[k] == nil {
				continue
			}
			var failed error
			unknown, failed = w.mendBlocks(ctx, k)
			err = cmp.Or(failed, unknown, err)
		}
	}
	err = cmp.Or(err, unknown)
	w.rest = pause{}
	if len(w.torn) > 0 {
		w.rest = pauseAfter(w.cache.clk, began)
	}
	if err != nil && (len(w.torn) > 0 || ctx.Err() != nil) {
		if errors.Is(err, storage.ErrRefused) {
			err = fmt.Errorf("%w: %s", errTorn, err.Error())
		}
		return fmt.Errorf("rewrite the chunks of a failed flush of %d blocks: %w", len(keys), err)
	}
	return nil
}

// mendBlocks writes the chunks of the given torn blocks again. A block stays torn if the store
// cannot say whether its slice is complete: unknown says why, and the others are written all the same. err
// is that of the write: none of its blocks is written, or those that it does not name are.
func (w *Writer) mendBlocks(ctx context.Context, keys ...blockKey) (unknown, err error) {
	var units []*unit
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
			u.samples = append(u.samples, BlockSamples{Slice: t.slice, Block: block})
			id = block.End
		}
		units = append(units, u)
	}
	if len(units) == 0 {
		return unknown, nil
	}
	f, err := w.begin(ctx, units)
	if err != nil {
		return unknown, err
	}
	if err := away[f.current.StartMs]; err != nil {
		return err, nil
	}
	if err := w.finish(ctx, f); err != nil {
		return unknown, err
	}
	some := &storage.PartsError{}
	for i, u := range units {
		if u.err != nil {
			some.Failed, some.Errs = append(some.Failed, i), append(some.Errs, u.err)
		}
	}
	if len(some.Failed) > 0 {
		return unknown, some
	}
	return unknown, nil
}
