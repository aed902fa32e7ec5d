package pebble

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// rowOverhead is roughly what the key and the framing of a row take in a batch, in bytes.
const rowOverhead = 64

// Write implements storage.Store: one atomic batch, synced unless it carries a fence.
func (s *Store) Write(ctx context.Context, b *storage.Batch) error {
	const op = "write batch"
	size := rowOverhead * (len(b.Open) + len(b.Marks) + len(b.Raw) + len(b.Cache))
	for i := range b.Marks {
		size += len(b.Marks[i].LastError) + 2*len(b.Marks[i].Schedules)
	}
	for i := range b.Raw {
		size += len(b.Raw[i].Data)
	}
	for i := range b.Cache {
		size += len(b.Cache[i].Data)
	}
	if err := s.disk.admit(size); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	batch := s.db.NewBatchWithSize(size)
	if err := fillBatch(batch, b); err != nil {
		return convert(op, closed(batch, err))
	}
	if b.Fence != 0 || len(b.Raw) == 0 {
		return s.commit(ctx, op, b.Fence, batch)
	}
	newest := slices.MaxFunc(b.Raw, func(x, y storage.RawChunk) int { return x.ID.Compare(y.ID) }).ID
	return s.do(ctx, op, func() error { return s.commitRaw(batch, newest) })
}

func fillBatch(batch *lsm.Batch, b *storage.Batch) error {
	for _, k := range b.Open {
		if err := batch.Set(sliceKey(k, sliceOpen), nil, nil); err != nil {
			return err
		}
	}
	var value []byte
	for i := range b.Marks {
		m := &b.Marks[i]
		value = appendMark(value[:0], &m.Mark)
		if err := batch.Set(indexKey(indexPartitionKey(m.Partition), &m.Mark), value, nil); err != nil {
			return err
		}
	}
	for i := range b.Raw {
		if err := batch.Set(rawKey(&b.Raw[i]), b.Raw[i].Data, nil); err != nil {
			return err
		}
	}
	for i := range b.Cache {
		c := &b.Cache[i]
		if err := batch.Set(append(cacheBlockKey(c.CacheKey), c.ID[:]...), c.Data, nil); err != nil {
			return err
		}
	}
	return nil
}

// commit commits and closes a batch. Without a fence the commit is synced. With a fence it happens
// only if the fence has not been superseded.
func (s *Store) commit(ctx context.Context, op string, f storage.Fence, batch *lsm.Batch) error {
	return s.do(ctx, op, func() error {
		if f == 0 {
			return commitSynced(batch)
		}
		s.fences.mu.RLock()
		defer s.fences.mu.RUnlock()
		if err := s.fences.check(f); err != nil {
			return closed(batch, err)
		}
		return closed(batch, batch.Commit(lsm.NoSync))
	})
}

// commitRaw commits and closes a batch with raw chunks, of which newest is the greatest id. Not every batch has greater
// ids than the one before: what failed is written again, and a migration writes ids as old as its samples. Batches that
// raise NewestID commit one after the other, so the greatest id is the last on the disk. Only one process at a time takes
// new ids, and its commits follow one another anyway.
func (s *Store) commitRaw(batch *lsm.Batch, newest blocks.ID) error {
	s.newestMu.Lock()
	if s.NewestID().Compare(newest) >= 0 {
		s.newestMu.Unlock()
		return commitSynced(batch)
	}
	defer s.newestMu.Unlock()
	if err := batch.Set(metaKey(metaNewestID), newest[:], nil); err != nil {
		return closed(batch, err)
	}
	err := commitSynced(batch)
	if err == nil {
		s.newest.Store(&newest)
	}
	return err
}

func commitSynced(batch *lsm.Batch) error { return closed(batch, batch.Commit(lsm.Sync)) }

func closed(batch *lsm.Batch, err error) error {
	if closeErr := batch.Close(); err == nil {
		err = closeErr
	}
	return err
}

