// Package cache implements the protocol of metrics_cache and metrics_cache_index: what a flush of
// ingest writes into them, and what a run reads from them and deletes.
//
// It keeps these invariants, numbered as in docs/architecture.md:
//
//  1. Acknowledged means durable. Writer.Flush returns nil only when the raw chunks are durable,
//     together with marks that lead a run to each of them. That run has not begun yet.
//  3. No lost mark. A mark is put only into a slice whose run has not begun: Put checks the clock
//     again after the write. Only marks that were read are deleted.
//  4. The closing race. Data is on time if it is durable before the slice's end plus the grace.
//     Data that takes longer gets a late mark before it is acknowledged.
//
// The cache is only a fast path. A run uses the cache of a block only when the cache is proven
// whole (ADR 3). A writer marks a block as open with its first flush. When the slice has closed,
// the writer seals the block: the same mark then says how many chunks the writer put into the
// cache. A writer that died, or whose flush failed, does not seal the block, and the run reads the
// table below instead.
package cache

import (
	"context"
	"fmt"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Timing defines when a slice closes and when its run begins.
type Timing struct {
	// Grace is the time after a slice's end during which data still enters it on time. The default
	// is 1m.
	Grace time.Duration
	// Delay is the time between a slice's end and the start of its run. It must exceed Grace by
	// more than the clocks of the processes can differ. The default is 2m.
	Delay time.Duration
}

// DefaultTiming returns a grace of one minute and a delay of two.
func DefaultTiming() Timing { return Timing{Grace: time.Minute, Delay: 2 * time.Minute} }

// Closed reports whether, at nowMs, data can no longer enter the slice on time.
func (t Timing) Closed(s metric.Slice, nowMs int64) bool {
	return nowMs >= s.EndMs+t.Grace.Milliseconds()
}

// Due reports whether, at nowMs, the slice's run may begin.
func (t Timing) Due(s metric.Slice, nowMs int64) bool {
	return nowMs >= s.EndMs+t.Delay.Milliseconds()
}

// MostStep is by how much a clock may be set back while a run goes on. By less than that what is put meanwhile does not go into
// the slice that is being ground, or is seen to be too late there (see Cache.Put).
func (t Timing) MostStep() time.Duration { return min(clock.MostStep, t.Delay-t.Grace) }

// Cache places what is written into cache and index, and tells the time by one
// clock. It holds no state of its own and may be shared.
type Cache struct {
	store  storage.Store
	ladder metric.Ladder
	shards int
	clk    clock.Clock
	ids    *blocks.IDs
	timing Timing
	// onLate receives the marks for closed slices; see OnLate.
	onLate func([]storage.PlacedMark)
}

// New returns the protocol over a store. writer is a random number that tells this writer from
// others. A process must create only one Cache per store: its ids order what the process writes.
func New(store storage.Store, clk clock.Clock, writer uint64, timing Timing) *Cache {
	s := store.Settings()
	ids := blocks.NewIDs(writer)
	ids.Skip(store.NewestID())
	return &Cache{
		store: store, ladder: s.Ladder, shards: s.IndexPartitions,
		clk: clk, ids: ids, timing: timing, onLate: func([]storage.PlacedMark) {},
	}
}

// OnLate registers a callback that receives all marks for closed slices. The callback runs once the
// marks may have been written, and before their data is acknowledged or the marks that they replace
// are deleted. OnLate must be called before the cache is used.
func (c *Cache) OnLate(tell func([]storage.PlacedMark)) { c.onLate = tell }

// Timing returns when slices close and when their runs begin.
func (c *Cache) Timing() Timing { return c.timing }

func (c *Cache) partition(b metric.Bucket, s metric.Slice, start metric.ScheduleID) storage.IndexPartition {
	return storage.IndexPartition{
		SliceKey: storage.SliceKey{Bucket: b, StartMs: s.StartMs},
		Shard:    blocks.ShardOf(start, c.shards),
	}
}

// own returns a mark for a whole block, placed in the index of the block's own slice.
func (c *Cache) own(kind storage.MarkKind, b metric.Bucket, s metric.Slice, start metric.ScheduleID, id blocks.ID, chunks int) storage.PlacedMark {
	return storage.PlacedMark{
		Partition: c.partition(b, s, start),
		Mark: storage.Mark{
			Start: start, TimeMs: s.StartMs, ID: id,
			Kind: kind, Chunks: chunks, DueMs: s.EndMs,
		},
	}
}

// current returns the slice that marks for closed slices go into at nowMs: the slice that contains
// nowMs, or the first later slice that is not complete. No run reads a complete slice again, and
// after the clock was set back the slice at nowMs may be complete.
func (c *Cache) current(b metric.Bucket, nowMs int64, complete func(metric.Slice) (bool, error)) (metric.Slice, error) {
	for s := c.ladder.SliceAt(b, nowMs); ; s = c.ladder.SliceAt(b, s.EndMs) {
		done, err := complete(s)
		if err != nil || !done {
			return s, err
		}
	}
}

// Complete reports whether a slice has been ground.
func (c *Cache) Complete(ctx context.Context, k storage.SliceKey) (bool, error) {
	return c.complete(ctx, k.Bucket, c.ladder.SliceAt(k.Bucket, k.StartMs))
}

func (c *Cache) complete(ctx context.Context, b metric.Bucket, s metric.Slice) (bool, error) {
	states, err := c.store.Slices(ctx, b, s.StartMs, s.StartMs+1)
	if err != nil {
		return false, fmt.Errorf("read the state of slice %s: %w", s, err)
	}
	return len(states) > 0 && states[0].Complete, nil
}

// Put writes marks for slices that may be closed into the index of the bucket's current slice. If
// that slice closes before the write is done, Put writes the marks again into the newer current
// slice, until the write is done in time: a run that begins later reads them. Then Put deletes the
// marks that it wrote to slices that closed meanwhile: their runs may be over. A mark without an id
// gets one. A mark with an id replaces the stored mark with the same key, which must ask for the
// same work. A DueMs of 0 becomes the end of the slice that the mark is put into.
func (c *Cache) Put(ctx context.Context, fence storage.Fence, b metric.Bucket, marks []storage.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	var late []storage.PlacedMark
	for {
		current, err := c.current(b, clock.NowMs(c.clk), func(s metric.Slice) (bool, error) { return c.complete(ctx, b, s) })
		if err != nil {
			return err
		}
		placed := c.place(b, current, marks)
		err = c.store.Write(ctx, &storage.Batch{
			Fence: fence,
			Open:  []storage.SliceKey{{Bucket: b, StartMs: current.StartMs}},
			Marks: placed,
		})
		c.onLate(placed)
		if err != nil {
			return fmt.Errorf("put %d marks into slice %s: %w", len(marks), current, err)
		}
		now := clock.NowMs(c.clk)
		if !c.timing.Closed(current, now) {
			return c.takeBack(ctx, fence, late)
		}
		late = append(late, placed...)
	}
}

// takeBack deletes marks from slices that are over, where no run may look again. The caller must
// have written other marks for the same work. A failed delete does not stop the others, unless the
// store is away or ctx ends.
func (c *Cache) takeBack(ctx context.Context, fence storage.Fence, marks []storage.PlacedMark) error {
	var failed error
	for _, m := range marks {
		if err := c.store.DeleteMarks(ctx, fence, m.Partition, []storage.Mark{m.Mark}); err != nil {
			failed = fmt.Errorf("take back the mark of block %d: %w", m.Start, err)
			if storage.IsAway(err) || ctx.Err() != nil {
				break
			}
		}
	}
	return failed
}

// place assigns marks to the index of slice s. It gives an id to each mark without one.
func (c *Cache) place(b metric.Bucket, s metric.Slice, marks []storage.Mark) []storage.PlacedMark {
	now := clock.NowMs(c.clk)
	out := make([]storage.PlacedMark, len(marks))
	for i, m := range marks {
		if m.ID == (blocks.ID{}) {
			m.ID = c.ids.Next(now)
		}
		if m.DueMs == 0 {
			m.DueMs = s.EndMs
		}
		out[i] = storage.PlacedMark{Partition: c.partition(b, s, m.Start), Mark: m}
	}
	return out
}
