package cache

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Work is what the marks of one block and slice ask a run to do.
type Work struct {
	// Partition is the index partition that holds the marks: a shard of the slice that is being
	// ground.
	Partition storage.IndexPartition
	// Block and Slice say what to grind. Slice is the slice of the partition for data that came on
	// time, and an earlier slice for all other work.
	Block blocks.Range
	Slice metric.Slice
	// Marks are the marks that were read. Only these are deleted when the work is done.
	Marks []storage.Mark
	// Part says that the block and slice have more marks than one Work holds. Other work has the rest.
	Part bool
}

// Bucket returns the bucket that is being ground.
func (w *Work) Bucket() metric.Bucket { return w.Partition.Bucket }

// Late reports whether the work may recompute rows that are already stored.
func (w *Work) Late() bool {
	return slices.ContainsFunc(w.Marks, func(m storage.Mark) bool {
		return m.Kind != storage.MarkFresh && m.Kind != storage.MarkOpen
	})
}

// Damaged returns the number of damaged marks.
func (w *Work) Damaged() int {
	n := 0
	for _, m := range w.Marks {
		if m.Damaged {
			n++
		}
	}
	return n
}

// Whole reports whether the marks ask for the whole block, not only for some schedules.
func (w *Work) Whole() bool {
	return slices.ContainsFunc(w.Marks, func(m storage.Mark) bool { return len(m.Schedules) == 0 })
}

// Schedules returns the schedules that the marks name, sorted; nil if the marks ask for the whole
// block.
func (w *Work) Schedules() []metric.ScheduleID {
	if w.Whole() {
		return nil
	}
	var ids []metric.ScheduleID
	for _, m := range w.Marks {
		ids = append(ids, m.Schedules...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// TakesBack returns the schedules whose rows are taken back if they have no input, sorted.
func (w *Work) TakesBack() []metric.ScheduleID {
	var ids []metric.ScheduleID
	for _, m := range w.Marks {
		if m.Kind == storage.MarkTakeBack {
			ids = append(ids, m.Schedules...)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// DueMs returns the latest DueMs of the marks: the earliest time at which all of the work could
// have been done, in Unix ms.
func (w *Work) DueMs() int64 {
	return slices.MaxFunc(w.Marks, func(a, b storage.Mark) int { return cmp.Compare(a.DueMs, b.DueMs) }).DueMs
}

// Attempt returns how many runs have failed on the work: the highest count among its marks.
func (w *Work) Attempt() int {
	return slices.MaxFunc(w.Marks, func(a, b storage.Mark) int { return a.Attempt - b.Attempt }).Attempt
}

// CacheKey returns the cache partition of the block.
func (w *Work) CacheKey() storage.CacheKey {
	return storage.CacheKey{
		SliceKey: storage.SliceKey{Bucket: w.Bucket(), StartMs: w.Slice.StartMs},
		Start:    w.Block.Start,
	}
}

// maxMarksPerWork bounds the marks of one Work, so that a flood of marks for one block does not
// fill the memory. The remaining marks make another Work, and each of them is a Part.
const maxMarksPerWork = 4096

// Read yields the work of an index partition. The marks of one block and slice are neighbours in
// the index, so Read holds the marks of one block in memory at a time.
func (c *Cache) Read(ctx context.Context, p storage.IndexPartition) iter.Seq2[*Work, error] {
	return func(yield func(*Work, error) bool) {
		epochs := c.store.Settings().Epochs
		var w *Work
		for m, err := range c.store.Marks(ctx, p, storage.MarkKey{}, 0) {
			if err != nil {
				yield(nil, fmt.Errorf("read the index of slice %d, shard %d: %w", p.StartMs, p.Shard, err))
				return
			}
			same := w != nil && w.Slice.StartMs == m.TimeMs && w.Block.Start == m.Start
			if same && len(w.Marks) < maxMarksPerWork {
				w.Marks = append(w.Marks, m)
				continue
			}
			if w != nil {
				w.Part = w.Part || same
				if !yield(w, nil) {
					return
				}
			}
			w = &Work{
				Partition: p,
				Block:     blocks.Range{Start: m.Start, End: m.Start + metric.ScheduleID(epochs.SizeAt(m.TimeMs))},
				Slice:     c.ladder.SliceAt(p.Bucket, m.TimeMs),
				Marks:     []storage.Mark{m},
				Part:      same,
			}
		}
		if w != nil {
			yield(w, nil)
		}
	}
}
