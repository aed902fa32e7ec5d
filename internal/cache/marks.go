package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Put writes marks for slices that may be closed into the index of the bucket's current slice. If that slice closes
// before the write is done, or its run begins by a clock that is ahead, Put writes the marks again into the newer
// current slice, until the write is done in time: a run that begins later reads them. Then Put deletes the marks that
// it wrote to slices that closed meanwhile: their runs may be over. A mark without an id gets one. A mark with an id
// replaces the stored mark with the same key, which must ask for the same work. A DueMs of 0 becomes the end of the
// slice that the mark is put into.
//
// Each mark is a part of its own: a *storage.PartsError names the marks that may not be there, and
// all others are.
func (c *Cache) Put(ctx context.Context, fence storage.Fence, b metric.Bucket, marks []storage.Mark) error {
	if len(marks) == 0 {
		return nil
	}
	var late [][]storage.PlacedMark // marks, for each slice that closed meanwhile
	for {
		now, err := c.confirmedMs(ctx)
		if err != nil {
			return fmt.Errorf("put %d marks: %w", len(marks), err)
		}
		current, err := c.current(b, now, func(s metric.Slice) (bool, error) { return c.begun(ctx, b, s) })
		if err != nil {
			return err
		}
		placed := c.place(b, current, marks, now)
		err = c.writeMarks(ctx, &storage.Batch{Fence: fence, Open: slicesOf(placed), Marks: placed})
		c.onLate(placed)
		var some *storage.PartsError
		if err != nil && !errors.As(err, &some) {
			return fmt.Errorf("put %d marks into slice %s: %w", len(marks), current, err)
		}
		over := c.timing.Closed(current, clock.NowMs(c.clk))
		if !over { // a run that has begun since may have read the index before the write
			if over, err = c.begun(ctx, b, current); err != nil {
				return fmt.Errorf("put %d marks into slice %s: %w", len(marks), current, err)
			}
		}
		if over {
			if some != nil { // the others are not there in time either
				return fmt.Errorf("put %d marks into slice %s: %w", len(marks), current, some.Errs[0])
			}
			late = append(late, placed)
			continue
		}
		if some != nil { // the old marks stay
			return fmt.Errorf("put %d marks into slice %s: %w", len(marks), current, some)
		}
		c.takeBack(ctx, fence, slices.Concat(late...))
		return nil
	}
}

// takeBack deletes marks from slices that are over, whose run may miss them. The caller must have written other marks for the
// same work, so one that cannot be deleted does no harm: it leads a run to work that is done or, in a complete slice,
// nowhere. takeBack reorders marks.
func (c *Cache) takeBack(ctx context.Context, fence storage.Fence, marks []storage.PlacedMark) {
	slices.SortStableFunc(marks, func(a, b storage.PlacedMark) int {
		p, q := a.Partition, b.Partition
		return cmp.Or(cmp.Compare(p.Bucket, q.Bucket), cmp.Compare(p.StartMs, q.StartMs), cmp.Compare(p.Shard, q.Shard))
	})
	for len(marks) > 0 {
		p := marks[0].Partition
		var misplaced []storage.Mark
		for ; len(marks) > 0 && marks[0].Partition == p; marks = marks[1:] {
			misplaced = append(misplaced, marks[0].Mark)
		}
		if err := c.store.DeleteMarks(ctx, fence, p, misplaced); storage.IsAway(err) || ctx.Err() != nil {
			return
		}
	}
}

// writeMarks writes a batch of marks, each of which is a part of its own.
func (c *Cache) writeMarks(ctx context.Context, b *storage.Batch) error {
	b.Parts = slices.Repeat([]storage.Part{{Marks: 1}}, len(b.Marks))
	return c.store.Write(ctx, b)
}

// place assigns marks to the index of slice s. It gives an id, drawn at nowMs, to each mark without one.
func (c *Cache) place(b metric.Bucket, s metric.Slice, marks []storage.Mark, nowMs int64) []storage.PlacedMark {
	out := make([]storage.PlacedMark, len(marks))
	for i, m := range marks {
		if m.ID == (blocks.ID{}) {
			m.ID = c.ids.Next(nowMs)
		}
		if m.DueMs == 0 {
			m.DueMs = s.EndMs
		}
		out[i] = storage.PlacedMark{Partition: c.partition(b, s, m.Start), Mark: m}
	}
	return out
}

// maxNamed is the maximum number of schedules that a late mark names. A mark with more stands for
// the whole block. The run then recomputes unchanged rows, but ingest does not rewrite
// the mark for each schedule.
const maxNamed = 32

// lateMark returns a mark for the samples; without samples, for the whole block.
func lateMark(g *BlockSamples) storage.Mark {
	m := storage.Mark{Start: g.Block.Start, TimeMs: g.Slice.StartMs, Kind: storage.MarkLate}
	for i, s := range g.Samples {
		if i == 0 || s.Schedule != g.Samples[i-1].Schedule {
			m.Schedules = append(m.Schedules, s.Schedule)
		}
	}
	if len(m.Schedules) > maxNamed {
		m.Schedules = nil
	}
	return m
}

// widen adds schedules to a late mark; none means the whole block. It does not modify m.Schedules in
// place, since others may share it.
func widen(m *storage.Mark, schedules []metric.ScheduleID) {
	if len(m.Schedules) == 0 || len(schedules) == 0 {
		m.Schedules = nil
		return
	}
	all := slices.Concat(m.Schedules, schedules)
	slices.Sort(all)
	if m.Schedules = slices.Compact(all); len(m.Schedules) > maxNamed {
		m.Schedules = nil
	}
}

func slicesOf(marks []storage.PlacedMark) []storage.SliceKey {
	var out []storage.SliceKey
	for _, m := range marks {
		if !slices.Contains(out, m.Partition.SliceKey) {
			out = append(out, m.Partition.SliceKey)
		}
	}
	return out
}
