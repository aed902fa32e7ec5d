package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
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
		open := []storage.SliceKey{{Bucket: b, StartMs: current.StartMs}}
		err = c.store.Write(ctx, &storage.Batch{
			Fence: fence,
			Open:  open,
			Marks: placed,
			Parts: slices.Repeat([]storage.Part{{Marks: 1}}, len(placed)),
		})
		c.noteOpened(open)
		c.placed(placed)
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

// BringBack copies the marks in the index of a future slice into the current slice, whose run does their
// work sooner. A clock that was ahead has put them there. BringBack leaves out marks for slices after
// the current one, which are not over yet.
//
// It deletes nothing: a writer may extend a mark meanwhile, or rely on it for samples that come later. The
// run of the slice does the work once more. So BringBack does no harm if this process's clock is the wrong
// one.
//
// A process copies an index partition once, and again when it has put more marks there, or when the current
// slice has come to one whose marks it has left out.
func (c *Cache) BringBack(ctx context.Context, k storage.SliceKey) error {
	s := c.ladder.SliceAt(k.Bucket, k.StartMs)
	now := clock.NowMs(c.clk)
	if !c.timing.Ahead(s, now) {
		return nil
	}
	left := c.notBroughtBack(k, c.ladder.SliceAt(k.Bucket, now))
	if len(left) == 0 {
		return nil
	}
	if err := c.store.CheckFit(ctx); err != nil { // if this clock is behind, the slice may be the current one
		return fmt.Errorf("the clock is not confirmed: %w", err)
	}
	now = clock.NowMs(c.clk)
	current, err := c.current(k.Bucket, now, func(s metric.Slice) (bool, error) { return c.begun(ctx, k.Bucket, s) })
	if err != nil || current.StartMs >= s.StartMs || !c.timing.Ahead(s, now) {
		return err
	}
	for _, p := range left {
		c.bringsBack(p) // before the read: a mark put from now on undoes it
		toCome, err := c.copyMarks(ctx, p, current)
		c.hasBroughtBack(p, toCome, err)
		if err != nil {
			return err
		}
	}
	return nil
}

// noneLeftOut says that no mark was left out because its slice was to come.
const noneLeftOut = math.MaxInt64

// copyMarks copies an index partition for BringBack. It returns the start of the first slice after the current
// one for which there are marks.
func (c *Cache) copyMarks(ctx context.Context, p storage.IndexPartition, current metric.Slice) (toComeMs int64, err error) {
	toComeMs = noneLeftOut
	var found []storage.Mark
	for m, err := range c.store.Marks(ctx, p) {
		if err != nil {
			return 0, fmt.Errorf("read the index of slice %d, shard %d: %w", p.StartMs, p.Shard, err)
		}
		if m.Damaged {
			continue
		}
		if s := c.ladder.SliceAt(p.Bucket, m.TimeMs); s.StartMs > current.StartMs {
			toComeMs = min(toComeMs, s.StartMs)
			continue
		}
		m.ID, m.DueMs = blocks.ID{}, 0
		if found = append(found, m); len(found) == maxMarksPerWork {
			if err := c.Put(ctx, 0, p.Bucket, found); err != nil {
				return 0, err
			}
			found = nil
		}
	}
	return toComeMs, c.Put(ctx, 0, p.Bucket, found)
}

// notBroughtBack returns the index partitions of slice k that BringBack has not copied as far as it could at the
// time of the current slice.
func (c *Cache) notBroughtBack(k storage.SliceKey, current metric.Slice) (left []storage.IndexPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for shard := range c.shards {
		p := storage.IndexPartition{SliceKey: k, Shard: shard}
		if toComeMs, ok := c.broughtBack[p]; !ok || toComeMs <= current.StartMs {
			left = append(left, p)
		}
	}
	return left
}

// bringsBack notes that BringBack is about to copy a partition.
func (c *Cache) bringsBack(p storage.IndexPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broughtBack[p] = noneLeftOut
}

// hasBroughtBack notes what copyMarks has returned, unless marks were put there meanwhile.
func (c *Cache) hasBroughtBack(p storage.IndexPartition, toComeMs int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.broughtBack[p]; ok {
		c.broughtBack[p] = toComeMs
	}
	if err != nil {
		delete(c.broughtBack, p)
	}
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
