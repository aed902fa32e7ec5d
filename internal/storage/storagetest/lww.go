package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// LWWModel is a session on a model in which the last write wins by its timestamp, as on Cassandra.
// A write with a stale fence is not refused, but loses against what has a higher timestamp. A
// delete leaves a tombstone. The delete of a partition hides everything in it with a timestamp that
// is no higher. Several sessions on one place stand for several processes; each has its own clock
// and its own ascending timestamps.
//
// It does not model replicas, rows that expire by their TTL, or pages. Ids, series and records are
// the Model's.
type LWWModel struct {
	*Model
	rows *lwwRows
	clk  clock.Clock
	last atomic.Int64
	shut atomic.Bool

	// Between, if set, is called before each part of a Write: the slices, the marks, the chunks.
	// Others then see the Write in part. It is also called when PackRaw has listed the chunks.
	Between func(part string) error
}

var _ storage.Store = (*LWWModel)(nil)

// lwwRows are the tables that have timestamps. Model.mu guards them.
type lwwRows struct {
	marks   map[storage.IndexPartition]map[modelMark]*lwwMark
	cache   map[storage.CacheKey]*lwwPartition
	rollups map[modelRow]*lwwRollup
	rawUs   map[modelRaw]int64 // timestamps of the Model's raw chunks
	deleted []lwwDeleted
	fenced  time.Time // when the newest fence was handed out, by the place's clock
}

// stamp decides between two writes of a cell.
type stamp struct {
	us int64
	// second is the time of the write, for rows with a TTL: of two writes with the same timestamp,
	// the one that expires later is kept (CASSANDRA-14592).
	second int64
}

func (s stamp) compare(o stamp) int {
	return cmp.Or(cmp.Compare(s.us, o.us), cmp.Compare(s.second, o.second))
}

// lwwMark and its like exist if they were written after they were deleted.
type lwwMark struct {
	stamp
	deletedUs int64
	mark      storage.Mark
}

type lwwPartition struct {
	deletedUs int64
	chunks    map[blocks.ID]*lwwChunk
}

type lwwChunk struct {
	stamp
	data []byte
}

// lwwDeleted is a tombstone for the chunks of a group and slice with ids from first to last.
type lwwDeleted struct {
	group       metric.ScheduleID
	sliceMs     int64
	first, last blocks.ID
	us          int64
}

func (d *lwwDeleted) hides(k modelRaw, us int64) bool {
	return d.group == k.group && d.sliceMs == k.sliceMs && d.first.Compare(k.id) <= 0 && k.id.Compare(d.last) <= 0 && us <= d.us
}

type lwwRollup struct {
	stamp
	row metric.RollupRow
}

// NewLWWModel makes an empty place, and the first session on it.
func NewLWWModel(settings storage.Settings, retention storage.Retention, clk clock.Clock) *LWWModel {
	return &LWWModel{Model: NewModel(settings, retention, clk), clk: clk, rows: &lwwRows{
		marks:   map[storage.IndexPartition]map[modelMark]*lwwMark{},
		cache:   map[storage.CacheKey]*lwwPartition{},
		rollups: map[modelRow]*lwwRollup{},
		rawUs:   map[modelRaw]int64{},
	}}
}

// Session returns another process on the same place. Leases end by the clock of the first.
func (m *LWWModel) Session(clk clock.Clock) *LWWModel {
	s := &LWWModel{Model: m.Model, rows: m.rows, clk: clk}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.observe(m.fence)
	return s
}

// openLWWModel is the OpenFunc of the model.
func openLWWModel(_ *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
	m := NewLWWModel(s, r, clk)
	return m, func() storage.Store {
		_ = m.Close()
		m = m.Session(clk)
		return m
	}
}

// Close ends the session; the place stays.
func (m *LWWModel) Close() error {
	m.shut.Store(true)
	return nil
}

func (m *LWWModel) begin(ctx context.Context) error {
	if m.shut.Load() {
		return fmt.Errorf("%w: the store is closed", storage.ErrUnavailable)
	}
	return m.Model.begin(ctx)
}

// Timestamps are as in package cassandra: those of ingest ascend, and a run's is its fence. But nobody compares
// clocks, so a clock that is ahead for a moment leaves timestamps ahead.
func (m *LWWModel) next() int64 {
	for {
		last := m.last.Load()
		us := max(last+1, m.clk.Now().UnixMicro())
		if m.last.CompareAndSwap(last, us) {
			return us
		}
	}
}

