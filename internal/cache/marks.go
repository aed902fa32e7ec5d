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
		err = c.store.Write(ctx, &storage.Batch{
			Fence: fence,
			Open:  []storage.SliceKey{{Bucket: b, StartMs: current.StartMs}},
			Marks: placed,
			Parts: slices.Repeat([]storage.Part{{Marks: 1}}, len(placed)),
		})
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
		if some != nil {
			for i := range late {
				late[i] = without(late[i], some.Failed)
			}
		}
		_, err = c.takeBack(ctx, fence, slices.Concat(late...))
		if some != nil {
			return fmt.Errorf("put %d marks into slice %s: %w", len(marks), current, some)
		}
		return err
	}
}

// without returns s without the elements at the given indexes, which ascend. It reuses s.
func without[T any](s []T, at []int) []T {
	out := s[:0]
	for i, v := range s {
		if _, found := slices.BinarySearch(at, i); !found {
			out = append(out, v)
		}
	}
	return out
}

// takeBack deletes marks from slices that are over, whose run may miss them. The caller must
// have written other marks for the same work. A failed delete does not stop the others, unless the
// store is away or ctx ends. takeBack returns the marks that may still be there. It reorders marks.
func (c *Cache) takeBack(ctx context.Context, fence storage.Fence, marks []storage.PlacedMark) (left []storage.PlacedMark, failed error) {
	slices.SortStableFunc(marks, func(a, b storage.PlacedMark) int {
		p, q := a.Partition, b.Partition
		return cmp.Or(cmp.Compare(p.Bucket, q.Bucket), cmp.Compare(p.StartMs, q.StartMs), cmp.Compare(p.Shard, q.Shard))
	})
	for len(marks) > 0 {
		p, n := marks[0].Partition, 0
		var of []storage.Mark
		for ; n < len(marks) && marks[n].Partition == p; n++ {
			of = append(of, marks[n].Mark)
		}
		if err := c.store.DeleteMarks(ctx, fence, p, of); err != nil {
			failed = fmt.Errorf("delete %d misplaced marks: %w", len(of), err)
			if storage.IsAway(err) || ctx.Err() != nil {
				return append(left, marks...), failed
			}
			left = append(left, marks[:n]...)
		}
		marks = marks[n:]
	}
	return left, failed
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

// lateMarks collects marks for closed slices, one per block. The zero value is empty.
type lateMarks struct {
	marks []storage.Mark
	at    map[blockKey]int
}

func (l *lateMarks) add(m storage.Mark) {
	k := blockKey{m.TimeMs, m.Start}
	if i, ok := l.at[k]; ok {
		widen(&l.marks[i], m.Schedules)
		return
	}
	if l.at == nil {
		l.at = make(map[blockKey]int)
	}
	l.at[k] = len(l.marks)
	l.marks = append(l.marks, m)
}

// failed returns, by block and slice, the errors of the marks that Put, which returned err, did not
// write.
func (l *lateMarks) failed(err error) map[blockKey]error {
	if err == nil {
		return nil
	}
	failed := make(map[blockKey]error)
	var some *storage.PartsError
	if errors.As(err, &some) {
		for i, at := range some.Failed {
			failed[blockKey{l.marks[at].TimeMs, l.marks[at].Start}] = some.Errs[i]
		}
		return failed
	}
	for k := range l.at {
		failed[k] = err
	}
	return failed
}

func lateMark(g BlockSamples) storage.Mark {
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
