package cache

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/invariants"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Work is what the marks of one block and slice together ask a run to do.
type Work struct {
	// Partition is where the marks lie: a shard of the slice that is being ground.
	Partition storage.IndexPartition
	// Block and Slice are what is to be ground. Slice is that of the partition for what came on
	// time, an earlier one for all else.
	Block blocks.Range
	Slice metric.Slice
	// Marks are those that were read, and the only ones to be deleted for it.
	Marks []storage.Mark
}

// Bucket is the bucket that is being ground.
func (w *Work) Bucket() metric.Bucket { return w.Partition.Bucket }

// Fresh says whether all writers of the block are done with it: the cache holds all
// that there is to grind, if it has as many chunks as they say.
func (w *Work) Fresh() bool {
	return !slices.ContainsFunc(w.Marks, func(m storage.Mark) bool { return m.Kind != storage.MarkFresh })
}

// Late says whether rows that may have been stored before are to be computed again.
func (w *Work) Late() bool {
	return slices.ContainsFunc(w.Marks, func(m storage.Mark) bool {
		return m.Kind != storage.MarkFresh && m.Kind != storage.MarkOpen
	})
}

// Damaged is how many of the marks are.
func (w *Work) Damaged() int {
	n := 0
	for _, m := range w.Marks {
		if m.Damaged {
			n++
		}
	}
	return n
}

// chunks is the number of chunks that the writers say they put into the cache.
func (w *Work) chunks() int {
	n := 0
	for _, m := range w.Marks {
		n += m.Chunks
	}
	return n
}

// Whole says whether all of the block is asked for, and not only some schedules.
func (w *Work) Whole() bool {
	return slices.ContainsFunc(w.Marks, func(m storage.Mark) bool { return len(m.Schedules) == 0 })
}

// Schedules are those asked for, sorted; nil when the whole block is.
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

// TakesBack are the schedules whose rows are to be taken back where they have no input, sorted.
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

// DueMs is when the youngest of the marks could first have been dealt with.
func (w *Work) DueMs() int64 {
	return slices.MaxFunc(w.Marks, func(a, b storage.Mark) int { return cmp.Compare(a.DueMs, b.DueMs) }).DueMs
}

// Attempt is the number of runs that failed on it already.
func (w *Work) Attempt() int {
	return slices.MaxFunc(w.Marks, func(a, b storage.Mark) int { return a.Attempt - b.Attempt }).Attempt
}

// CacheKey is the cache partition of the block.
func (w *Work) CacheKey() storage.CacheKey {
	return storage.CacheKey{
		SliceKey: storage.SliceKey{Bucket: w.Bucket(), StartMs: w.Slice.StartMs},
		Start:    w.Block.Start,
	}
}

// maxMarksPerWork bounds what is gathered for one block, so that a flood of marks for
// one block does not gather in memory. The rest makes another Work.
const maxMarksPerWork = 4096

// Read yields the work of an index partition. The marks of one block and slice are
// neighbours there, so this holds one block's marks in memory at a time.
func (c *Cache) Read(ctx context.Context, p storage.IndexPartition) iter.Seq2[*Work, error] {
	return func(yield func(*Work, error) bool) {
		epochs := c.store.Settings().Epochs
		var w *Work
		for m, err := range c.store.Marks(ctx, p) {
			if err != nil {
				yield(nil, fmt.Errorf("read the index of slice %d, shard %d: %w", p.StartMs, p.Shard, err))
				return
			}
			if w != nil && w.Slice.StartMs == m.TimeMs && w.Block.Start == m.Start && len(w.Marks) < maxMarksPerWork {
				w.Marks = append(w.Marks, m)
				continue
			}
			if w != nil && !yield(w, nil) {
				return
			}
			w = &Work{
				Partition: p,
				Block:     blocks.Range{Start: m.Start, End: m.Start + metric.ScheduleID(epochs.SizeAt(m.TimeMs))},
				Slice:     c.ladder.SliceAt(p.Bucket, m.TimeMs),
				Marks:     []storage.Mark{m},
			}
		}
		if w != nil {
			yield(w, nil)
		}
	}
}

// ErrUseTable says that the cache cannot serve a block: it is gone, damaged, too large, or not
// known to be whole. The table below holds the same and more. It wraps storage.ErrCorrupt too
// if it is damaged.
var ErrUseTable = errors.New("the cache cannot serve the block")

