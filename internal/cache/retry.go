package cache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// retry holds the raw chunks that a failed flush had for one block of one slice. A repair or a hint may bring them to light at
// any later time, also after the last run of the block, and then its rows would not be what the raw table says (invariant 2). So
// exactly these chunks are written again, with marks, until that succeeds.
type retry struct {
	slice  metric.Slice
	block  blocks.Range
	chunks []storage.RawChunk // none if the store has refused them, and only the mark is missing
	// marks are those of all attempts. They may be there, so an attempt puts a mark again under the same id: otherwise each would
	// leave one more. The one that succeeds deletes those in slices that are over.
	marks []storage.PlacedMark
}

// id returns the id of the block's mark in an index partition, zero if there is none.
func (r *retry) id(p storage.IndexPartition) blocks.ID {
	for i := range r.marks {
		if r.marks[i].Partition == p {
			return r.marks[i].ID
		}
	}
	return blocks.ID{}
}

// bytes returns the size that counts towards maxRetryBytes.
func (r *retry) bytes() int {
	n := retryOverhead
	for i := range r.chunks {
		n += len(r.chunks[i].Data)
	}
	return n
}

const (
	// maxRetryBytes is the size of retries from which Flush accepts nothing for their blocks in any
	// slice. From then on retries grow only by one flush of each further block that fails.
	maxRetryBytes = 32 << 20
	// mostRetryBytes is the size of retries from which Flush accepts nothing at all. So they never exceed
	// this size and one flush.
	mostRetryBytes = 2 * maxRetryBytes
	// retryOverhead is what a block counts beside its chunks: its memory, and the requests that write it again.
	retryOverhead = 4 << 10

	// pauseFactor is the ratio of a pause to the attempt before it. Commits wait for attempts, so this
	// bounds the share of time that they lose to what fails.
	pauseFactor = 10
	// maxPause bounds a pause, so that a block is written soon after it is in reach again.
	maxPause = 30 * time.Second
)

// pause is the time without attempts after a failed one. The zero value is over.
type pause struct {
	from, span time.Duration // by the clock's Elapsed
}

func (p pause) over(clk clock.Clock) bool { return p.span == 0 || clk.Elapsed()-p.from >= p.span }

// failed keeps a unit for writeAgain.
func (w *Writer) failed(u *unit) {
	r := u.again
	if r == nil {
		r = &retry{slice: u.Slice, block: u.Block}
		if !u.refused { // what is there of it needs a mark, and the rest is given up
			r.chunks = u.raw
		}
		w.retries[u.key()] = r
		w.retryBytes += r.bytes()
	}
	for _, m := range u.marks {
		if r.id(m.Partition) == (blocks.ID{}) {
			r.marks = append(r.marks, m)
		}
	}
}

// waiting says for which blocks Flush accepts nothing.
func (w *Writer) waiting() func(blockKey) bool {
	starts := make(map[metric.ScheduleID]bool)
	if w.retryBytes >= maxRetryBytes {
		for k := range w.retries {
			starts[k.start] = true
		}
	}
	return func(k blockKey) bool { return w.retries[k] != nil || starts[k.start] }
}

// retriesFirst reports whether a flush of the samples begins with writeAgain. During the pause after a failed
// attempt it does so only if all blocks wait for that: then no healthy block does.
func (w *Writer) retriesFirst(samples []BlockSamples) bool {
	waits := w.waiting()
	return w.rest.over(w.cache.clk) || w.retryBytes >= mostRetryBytes ||
		!slices.ContainsFunc(samples, func(g BlockSamples) bool { return !waits(blockKey{g.Slice.StartMs, g.Block.Start}) })
}

// Owes reports whether chunks wait to be written again, or blocks to be marked again.
func (w *Writer) Owes() bool {
	for _, x := range w.written {
		if x.overtaken() {
			return true
		}
	}
	return len(w.retries) > 0
}

// Hurry ends the pause after a failed attempt to write again: the next Settle tries at
// once. It is for the last moments of a slice or of the process.
func (w *Writer) Hurry() { w.rest = pause{} }

// writeAgain stores the chunks of failed flushes, with marks for their blocks. A block goes on waiting while the store
// cannot tell the state of its slice. Nothing is given up: the first attempt may have landed.
//
// writeAgain returns an error only if a block still waits, and then a pause begins, or if ctx is done. The error is
// never storage.ErrRefused.
func (w *Writer) writeAgain(ctx context.Context) error {
	if len(w.retries) == 0 {
		return nil
	}
	began := w.cache.clk.Elapsed()
	n := len(w.retries)
	away := w.look(ctx)
	f, err := w.begin(ctx, nil)
	if err == nil {
		err = away[f.current.StartMs]
	}
	if err == nil {
		f.away = away
		// Sorted, so that the same history writes the same rows in the same order.
		for _, k := range slices.SortedFunc(maps.Keys(w.retries), blockKey.compare) {
			r := w.retries[k]
			f.units = append(f.units, &unit{BlockSamples: BlockSamples{Slice: r.slice, Block: r.block}, again: r, raw: r.chunks})
		}
		w.store(ctx, f)
		err = f.outcome()
	}
	w.rest = pause{}
	if len(w.retries) > 0 {
		now := w.cache.clk.Elapsed()
		w.rest = pause{now, min(pauseFactor*(now-began), maxPause)}
	}
	switch {
	case err == nil || len(w.retries) == 0 && ctx.Err() == nil:
		return nil
	case errors.Is(err, storage.ErrRefused):
		err = fmt.Errorf("%w: %s", errWaits, err.Error())
	}
	return fmt.Errorf("rewrite the chunks of a failed flush of %d blocks: %w", n, err)
}
