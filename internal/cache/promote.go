package cache

import (
	"context"
	"encoding/binary"
	"math"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/treecheck/invariants"
)

// Next says what a run may put into the next bucket's slice around its own.
type Next struct {
	// marks: the run of that slice has not begun, so it reads the marks that are put there.
	marks bool
	// chunks: what is put into that slice's cache stays there until then.
	chunks bool
}

// Next asks what a run of slice k may put into the next bucket's slice around k.
//
// The slice around k is run only after all slices within it are complete. k is not
// complete, so that run has not begun, unless a clock was ahead. Next therefore asks the store.
func (c *Cache) Next(ctx context.Context, k storage.SliceKey) (Next, error) {
	next := k.Bucket + 1
	if next == c.ladder.Top() {
		return Next{}, nil
	}
	around := c.ladder.SliceAt(next, k.StartMs)
	begun, err := c.begun(ctx, next, around)
	if err != nil {
		return Next{}, err
	}
	trusted, err := c.Trusts(ctx, storage.SliceKey{Bucket: next, StartMs: around.StartMs})
	return Next{marks: !begun, chunks: !begun && trusted}, err
}

// KeptFrom returns the start of the first slice of bucket b that will still be whole when a run deals with marks that
// are put at nowMs. Marks for earlier slices are in vain: the run drops them. It is math.MinInt64 if the bucket is kept
// for ever.
func (c *Cache) KeptFrom(b metric.Bucket, nowMs int64) int64 {
	from := c.store.WholeFrom(b, c.timing.RunAtMs(c.ladder.SliceAt(b, nowMs)))
	if from == math.MinInt64 {
		return from
	}
	return metric.AlignUp(from, c.ladder.WidthMs(b+1))
}

// Climb predicts when marked work reaches the roll-up rows. slice is the slice of bucket b whose
// data is ground; its mark lies in the index of slice in. Climb returns the times of the runs, in
// Unix ms: first the run that grinds the row of level b+1, then those of the levels above. It
// follows the rule of Promote: each run puts its marks into the next bucket's slice around it, or else
// into that bucket's current slice.
func (c *Cache) Climb(b metric.Bucket, slice, in metric.Slice) []int64 {
	var out []int64
	for ; b < c.ladder.Top(); b++ {
		at := c.timing.RunAtMs(in)
		out = append(out, at)
		if b+1 == c.ladder.Top() {
			break
		}
		slice = c.ladder.SliceAt(b+1, slice.StartMs)
		if slice.Contains(in.StartMs) {
			in = slice
		} else {
			in = c.ladder.SliceAt(b+1, at)
		}
	}
	return out
}

// Promote promotes the rows of work to the next bucket. to is the result of Next for the run's slice.
//
//   - Rows of a whole block that came on time enter the cache of the next bucket's slice around them,
//     with a fresh mark. There is one chunk for each block and slice below: a repeated run writes over
//     it. So the cache never holds two chunks with the same row.
//   - For all other rows Promote puts late marks that name their schedules. The run that reads these reads
//     the rows from their table. The marks go into the slice around the rows if the run's own slice lies
//     within it and its run has not begun, and else into the next bucket's current slice.
func (c *Cache) Promote(ctx context.Context, fence storage.Fence, w *Work, rows []metric.RollupRow, to Next) error {
	next := w.Bucket() + 1
	if next == c.ladder.Top() || len(rows) == 0 {
		return nil
	}
	invariants.Check(fence > 0, "a run writes without a fence (invariant 5)")
	slice := c.ladder.SliceAt(next, w.Slice.StartMs)
	inTime := to.marks && slice.Contains(w.Partition.StartMs)
	whole := inTime && to.chunks && w.Slice.StartMs == w.Partition.StartMs && w.Whole()
	epochs := c.store.Settings().Epochs

	b := &storage.Batch{Fence: fence}
	var late []storage.Mark
	for len(rows) > 0 {
		block := epochs.BlockAt(rows[0].Schedule, slice.StartMs)
		end := len(rows)
		if i := slices.IndexFunc(rows, func(r metric.RollupRow) bool { return !block.Contains(r.Schedule) }); i >= 0 {
			end = i
		}
		if whole {
			id := promotedID(w, nil)
			m := c.blockMark(storage.MarkFresh, next, slice, block.Start, id, 1)
			b.Marks = append(b.Marks, m)
			b.Cache = append(b.Cache, storage.CacheChunk{
				CacheKey: storage.CacheKey{SliceKey: m.Partition.SliceKey, Start: block.Start},
				Chunk:    storage.Chunk{ID: id, Data: blocks.AppendRollups(nil, rows[:end])},
			})
		} else {
			ids := make([]metric.ScheduleID, end)
			for i := range ids {
				ids[i] = rows[i].Schedule
			}
			m := storage.Mark{Start: block.Start, TimeMs: slice.StartMs, Kind: storage.MarkLate, Schedules: slices.Compact(ids)}
			m.ID = promotedID(w, m.Schedules)
			late = append(late, m)
		}
		rows = rows[end:]
	}
	if len(late) > 0 {
		if !inTime {
			return c.Put(ctx, fence, next, late)
		}
		// All of these have ids.
		b.Marks = c.place(next, slice, late, w.Partition.StartMs)
	}
	b.Open = slicesOf(b.Marks)
	return c.store.Write(ctx, b)
}

// promotedID returns the id of what Promote puts into the next bucket's slice: of the chunk and mark of a whole
// block, or of a late mark, which a repeated run may put with other schedules, beside the first. So runs that are
// aborted again and again leave one mark, and not one each.
func promotedID(w *Work, schedules []metric.ScheduleID) blocks.ID {
	var key []byte
	for _, n := range [...]int64{w.Slice.StartMs, int64(w.Block.Start)} {
		key = binary.BigEndian.AppendUint64(key, uint64(n))
	}
	for _, id := range schedules {
		key = binary.BigEndian.AppendUint64(key, uint64(id))
	}
	return blocks.KeyID(w.Partition.StartMs, xxhash.Sum64(key))
}
