// Package cache implements the protocol of metrics_cache and metrics_cache_index: what a flush of
// ingest writes into them, and what a run reads from them and deletes.
//
// It keeps these invariants, numbered as in docs/architecture.md:
//
//  1. Acknowledged means durable. Writer.Flush returns nil only when the raw chunks are durable,
//     together with marks that lead a run to each of them. That run has not begun yet.
//  3. No lost mark. A mark is put only into a slice whose run has not begun: Put checks the clock
//     again after the write, and a run records that it begins. Only marks that were read are deleted.
//  4. The closing race. Data is on time if it is durable before the slice's end plus the grace.
//     Data that takes longer gets a late mark before it is acknowledged.
//
// The cache is only a fast path. A run uses the cache of a block only when it is proven whole; see state.
// docs/protocol.md has the whole protocol.
//
// Ingest's side: writer.go flushes, and decides what is late; closing.go marks what was overtaken by the end of its slice;
// retry.go keeps what a flush failed to write; index.go remembers the marks. A run's side: work.go reads marks; block.go
// decides whether their cache may be used, and deletes both afterwards; promote.go hands rows to the next bucket. marks.go
// puts late marks for both.
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

// RunAtMs returns the time at which the run of a slice begins, in Unix ms.
func (t Timing) RunAtMs(s metric.Slice) int64 { return s.EndMs + t.Delay.Milliseconds() }

// Due reports whether, at nowMs, the slice's run may begin.
func (t Timing) Due(s metric.Slice, nowMs int64) bool {
	return nowMs >= s.EndMs+t.Delay.Milliseconds()
}

// Settled returns the age from which on the order of raw chunks is final. Writers draw ids by their clocks, and a chunk is
// durable within maxFlush of that, or is not acknowledged, or is written again with a new id. Two clocks differ by at most
// twice the limit for one (Policy.MaxClockSkew).
func (t Timing) Settled() time.Duration {
	return maxFlush + 2*storage.Policy{Grace: t.Grace, Delay: t.Delay}.MaxClockSkew()
}

// MostAhead returns how far ahead of this clock a slice may begin that late marks are put into: by another process, whose clock
// is ahead, or by this one before its clock was set back.
func (t Timing) MostAhead() time.Duration {
	return max(clock.MostStep, 2*storage.Policy{Grace: t.Grace, Delay: t.Delay}.MaxClockSkew())
}

// MostStep is the largest step back of the clock that a run tolerates. After a smaller one, the slice that is being ground
// is still closed, so no marks are put into it.
func (t Timing) MostStep() time.Duration {
	return storage.Policy{Grace: t.Grace, Delay: t.Delay}.MostStep()
}

// Cache decides where marks and cache chunks go, by one clock. It is safe for concurrent use.
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

// Place takes a place in the order of what this process writes, for Writer.FlushAt.
func (c *Cache) Place(ctx context.Context) (*blocks.Place, error) {
	now, err := c.confirmedMs(ctx)
	if err != nil {
		return nil, err
	}
	return c.ids.Place(now), nil
}

// confirmedMs returns the time in Unix ms, if the store confirms the clock. No id is drawn by another clock: ids ascend, so
// one drawn by a clock that is ahead for a moment would put all later ones ahead, and what other processes write would lose.
func (c *Cache) confirmedMs(ctx context.Context) (int64, error) {
	now := clock.Read(c.clk)
	if err := c.store.Confirms(ctx, now); err != nil {
		return 0, err
	}
	return now.Time().UnixMilli(), nil
}

// OnLate registers a callback that receives all marks for closed slices. The callback runs once the
// marks may have been written, and before their data is acknowledged or the marks that they replace
// are deleted. OnLate must be called before the cache is used.
func (c *Cache) OnLate(note func([]storage.PlacedMark)) { c.onLate = note }

// Timing returns when slices close and when their runs begin.
func (c *Cache) Timing() Timing { return c.timing }

func (c *Cache) partition(b metric.Bucket, s metric.Slice, start metric.ScheduleID) storage.IndexPartition {
	return storage.IndexPartition{
		SliceKey: storage.SliceKey{Bucket: b, StartMs: s.StartMs},
		Shard:    blocks.ShardOf(start, c.shards),
	}
}

// blockMark returns a mark for a whole block, placed in the index of the block's own slice.
func (c *Cache) blockMark(kind storage.MarkKind, b metric.Bucket, s metric.Slice, start metric.ScheduleID, id blocks.ID, chunks int) storage.PlacedMark {
	return storage.PlacedMark{
		Partition: c.partition(b, s, start),
		Mark: storage.Mark{
			Start: start, TimeMs: s.StartMs, ID: id,
			Kind: kind, Chunks: chunks, DueMs: s.EndMs,
		},
	}
}

// current returns the slice that marks for closed slices go into at nowMs: the slice that contains
// nowMs, or the first later slice whose run has not begun. After the clock was set back, the run of
// the slice at nowMs may have begun.
func (c *Cache) current(b metric.Bucket, nowMs int64, begun func(metric.Slice) (bool, error)) (metric.Slice, error) {
	for s := c.ladder.SliceAt(b, nowMs); ; s = c.ladder.SliceAt(b, s.EndMs) {
		over, err := begun(s)
		if err != nil || !over {
			return s, err
		}
	}
}

// State returns what is recorded of a slice.
func (c *Cache) State(ctx context.Context, k storage.SliceKey) (storage.SliceState, error) {
	states, err := c.store.Slices(ctx, k.Bucket, k.StartMs, k.StartMs+1)
	if err != nil {
		return storage.SliceState{}, fmt.Errorf("read the state of slice %s: %w", c.ladder.SliceAt(k.Bucket, k.StartMs), err)
	}
	if len(states) == 0 {
		return storage.SliceState{SliceKey: k}, nil
	}
	return states[0], nil
}

// begun reports whether the run of a slice has begun, by whatever clock.
func (c *Cache) begun(ctx context.Context, b metric.Bucket, s metric.Slice) (bool, error) {
	state, err := c.State(ctx, storage.SliceKey{Bucket: b, StartMs: s.StartMs})
	return state.Over(), err
}