// fences tracks which fences may still write.
type fences struct {
	// mu is held for reading while a write with a fence commits.
	mu sync.RWMutex
	// last is the newest fence ever issued. It is stored on disk too.
	last storage.Fence
	// leases are the newest ones of each shard since the store was opened. A lease that was released has no owner. Its fence
	// still counts.
	leases map[int]storage.Lease
}

// check refuses a fence that was issued and has been superseded, by another lease of its shard or
// because the store has been opened again since.
func (f *fences) check(fence storage.Fence) error {
	if fence > f.last {
		return nil
	}
	for _, l := range f.leases {
		if l.Fence == fence {
			return nil
		}
	}
	return fmt.Errorf("fence %d: %w", fence, storage.ErrFenced)
}

// AcquireShard implements storage.Runs.
func (s *Store) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	op := fmt.Sprintf("lease shard %d", shard)
	var lease storage.Lease
	err := s.do(ctx, op, func() error {
		if shard < 0 || shard >= s.shards {
			return fmt.Errorf("there are %d shards", s.shards)
		}
		s.fences.mu.Lock()
		defer s.fences.mu.Unlock()
		now := s.clk.Now()
		if l := s.fences.leases[shard]; l.Owner != "" && l.Owner != owner && l.ExpiresMs > now.UnixMilli() {
			return fmt.Errorf("%w: %s, until %s", storage.ErrConflict, l.Owner,
				time.UnixMilli(l.ExpiresMs).UTC().Format(time.RFC3339))
		}
		fence := max(s.fences.last+1, storage.Fence(now.UnixMicro()))
		if err := s.putCounter(metaFence, int64(fence)); err != nil {
			return err
		}
		lease = storage.Lease{Shard: shard, Owner: owner, Fence: fence, ExpiresMs: now.Add(ttl).UnixMilli()}
		s.fences.last = fence
		s.fences.leases[shard] = lease
		return nil
	})
	if err != nil {
		return storage.Lease{}, err
	}
	return lease, nil
}

// RenewShard implements storage.Runs.
func (s *Store) RenewShard(ctx context.Context, l storage.Lease, ttl time.Duration) error {
	return s.do(ctx, fmt.Sprintf("renew shard %d", l.Shard), func() error {
		s.fences.mu.Lock()
		defer s.fences.mu.Unlock()
		now := s.clk.Now()
		held, ok := s.fences.leases[l.Shard]
		if !ok || held.Owner != l.Owner || held.Fence != l.Fence || held.ExpiresMs <= now.UnixMilli() {
			return storage.ErrConflict
		}
		held.ExpiresMs = now.Add(ttl).UnixMilli()
		s.fences.leases[l.Shard] = held
		return nil
	})
}

// ReleaseShard implements storage.Runs.
func (s *Store) ReleaseShard(ctx context.Context, shard int, owner string) error {
	return s.do(ctx, "release shard", func() error {
		s.fences.mu.Lock()
		defer s.fences.mu.Unlock()
		if l := s.fences.leases[shard]; l.Owner == owner {
			l.Owner = ""
			s.fences.leases[shard] = l
		}
		return nil
	})
}

// BeginSlice implements storage.Runs.
func (s *Store) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	return s.do(ctx, "begin slice", func() error {
		s.begunMu.Lock()
		defer s.begunMu.Unlock()
		v, err := s.get(begunKey(k.Bucket))
		if err != nil {
			return err
		}
		newest, ok, err := parseBegun(v)
		if err != nil {
			return err
		}
		batch := s.db.NewBatch()
		err = batch.Set(sliceKey(k, sliceBegun), nil, nil)
		if err == nil && (!ok || newest < k.StartMs) {
			err = batch.Set(begunKey(k.Bucket), appendInt(nil, k.StartMs), nil)
		}
		if err == nil {
			err = batch.Commit(lsm.NoSync)
		}
		return closed(batch, err)
	})
}

// CompleteSlice implements storage.Runs.
func (s *Store) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	return s.do(ctx, "complete slice", func() error {
		return s.db.Set(sliceKey(k, sliceComplete), nil, lsm.NoSync)
	})
}

