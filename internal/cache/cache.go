// Package cache is the protocol of metrics_cache and metrics_cache_index: what a
// flush of ingest writes into them, and what a run reads from them and deletes.
//
// The invariants that it keeps, numbered as in docs/architecture.md:
//
//  1. Acknowledged means durable. Writer.Flush returns nil only when the raw chunks are
//     durable and so are marks that lead a run, not yet begun, to every one of them.
//  3. No lost mark. A mark is put where a run has yet to look (Put looks at
//     the clock again after the write), and only marks that were read are deleted.
//  4. The closing race. What belongs to a slice on time is durable before the slice's
//     end plus the grace; what takes longer gets a late mark before it is acknowledged.
//
// The cache itself is only a fast path, and is used for a block only when it is
// proven whole: a writer marks a block as open with its first flush, and when the slice has
// closed says in the same mark how many chunks it has put there. A writer that died, or
// whose flush failed half-way, never says so, and the table below is read instead.
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

// Timing says when a slice closes and when it is ground.
type Timing struct {
	// Grace is how long after a slice's end data still enters it on time. The default is 1m.
	Grace time.Duration
	// Delay is how long after a slice's end its run begins. It must exceed Grace by
	// more than the clocks of the processes can differ. The default is 2m.
	Delay time.Duration
}

// DefaultTiming is a grace of one minute and a delay of two.
func DefaultTiming() Timing { return Timing{Grace: time.Minute, Delay: 2 * time.Minute} }

// Closed says whether, at nowMs, nothing may enter the slice on time any more.
func (t Timing) Closed(s metric.Slice, nowMs int64) bool {
	return nowMs >= s.EndMs+t.Grace.Milliseconds()
}

// Due says whether, at nowMs, the slice's run may begin.
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
	// onLate is told of marks for closed slices; see OnLate.
	onLate func([]storage.PlacedMark)
}

// New makes the protocol over a store, for the writer with the given random number.
// It is to be the process's only one over that store: its ids order what the process writes.
func New(store storage.Store, clk clock.Clock, writer uint64, timing Timing) *Cache {
	s := store.Settings()
	ids := blocks.NewIDs(writer)
	ids.Skip(store.NewestID())
	return &Cache{
		store: store, ladder: s.Ladder, shards: s.IndexPartitions,
		clk: clk, ids: ids, timing: timing, onLate: func([]storage.PlacedMark) {},
	}
}

// OnLate has tell hear of all marks for closed slices, once they may have been written and before what they stand for is
// acknowledged, or the marks that they follow are deleted. It is called before the cache is used.
func (c *Cache) OnLate(tell func([]storage.PlacedMark)) { c.onLate = tell }

// Timing is when slices close and are ground.
func (c *Cache) Timing() Timing { return c.timing }

func (c *Cache) partition(b metric.Bucket, s metric.Slice, start metric.ScheduleID) storage.IndexPartition {
	return storage.IndexPartition{
		SliceKey: storage.SliceKey{Bucket: b, StartMs: s.StartMs},
		Shard:    blocks.ShardOf(start, c.shards),
	}
}

// own is a mark for a whole block of the very slice in whose index it lies.
func (c *Cache) own(kind storage.MarkKind, b metric.Bucket, s metric.Slice, start metric.ScheduleID, id blocks.ID, chunks int) storage.PlacedMark {
	return storage.PlacedMark{
		Partition: c.partition(b, s, start),
		Mark: storage.Mark{
			Start: start, TimeMs: s.StartMs, ID: id,
			Kind: kind, Chunks: chunks, DueMs: s.EndMs,
		},
	}
}

// current is the slice that marks for closed slices go into at nowMs: the one that the clock is
// in, or the first one after it that is not complete. Nobody looks into a complete slice
// again, and after the clock was set back the one that it is in may be.
func (c *Cache) current(b metric.Bucket, nowMs int64, complete func(metric.Slice) (bool, error)) (metric.Slice, error) {
	for s := c.ladder.SliceAt(b, nowMs); ; s = c.ladder.SliceAt(b, s.EndMs) {
		done, err := complete(s)
		if err != nil || !done {
			return s, err
		}
	}
}

// Complete says whether a slice has been ground.
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

// Put puts marks for slices that may be closed into the index of the bucket's
// current slice, and does not return before they lie in one that was still open when
// the write was done: a run that begins later reads them. Those that came too late into one before
// are taken back, since its run may have been. A mark without an id gets one
// here; one with an id takes the place of its like, which must ask for the same. A DueMs of 0 becomes the end of the slice that they are put in.
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

// takeBack deletes marks that lie in slices that are over, where nobody may look again. Others that
// stand for the same must have been written. One that cannot be deleted keeps the others only where the store is away.
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

// place says where marks go that are put into slice s. Those without an id get one.
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