func (m *LWWModel) stamp(f storage.Fence) stamp {
	s := stamp{us: int64(f), second: m.clk.Now().Unix()}
	if f == 0 {
		s.us = m.next()
	}
	return s
}

func (m *LWWModel) observe(f storage.Fence) {
	for last := m.last.Load(); last < int64(f) && !m.last.CompareAndSwap(last, int64(f)); {
		last = m.last.Load()
	}
}

// AcquireShard implements storage.Runs.
func (m *LWWModel) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	if err := m.begin(ctx); err != nil {
		return storage.Lease{}, err
	}
	m.observe(m.fence)
	if !m.rows.fenced.IsZero() { // fences ahead of the clock advance at half its pace
		m.observe(m.fence + storage.Fence(max(0, m.clk.Now().Sub(m.rows.fenced).Microseconds())/2))
	}
	// The fence also lies above what this process has written.
	m.fence = max(m.fence, storage.Fence(m.last.Load()))
	m.mu.Unlock()
	l, err := m.Model.AcquireShard(ctx, shard, owner, ttl)
	if err == nil {
		m.observe(l.Fence)
		m.mu.Lock()
		m.rows.fenced = m.Model.clk.Now()
		m.mu.Unlock()
	}
	return l, err
}

// Write implements storage.Store.
func (m *LWWModel) Write(ctx context.Context, b *storage.Batch) error {
	at := m.stamp(b.Fence)
	for _, part := range []struct {
		name  string
		empty bool
		write func()
	}{
		{"slices", len(b.Open) == 0, func() { m.open(b.Open) }},
		{"marks", len(b.Marks) == 0, func() { m.writeMarks(b.Marks, at) }},
		{"chunks", len(b.Raw)+len(b.Cache) == 0, func() { m.writeChunks(b, at) }},
	} {
		if part.empty {
			continue
		}
		if m.Between != nil {
			if err := m.Between(part.name); err != nil {
				return err
			}
		}
		if err := m.begin(ctx); err != nil {
			return err
		}
		part.write()
		m.mu.Unlock()
	}
	return nil
}

func (m *LWWModel) open(keys []storage.SliceKey) {
	for _, k := range keys {
		m.setSlice(k, func(*storage.SliceState) {})
	}
}

func (m *LWWModel) mark(p storage.IndexPartition, k storage.Mark) *lwwMark {
	if m.rows.marks[p] == nil {
		m.rows.marks[p] = map[modelMark]*lwwMark{}
	}
	key := modelMark{k.Start, k.TimeMs, k.ID}
	if m.rows.marks[p][key] == nil {
		m.rows.marks[p][key] = &lwwMark{stamp: stamp{us: math.MinInt64}, deletedUs: math.MinInt64}
	}
	return m.rows.marks[p][key]
}

func (m *LWWModel) writeMarks(marks []storage.PlacedMark, at stamp) {
	for _, pm := range marks {
		r, mark := m.mark(pm.Partition, pm.Mark), cloneMark(pm.Mark)
		switch c := at.compare(r.stamp); {
		case c > 0:
			r.stamp, r.mark = at, mark
		case c == 0:
			r.mark.Kind = max(r.mark.Kind, mark.Kind)
			r.mark.Chunks = max(r.mark.Chunks, mark.Chunks)
			r.mark.DueMs = max(r.mark.DueMs, mark.DueMs)
			r.mark.Attempt = max(r.mark.Attempt, mark.Attempt)
			r.mark.LastError = max(r.mark.LastError, mark.LastError)
			if bytes.Compare(blocks.AppendIDs(nil, mark.Schedules), blocks.AppendIDs(nil, r.mark.Schedules)) > 0 {
				r.mark.Schedules = mark.Schedules
			}
		}
	}
}

func (m *LWWModel) cachePartition(k storage.CacheKey) *lwwPartition {
	p := m.rows.cache[k]
	if p == nil {
		p = &lwwPartition{deletedUs: math.MinInt64, chunks: map[blocks.ID]*lwwChunk{}}
		m.rows.cache[k] = p
	}
	return p
}