// rollupBatchBytes bounds a part of WriteRollups, and so its memory.
const rollupBatchBytes = 1 << 20

// WriteRollups implements storage.Runs, in parts of 1 MiB.
func (s *Store) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	const op = "write roll-ups"
	if err := s.checkLevel(level); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	periodMs := s.periodMs(level)
	var key, value []byte
	for more := true; more; more = len(rows) > 0 { // once even without rows: the fence is still checked
		if err := s.disk.admit(rollupBatchBytes); err != nil {
			return fmt.Errorf("%s: %w", op, err)
		}
		batch := s.db.NewBatch()
		n := 0
		for ; n < len(rows) && batch.Len() < rollupBatchBytes; n++ {
			key = appendRollupKey(key[:0], level, periodMs, rows[n].Schedule, rows[n].TimeMs)
			value = appendRollup(value[:0], &rows[n])
			if err := batch.Set(key, value, nil); err != nil {
				return convert(op, closed(batch, err))
			}
		}
		if err := s.commit(ctx, op, f, batch); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (s *Store) checkLevel(level metric.Bucket) error {
	if level <= metric.Raw || level > s.ladder.Top() {
		return fmt.Errorf("bucket %d is not a roll-up of %s", level, s.ladder)
	}
	return nil
}

// periodMs returns the length of a roll-up table's partition, in ms.
func (s *Store) periodMs(level metric.Bucket) int64 {
	return periodRows * s.ladder.WidthMs(level)
}

// DeleteMarks implements storage.Runs.
func (s *Store) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	const op = "delete marks"
	batch := s.db.NewBatch()
	partition := indexPartitionKey(p)
	for i := range marks {
		if err := batch.Delete(indexKey(partition, &marks[i]), nil); err != nil {
			return convert(op, closed(batch, err))
		}
	}
	return s.commit(ctx, op, f, batch)
}

// flushPacked is how many raw chunks are replaced before the memtable is flushed: there the keys of those that are gone stay in the
// way of every read. A compaction drops them.
const flushPacked = 16 << 10

// PackRaw implements storage.Runs, as one batch. It deletes key by key for the same reason as DeleteCacheBlock.
func (s *Store) PackRaw(ctx context.Context, f storage.Fence, packed storage.RawChunk, replaced []blocks.ID) error {
	const op = "pack raw chunks"
	if err := s.disk.admit(len(packed.Data) + rowOverhead*(1+len(replaced))); err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	batch := s.db.NewBatch()
	old := packed
	for _, old.ID = range replaced {
		if err := batch.Delete(rawKey(&old), nil); err != nil {
			return convert(op, closed(batch, err))
		}
	}
	if err := batch.Set(rawKey(&packed), packed.Data, nil); err != nil {
		return convert(op, closed(batch, err))
	}
	if err := s.commit(ctx, op, f, batch); err != nil || s.packed.Add(int64(len(replaced))) < flushPacked {
		return err
	}
	s.packed.Store(0)
	_, err := s.db.AsyncFlush()
	return convert(op, err)
}

// DeleteCacheBlock implements storage.Runs. It deletes the block's keys one by one. A range
// tombstone would be shorter, but after each one Pebble rebuilds all range tombstones of a memtable
// for the next reader: with 7,800 blocks a slice, reading a block took 280 µs instead of 35 µs.
// Only where a table is damaged, and the keys cannot be listed, DeleteCacheBlock takes a range tombstone. It also deletes chunks written since the keys were read. That loses no
// sample: the marks of such a chunk lead a run to the table below.
func (s *Store) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	const op = "delete cache block"
	if err := s.begin(ctx, op); err != nil {
		return err
	}
	batch := s.db.NewBatch()
	block := cacheBlockKey(k)
	err := s.eachKey(block, after(block), func(key []byte) error { return batch.Delete(key, nil) })
	if lsm.IsCorruptionError(err) {
		err = batch.DeleteRange(block, after(block), nil)
	}
	if err != nil {
		return convert(op, closed(batch, err))
	}
	return s.commit(ctx, op, f, batch)
}