// Load calls add with each chunk that the cache holds for work, by ID. ErrCorrupt is ErrUseTable too; any other error of add
// ends it, and is returned.
func (c *Cache) Load(ctx context.Context, w *Work, add func(chunk []byte) error) error {
	chunks, err := c.store.CacheBlock(ctx, w.CacheKey())
	if errors.Is(err, storage.ErrCorrupt) || errors.Is(err, storage.ErrTooLarge) {
		return fmt.Errorf("%w: %w", ErrUseTable, err)
	}
	if err == nil && (len(chunks) == 0 || len(chunks) != w.chunks()) {
		return ErrUseTable
	}
	if err != nil {
		return err
	}
	for _, ch := range chunks {
		err := add(ch.Data)
		if errors.Is(err, storage.ErrCorrupt) {
			return fmt.Errorf("%w: chunk %s: %w", ErrUseTable, ch.ID, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// NextOpen says whether what is ground in a run of slice k enters the next bucket on
// time, into the slice that k lies within.
//
// That slice is run only after all slices within it are complete, and k is not: its
// run has not begun. Unless it is complete all the same, because k was opened only after it,
// under a clock that went back.
func (c *Cache) NextOpen(ctx context.Context, k storage.SliceKey) (bool, error) {
	next := k.Bucket + 1
	if next == c.ladder.Top() {
		return false, nil
	}
	done, err := c.complete(ctx, next, c.ladder.SliceAt(next, k.StartMs))
	return !done, err
}

// Pass hands the rows that work was ground into on to the next bucket; open is what
// NextOpen said of the run's slice. What it writes on time has keys that follow from the work,
// so that who does the same work again writes over it.
//
// Rows of the next bucket's slice that the run's own slice lies within enter its cache, if it is
// open. All others come after that slice's run may have begun, and their schedules
// are marked in the next bucket's current slice.
func (c *Cache) Pass(ctx context.Context, fence storage.Fence, w *Work, rows []metric.RollupRow, open bool) error {
	next := w.Bucket() + 1
	if next == c.ladder.Top() || len(rows) == 0 {
		return nil
	}
	invariants.Check(fence > 0, "a run writes without a fence (invariant 5)")
	slice := c.ladder.SliceAt(next, w.Slice.StartMs)
	onTime := open && slice.Contains(w.Partition.StartMs)
	epochs := c.store.Settings().Epochs

	b := &storage.Batch{Fence: fence}
	var late []storage.Mark
	for len(rows) > 0 {
		block := epochs.BlockAt(rows[0].Schedule, slice.StartMs)
		end := len(rows)
		if i := slices.IndexFunc(rows, func(r metric.RollupRow) bool { return !block.Contains(r.Schedule) }); i >= 0 {
			end = i
		}
		if onTime {
			id := passedID(w, rows[:end])
			m := c.own(storage.MarkFresh, next, slice, block.Start, id, 1)
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
			late = append(late, storage.Mark{
				Start: block.Start, TimeMs: slice.StartMs, Kind: storage.MarkLate,
				Schedules: slices.Compact(ids),
			})
		}
		rows = rows[end:]
	}
	if !onTime {
		return c.Put(ctx, fence, next, late)
	}
	b.Open = slicesOf(b.Marks)
	return c.store.Write(ctx, b)
}

// passedID is the id of what is passed on. It orders by the slice that is ground, as a row may come
// again when late data has changed it, and tells apart what one slice passes on by what it is.
func passedID(w *Work, rows []metric.RollupRow) blocks.ID {
	var key []byte
	for _, n := range [...]int64{w.Slice.StartMs, int64(w.Block.Start)} {
		key = binary.BigEndian.AppendUint64(key, uint64(n))
	}
	for i := range rows {
		key = binary.BigEndian.AppendUint64(key, uint64(rows[i].Schedule))
	}
	return blocks.KeyID(w.Partition.StartMs, xxhash.Sum64(key))
}

// Done deletes what work stood for, once its rows are stored and passed on: first
// the block's cache, then exactly the marks that were read.
func (c *Cache) Done(ctx context.Context, fence storage.Fence, w *Work) error {
	if err := c.store.DeleteCacheBlock(ctx, fence, w.CacheKey()); err != nil {
		return fmt.Errorf("delete cache of block %d: %w", w.Block.Start, err)
	}
	return c.Unmark(ctx, fence, w)
}

// Unmark deletes exactly the marks that were read.
func (c *Cache) Unmark(ctx context.Context, fence storage.Fence, w *Work) error {
	if err := c.store.DeleteMarks(ctx, fence, w.Partition, w.Marks); err != nil {
		return fmt.Errorf("delete marks of block %d: %w", w.Block.Start, err)
	}
	return nil
}