func (m *LWWModel) writeChunks(b *storage.Batch, at stamp) {
	for _, c := range b.Raw {
		m.writeRaw(&c, at)
	}
	for _, c := range b.Cache {
		p := m.cachePartition(c.CacheKey)
		old := p.chunks[c.ID]
		if old == nil || at.compare(old.stamp) > 0 || at == old.stamp && bytes.Compare(c.Data, old.data) > 0 {
			p.chunks[c.ID] = &lwwChunk{at, bytes.Clone(c.Data)}
		}
	}
}

// Marks implements storage.Runs.
func (m *LWWModel) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, _ int) iter.Seq2[storage.Mark, error] {
	return modelSeq(ctx, m.Model, func() []storage.Mark {
		var marks []storage.Mark
		for _, r := range m.rows.marks[p] {
			if r.us > r.deletedUs {
				marks = append(marks, r.mark)
			}
		}
		return marksFrom(marks, from)
	})
}

// DeleteMarks implements storage.Runs.
func (m *LWWModel) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	at := m.stamp(f)
	for _, k := range marks {
		r := m.mark(p, k)
		r.deletedUs = max(r.deletedUs, at.us)
	}
	return nil
}

// CacheBlock implements storage.Runs.
func (m *LWWModel) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var out []storage.Chunk
	if p := m.rows.cache[k]; p != nil {
		size := 0
		for id, c := range p.chunks {
			if c.us > p.deletedUs {
				if size += len(c.data); size > storage.MaxCacheBytes {
					return nil, storage.ErrTooLarge
				}
				out = append(out, storage.Chunk{ID: id, Data: bytes.Clone(c.data)})
			}
		}
	}
	slices.SortFunc(out, func(a, b storage.Chunk) int { return a.ID.Compare(b.ID) })
	return out, nil
}

// writeRaw writes a chunk, which is never written again with other bytes.
func (m *LWWModel) writeRaw(c *storage.RawChunk, at stamp) {
	k := modelRaw{c.Group, c.SliceMs, c.ID}
	if slices.ContainsFunc(m.rows.deleted, func(d lwwDeleted) bool { return d.hides(k, at.us) }) {
		return
	}
	m.raw[k], m.rows.rawUs[k] = bytes.Clone(c.Data), max(m.rows.rawUs[k], at.us)
}

// PackRaw implements storage.Runs. It lists the chunks in a step of its own, and deletes ranges of ids.
func (m *LWWModel) PackRaw(ctx context.Context, f storage.Fence, packed storage.RawChunk, replaced []blocks.ID) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	var listed []blocks.ID
	for k := range m.raw {
		if k.group == packed.Group && k.sliceMs == packed.SliceMs {
			listed = append(listed, k.id)
		}
	}
	m.mu.Unlock()
	slices.SortFunc(listed, blocks.ID.Compare)
	if m.Between != nil {
		if err := m.Between("pack"); err != nil {
			return err
		}
	}
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	at := m.stamp(f)
	for _, r := range blocks.ReplacedRanges(listed, func(id blocks.ID) bool { return slices.Contains(replaced, id) }) {
		d := lwwDeleted{packed.Group, packed.SliceMs, r[0], r[1], at.us}
		m.rows.deleted = append(m.rows.deleted, d)
		maps.DeleteFunc(m.raw, func(k modelRaw, _ []byte) bool { return d.hides(k, m.rows.rawUs[k]) })
	}
	m.writeRaw(&packed, at)
	return nil
}

// DeleteCacheBlock implements storage.Runs.
func (m *LWWModel) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	p := m.cachePartition(k)
	p.deletedUs = max(p.deletedUs, m.stamp(f).us)
	return nil
}

// WriteRollups implements storage.Runs.
func (m *LWWModel) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if level <= metric.Raw || level > m.settings.Ladder.Top() {
		return fmt.Errorf("bucket %d is not a roll-up of %s", level, m.settings.Ladder)
	}
	at := m.stamp(f)
	if m.settings.Policy.Retention.Duration(level) == 0 {
		at.second = 0 // no TTL
	}
	for _, row := range rows {
		k := modelRow{level, row.Schedule, row.TimeMs}
		switch old := m.rows.rollups[k]; {
		case old == nil || at.compare(old.stamp) > 0:
			m.rows.rollups[k] = &lwwRollup{at, cloneRow(row)}
		case at == old.stamp:
			old.row = greater(old.row, cloneRow(row))
		}
	}
	return nil
}

