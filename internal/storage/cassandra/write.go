package cassandra

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/gocql/gocql"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

const (
	cqlOpenSlice  = `INSERT INTO slices (bucket, time_slice) VALUES (?, ?) USING TTL ?`
	cqlWriteMark  = `INSERT INTO metrics_cache_index (bucket, time_slice, partition, start_schedule_id, time, mark_id, kind, chunks, schedule_ids, due, attempt, last_error) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) USING TTL ?`
	cqlWriteRaw   = `INSERT INTO raw_metrics (start_schedule_id, day, time_slice, chunk_id, data) VALUES (?, ?, ?, ?, ?) USING TTL ?`
	cqlWriteCache = `INSERT INTO metrics_cache (bucket, time_slice, start_schedule_id, chunk_id, data) VALUES (?, ?, ?, ?, ?) USING TTL ?`
)

const day = 24 * time.Hour

// TTLs against litter. Each ends long after anybody looks at the row, and nothing relies on them.
const (
	// keepBeyond is how much longer an open slice is kept than there is work to do for it. Its
	// marks are kept for twice that, so that an open slice never looks as if it had no work. The
	// record of a complete slice is kept as long: it outlives every row that opened the slice, so
	// the slice never looks open again.
	keepBeyond = 30 * day
	// keepCache is short: if the cache is gone, the table below is read.
	keepCache = 7 * day
)

// workTTL is the TTL, in seconds, of rows that a run of a slice of the bucket needs: as long as there
// is work for the slice, plus beyond. There is work until the slice's input has expired, and then
// until the rows that must say so have expired. 0 means for ever.
func (s *Store) workTTL(b metric.Bucket, beyond time.Duration) int {
	retention := s.policy().Retention
	input, rows := retention.Duration(b), retention.Duration(b+1)
	if input == 0 || rows == 0 {
		return 0
	}
	return s.litterTTL(b, max(input, rows)+beyond)
}

// litterTTL is keep, in seconds, plus the longest time that a row of the bucket may have to wait.
func (s *Store) litterTTL(b metric.Bucket, keep time.Duration) int {
	return ttl(keep + 4*time.Duration(s.ladder.WidthMs(b+1))*time.Millisecond)
}

// maxBatchBytes bounds a batch. Servers warn of large batches, and refuse them, only if they span
// partitions, which none here does (CASSANDRA-10876). Roll-ups written in batches of 16 KiB take
// the servers about two thirds of the work of 4 KiB batches. Larger batches save no more.
const maxBatchBytes = 16 << 10

// Write implements storage.Store. Each kind of row is durable before the next kind is sent.
func (s *Store) Write(ctx context.Context, b *storage.Batch) error {
	const op = "write batch"
	if changed, err := s.refreshEpochs(ctx); err != nil {
		return named(op, err)
	} else if changed {
		return fmt.Errorf("%s: %w until its blocks are regrouped: the block size has changed", op, storage.ErrUnavailable)
	}
	tsUs, err := s.timestamp(ctx, b.Fence)
	if err != nil {
		return named(op, err)
	}
	parts := partsOf(b)
	if err := parts.each(ctx, len(b.Open), func(i int) []int { return parts.in(b.Open[i]) }, func(ctx context.Context, i int) error {
		k := b.Open[i]
		return s.session.exec(ctx, tsUs, stmt(cqlOpenSlice, int(k.Bucket), k.StartMs, s.workTTL(k.Bucket, keepBeyond)))
	}); err != nil {
		return named("open slices", err)
	}
	marks := s.markBatches(b.Marks, parts.ofMark)
	if err := parts.each(ctx, len(marks), func(i int) []int { return marks[i].parts }, func(ctx context.Context, i int) error {
		return s.session.exec(ctx, tsUs, marks[i].stmts...)
	}); err != nil {
		return named("write marks", err)
	}
	// Raw and cache chunks are sent together: a cache that has more than the table is not trusted
	// until its writer's mark says that both are whole.
	raw := len(b.Raw)
	keep := ttl(s.policy().Retention.Duration(metric.Raw))
	if err := parts.each(ctx, raw+len(b.Cache), func(i int) []int { return parts.ofChunk[i : i+1] }, func(ctx context.Context, i int) error {
		if i < raw {
			c := &b.Raw[i]
			return s.session.exec(ctx, tsUs, stmt(cqlWriteRaw, int64(c.Group), metric.AlignDown(c.SliceMs, dayMs), c.SliceMs,
				gocql.UUID(c.ID), c.Data, keep))
		}
		c := &b.Cache[i-raw]
		return s.session.exec(ctx, tsUs, stmt(cqlWriteCache, int(c.Bucket), c.CacheKey.StartMs, int64(c.Start),
			gocql.UUID(c.ID), c.Data, s.litterTTL(c.Bucket, keepCache)))
	}); err != nil {
		return named(op, err)
	}
	return named(op, parts.outcome())
}

// markBatch is marks of one partition, and the parts that they belong to.
type markBatch struct {
	stmts []statement
	parts []int
}

func (s *Store) markBatches(marks []storage.PlacedMark, ofMark []int) []markBatch {
	byPartition := make(map[storage.IndexPartition]markBatch)
	for i := range marks {
		m := &marks[i]
		one := byPartition[m.Partition]
		one.stmts = append(one.stmts, s.markStatement(m))
		if len(ofMark) > 0 {
			one.parts = append(one.parts, ofMark[i])
		}
		byPartition[m.Partition] = one
	}
	var out []markBatch
	for _, one := range byPartition {
		for _, stmts := range cut(one.stmts) {
			n := min(len(stmts), len(one.parts))
			out = append(out, markBatch{stmts, one.parts[:n]})
			one.parts = one.parts[n:]
		}
	}
	return out
}

func (s *Store) markStatement(m *storage.PlacedMark) statement {
	ids := []byte{}
	if len(m.Schedules) > 0 {
		ids = blocks.AppendIDs(nil, m.Schedules)
	}
	p := m.Partition
	return stmt(cqlWriteMark, int(p.Bucket), p.StartMs, p.Shard, int64(m.Start), m.TimeMs, gocql.UUID(m.ID),
		int(m.Kind), m.Chunks, ids, m.DueMs, m.Attempt, m.LastError, s.workTTL(p.Bucket, 2*keepBeyond))
}

// cut splits the statements of one partition into batches of maxBatchBytes.
func cut(stmts []statement) [][]statement {
	var out [][]statement
	size := 0
	for i := range stmts {
		n := sizeOf(&stmts[i])
		if len(out) == 0 || size+n > maxBatchBytes {
			out, size = append(out, nil), 0
		}
		last := len(out) - 1
		out[last] = append(out[last], stmts[i])
		size += n
	}
	return out
}

// sizeOf is roughly what a statement adds to a batch, as servers count it: each cell with its
// value, timestamp and TTL.
func sizeOf(st *statement) int {
	n := 0
	for _, a := range st.args {
		n += 20
		switch v := a.(type) {
		case []byte:
			n += len(v)
		case string:
			n += len(v)
		case map[string]string:
			for name, value := range v {
				n += 8 + len(name) + len(value)
			}
		}
	}
	return n
}

// inBatches writes the statements of one partition, one batch after the other.
func (s *Store) inBatches(ctx context.Context, tsUs int64, stmts []statement) error {
	for b := range slices.Values(cut(stmts)) {
		if err := s.session.exec(ctx, tsUs, b...); err != nil {
			return err
		}
	}
	return nil
}