// greater merges two writes of a row with the same timestamp: in each cell the greater bytes win.
func greater(a, b metric.RollupRow) metric.RollupRow {
	if b.Count > a.Count {
		a.Count = b.Count
	}
	for _, x := range []struct {
		to   *float64
		from float64
	}{{&a.Sum, b.Sum}, {&a.Min, b.Min}, {&a.Max, b.Max}, {&a.First, b.First}, {&a.Last, b.Last}, {&a.Increase, b.Increase}} {
		if math.Float64bits(x.from) > math.Float64bits(*x.to) {
			*x.to = x.from
		}
	}
	if bytes.Compare(b.Sketch, a.Sketch) > 0 {
		a.Sketch = b.Sketch
	}
	a.FirstMs, a.LastMs = max(a.FirstMs, b.FirstMs), max(a.LastMs, b.LastMs)
	a.Partial, a.NonFinite = a.Partial || b.Partial, a.NonFinite || b.NonFinite
	return a
}

// Rollups implements storage.Reader.
func (m *LWWModel) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return modelSeq(ctx, m.Model, func() []metric.RollupRow {
		var out []metric.RollupRow
		for k, r := range m.rows.rollups {
			if k.level == level && ids.Contains(k.schedule) && fromMs <= k.timeMs && k.timeMs < toMs {
				out = append(out, cloneRow(r.row))
			}
		}
		slices.SortFunc(out, compareRows)
		return out
	})
}

// NewestID implements storage.Store. It is zero: only the writers' clocks order what they write.
func (m *LWWModel) NewestID() blocks.ID { return blocks.ID{} }

// WholeFrom implements storage.Store. Rows would expire by the TTL that they were written with.
func (m *LWWModel) WholeFrom(b metric.Bucket, nowMs int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.policies.WholeFrom(b, nowMs)
}

// Expire implements storage.Store. Rows would expire by their TTL.
func (m *LWWModel) Expire(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

// Fingerprint differs between states that a run and ingest can tell apart, now or after further
// writes. Equal states have the same fingerprint. It leaves out ids, series and what only operators
// see.
func (m *Model) Fingerprint() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.fingerprint()
}

func (m *Model) fingerprint() uint64 {
	var f fingerprint
	f.add("fence", m.fence)
	for k, l := range m.leases {
		f.add("lease", k, l.Owner, l.Fence)
	}
	for k, v := range m.live {
		f.add("live", k, v)
	}
	for _, state := range m.slices {
		f.add("slice", state)
	}
	for b, startMs := range m.begun {
		f.add("begun", b, startMs)
	}
	for p, marks := range m.marks {
		for _, v := range marks {
			f.add("mark", p, v)
		}
	}
	for k, v := range m.raw {
		f.add("raw", k, len(v))
	}
	for k, chunks := range m.cache {
		for id, v := range chunks {
			f.add("cache", k, id, v)
		}
	}
	for k, v := range m.rollups {
		f.add("row", k, v)
	}
	return f.sum
}

// Fingerprint is the Model's, plus the timestamps of rows and tombstones.
func (m *LWWModel) Fingerprint() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := fingerprint{sum: m.fingerprint()}
	f.add("fenced", m.rows.fenced)
	for _, d := range m.rows.deleted {
		f.add("deleted", d)
	}
	for p, marks := range m.rows.marks {
		for k, r := range marks {
			f.add("mark", p, k, r.stamp, r.deletedUs, r.mark)
		}
	}
	for k, p := range m.rows.cache {
		f.add("partition", k, p.deletedUs)
		for id, c := range p.chunks {
			f.add("chunk", k, id, c.stamp, c.data)
		}
	}
	for k, r := range m.rows.rollups {
		f.add("row", k, r.stamp, r.row)
	}
	return f.sum
}

// fingerprint adds up hashes, so that the order of a map does not matter.
type fingerprint struct{ sum uint64 }

func (f *fingerprint) add(parts ...any) {
	f.sum += hashOf(parts...)
}

func hashOf(parts ...any) uint64 {
	var buf [256]byte
	return xxhash.Sum64(fmt.Append(buf[:0], parts...))
}
