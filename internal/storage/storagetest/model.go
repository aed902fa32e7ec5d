// Package storagetest has what every test of a store needs: a model that is small enough to be
// obviously right, a conformance suite, a seeded history that compares two stores, and a wrapper
// that fails, blocks or crashes at a chosen step. Only tests import it.
package storagetest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// The model expires what the embedded store expires, so that histories with Expire can be compared:
// whole days of raw, whole periods of modelPeriodRows rows of a roll-up, and completed slices
// older than modelKeepMs.
const (
	modelDayMs      = int64(24 * time.Hour / time.Millisecond)
	modelPeriodRows = 128
	modelKeepMs     = 30 * modelDayMs
)

// Model is the contract in maps and one mutex. It reads slowly. It copies what it is given and what
// it returns.
//
// Like the embedded store it belongs to one process: Reopen voids every lease.
type Model struct {
	clk clock.Clock

	mu       sync.Mutex
	closed   bool
	settings storage.Settings
	policies storage.Policies
	expired  map[metric.Bucket]int64

	nextID  metric.ScheduleID
	series  map[string]map[string]metric.ScheduleID // source, series key
	byID    map[metric.ScheduleID]metric.Labels
	fence   storage.Fence
	leases  map[int]storage.Lease
	live    map[int]storage.Fence // newest fence of each shard since the last Reopen
	slices  map[storage.SliceKey]storage.SliceState
	begun   map[metric.Bucket]int64 // the newest slice whose run has begun
	marks   map[storage.IndexPartition]map[modelMark]storage.Mark
	raw     map[modelRaw][]byte
	cache   map[storage.CacheKey]map[blocks.ID][]byte
	rollups map[modelRow]metric.RollupRow
	docs    map[storage.DocumentKey]storage.Document
	items   map[storage.ItemKey]modelItem
}

type modelMark struct {
	start  metric.ScheduleID
	timeMs int64
	id     blocks.ID
}

type modelRaw struct {
	group   metric.ScheduleID
	sliceMs int64
	id      blocks.ID
}

type modelRow struct {
	level    metric.Bucket
	schedule metric.ScheduleID
	timeMs   int64
}

var _ storage.Store = (*Model)(nil)

// NewModel makes an empty model with the given settings. retention becomes that of the settings'
// policy.
func NewModel(settings storage.Settings, retention storage.Retention, clk clock.Clock) *Model {
	settings.Epochs = slices.Clone(settings.Epochs)
	settings.Policy.Retention = slices.Clone(retention)
	return &Model{
		clk:      clk,
		settings: settings,
		policies: storage.Policies(nil).Set(settings.Policy, 0),
		expired:  map[metric.Bucket]int64{},
		series:   map[string]map[string]metric.ScheduleID{},
		byID:     map[metric.ScheduleID]metric.Labels{},
		leases:   map[int]storage.Lease{},
		live:     map[int]storage.Fence{},
		slices:   map[storage.SliceKey]storage.SliceState{},
		begun:    map[metric.Bucket]int64{},
		marks:    map[storage.IndexPartition]map[modelMark]storage.Mark{},
		raw:      map[modelRaw][]byte{},
		cache:    map[storage.CacheKey]map[blocks.ID][]byte{},
		rollups:  map[modelRow]metric.RollupRow{},
		docs:     map[storage.DocumentKey]storage.Document{},
		items:    map[storage.ItemKey]modelItem{},
	}
}

// OpenModel is the OpenFunc of the model.
func OpenModel(_ *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
	m := NewModel(s, r, clk)
	return m, func() storage.Store { return m.Reopen() }
}

// Close makes every operation fail with storage.ErrUnavailable until Reopen.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return nil
}

// Reopen simulates a restart of the process. The model keeps its data, but all leases are void and
// all earlier fences are superseded.
func (m *Model) Reopen() *Model {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = false
	clear(m.leases)
	clear(m.live)
	return m
}

// begin locks the model. If it returns no error, the caller unlocks the model.
func (m *Model) begin(ctx context.Context) error {
	if ctx.Err() != nil {
		return ContextError(ctx)
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return fmt.Errorf("%w: the store is closed", storage.ErrUnavailable)
	}
	return nil
}

// ContextError is the error of an operation whose context is done. It always wraps the context's
// own error, and after a deadline also ErrTimeout.
func ContextError(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%w: %w", storage.ErrTimeout, context.Cause(ctx))
	}
	return context.Cause(ctx)
}

// fenced returns an error if a write with this fence comes too late: the fence is not above the
// newest one handed out, and not the newest of any shard.
func (m *Model) fenced(f storage.Fence) error {
	if f == 0 || f > m.fence {
		return nil
	}
	for _, live := range m.live {
		if live == f {
			return nil
		}
	}
	return fmt.Errorf("fence %d: %w", f, storage.ErrFenced)
}

// Write implements storage.Store.
func (m *Model) Write(ctx context.Context, b *storage.Batch) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := m.fenced(b.Fence); err != nil {
		return err
	}
	for _, k := range b.Open {
		m.setSlice(k, func(*storage.SliceState) {})
	}
	for _, pm := range b.Marks {
		p := m.marks[pm.Partition]
		if p == nil {
			p = map[modelMark]storage.Mark{}
			m.marks[pm.Partition] = p
		}
		p[modelMark{pm.Start, pm.TimeMs, pm.ID}] = cloneMark(pm.Mark)
	}
	for _, c := range b.Raw {
		m.raw[modelRaw{c.Group, c.SliceMs, c.ID}] = bytes.Clone(c.Data)
	}
	for _, c := range b.Cache {
		p := m.cache[c.CacheKey]
		if p == nil {
			p = map[blocks.ID][]byte{}
			m.cache[c.CacheKey] = p
		}
		p[c.ID] = bytes.Clone(c.Data)
	}
	return nil
}

// NewestID implements storage.Store.
func (m *Model) NewestID() blocks.ID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var newest blocks.ID
	for k := range m.raw {
		if k.id.Compare(newest) > 0 {
			newest = k.id
		}
	}
	return newest
}

// Settings implements storage.Store.
func (m *Model) Settings() storage.Settings {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.settings
	s.Epochs = slices.Clone(s.Epochs)
	return s
}

// AddEpoch implements storage.Store. Adding the last epoch once more changes nothing.
func (m *Model) AddEpoch(ctx context.Context, e blocks.Epoch) error {
	unused := storage.CheckUnused(ctx, m, m.settings.Ladder, e)
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if es := m.settings.Epochs; len(es) > 0 && es[len(es)-1] == e {
		return nil
	}
	es, err := m.settings.Epochs.Add(e)
	if errors.Is(err, blocks.ErrEpochTooSoon) {
		return fmt.Errorf("%w: %w", storage.ErrConflict, err)
	}
	if err != nil {
		return err
	}
	if unused != nil {
		return unused
	}
	m.settings.Epochs = es
	return nil
}

// Expire implements storage.Store.
func (m *Model) Expire(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	nowMs := clock.NowMs(m.clk)
	retention := m.settings.Policy.Retention
	if keep := retention.Duration(metric.Raw).Milliseconds(); keep > 0 {
		day := metric.AlignDown(nowMs-keep, modelDayMs)
		for m.settings.Ladder.SliceAt(metric.Raw, day-1).EndMs > nowMs-keep {
			day -= modelDayMs
		}
		for k := range m.raw {
			if k.sliceMs < day {
				delete(m.raw, k)
				m.expire(metric.Raw, m.settings.Ladder.SliceAt(metric.Raw, day-1).EndMs)
			}
		}
	}
	for k := range m.rollups {
		period := modelPeriodRows * m.settings.Ladder.WidthMs(k.level)
		if keep := retention.Duration(k.level).Milliseconds(); keep > 0 && metric.AlignDown(k.timeMs, period)+period <= nowMs-keep {
			delete(m.rollups, k)
			m.expire(k.level, metric.AlignDown(nowMs-keep, period))
		}
	}
	for k, state := range m.slices {
		if state.Complete && k.StartMs < nowMs-modelKeepMs {
			delete(m.slices, k)
		}
	}
	maps.DeleteFunc(m.items, func(_ storage.ItemKey, e modelItem) bool { return e.expired(nowMs) })
	return nil
}

func (m *Model) expire(b metric.Bucket, belowMs int64) {
	if before, ok := m.expired[b]; !ok || before < belowMs {
		m.expired[b] = belowMs
	}
}

// SetPolicy implements storage.Store.
func (m *Model) SetPolicy(ctx context.Context, p storage.Policy) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.policies = m.policies.Set(p, clock.NowMs(m.clk))
	m.settings.Policy = p
	return nil
}

// WholeFrom implements storage.Store.
func (m *Model) WholeFrom(b metric.Bucket, nowMs int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	whole := m.settings.Policy.Retention.From(b, nowMs)
	if below, ok := m.expired[b]; ok {
		whole = max(whole, below)
	}
	return whole
}

// Confirms implements storage.Store. There is nothing to compare the clock with.
func (m *Model) Confirms(context.Context, clock.Reading) error { return nil }

// CheckFit implements storage.Store.
func (m *Model) CheckFit(ctx context.Context) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	m.mu.Unlock()
	return nil
}

// LeaseIDs implements storage.Registry.
func (m *Model) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	if err := m.begin(ctx); err != nil {
		return blocks.Range{}, err
	}
	defer m.mu.Unlock()
	if n < 1 {
		return blocks.Range{}, fmt.Errorf("lease of %d ids: must be at least 1", n)
	}
	r := blocks.Range{Start: m.nextID, End: m.nextID + metric.ScheduleID(n)}
	m.nextID = r.End
	return r, nil
}

// LeasedIDs implements storage.Registry.
func (m *Model) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	if err := m.begin(ctx); err != nil {
		return blocks.Range{}, err
	}
	defer m.mu.Unlock()
	return blocks.Range{End: m.nextID}, nil
}

// ClaimSchedules implements storage.Registry.
func (m *Model) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	ids := make([]metric.ScheduleID, len(want))
	for i, w := range want {
		known := m.series[w.Source]
		if known == nil {
			known = map[string]metric.ScheduleID{}
			m.series[w.Source] = known
		}
		key := string(w.Labels.AppendKey(nil))
		id, ok := known[key]
		if !ok {
			id = w.ID
			known[key] = id
			m.byID[id] = slices.Clone(w.Labels)
		}
		ids[i] = id
	}
	return ids, nil
}

// SourceSchedules implements storage.Registry.
func (m *Model) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return modelSeq(ctx, m, func() []storage.Schedule {
		known := m.series[source]
		var out []storage.Schedule
		for _, key := range slices.Sorted(maps.Keys(known)) {
			out = append(out, m.schedule(known[key]))
		}
		return out
	})
}

// Schedules implements storage.Registry.
func (m *Model) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	return modelSeq(ctx, m, func() []storage.Schedule {
		var out []storage.Schedule
		for _, id := range slices.Sorted(maps.Keys(m.byID)) {
			if ids.Contains(id) {
				out = append(out, m.schedule(id))
			}
		}
		return out
	})
}

func (m *Model) schedule(id metric.ScheduleID) storage.Schedule {
	return storage.Schedule{ID: id, Labels: slices.Clone(m.byID[id])}
}

// AcquireShard implements storage.Runs.
func (m *Model) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	if err := m.begin(ctx); err != nil {
		return storage.Lease{}, err
	}
	defer m.mu.Unlock()
	if shard < 0 || shard >= m.settings.IndexPartitions {
		return storage.Lease{}, fmt.Errorf("shard %d: there are %d", shard, m.settings.IndexPartitions)
	}
	now := m.clk.Now()
	if l, ok := m.leases[shard]; ok && l.Owner != owner && l.ExpiresMs > now.UnixMilli() {
		return storage.Lease{}, fmt.Errorf("shard %d: %w: %s", shard, storage.ErrConflict, l.Owner)
	}
	m.fence = max(m.fence+1, storage.Fence(now.UnixMicro()))
	l := storage.Lease{Shard: shard, Owner: owner, Fence: m.fence, ExpiresMs: now.Add(ttl).UnixMilli()}
	m.leases[shard] = l
	m.live[shard] = l.Fence
	return l, nil
}

// RenewShard implements storage.Runs.
func (m *Model) RenewShard(ctx context.Context, l storage.Lease, ttl time.Duration) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	now := m.clk.Now()
	held, ok := m.leases[l.Shard]
	if !ok || held.Owner != l.Owner || held.Fence != l.Fence || held.ExpiresMs <= now.UnixMilli() {
		return fmt.Errorf("shard %d: %w", l.Shard, storage.ErrConflict)
	}
	held.ExpiresMs = now.Add(ttl).UnixMilli()
	m.leases[l.Shard] = held
	return nil
}

// ReleaseShard implements storage.Runs.
func (m *Model) ReleaseShard(ctx context.Context, shard int, owner string) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if m.leases[shard].Owner == owner {
		delete(m.leases, shard)
	}
	return nil
}

// Leases implements storage.Runs.
func (m *Model) Leases(ctx context.Context) ([]storage.Lease, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	out := slices.Collect(maps.Values(m.leases))
	slices.SortFunc(out, func(a, b storage.Lease) int { return cmp.Compare(a.Shard, b.Shard) })
	return out, nil
}

// Slices implements storage.Runs.
func (m *Model) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var out []storage.SliceState
	for k, state := range m.slices {
		if k.Bucket == b && fromMs <= k.StartMs && k.StartMs < toMs {
			out = append(out, state)
		}
	}
	slices.SortFunc(out, func(a, b storage.SliceState) int { return cmp.Compare(a.StartMs, b.StartMs) })
	return out, nil
}

// BeginSlice implements storage.Runs.
func (m *Model) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.setSlice(k, func(s *storage.SliceState) { s.Begun = true })
	if newest, ok := m.begun[k.Bucket]; !ok || newest < k.StartMs {
		m.begun[k.Bucket] = k.StartMs
	}
	return nil
}

// NewestBegun implements storage.Runs.
func (m *Model) NewestBegun(ctx context.Context, b metric.Bucket) (startMs int64, ok bool, err error) {
	if err := m.begin(ctx); err != nil {
		return 0, false, err
	}
	defer m.mu.Unlock()
	startMs, ok = m.begun[b]
	return startMs, ok, nil
}

// CompleteSlice implements storage.Runs.
func (m *Model) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	m.setSlice(k, func(s *storage.SliceState) { s.Complete = true })
	return nil
}

// setSlice changes the state of a slice, which it adds if there is none.
func (m *Model) setSlice(k storage.SliceKey, set func(*storage.SliceState)) {
	s := m.slices[k]
	s.SliceKey = k
	set(&s)
	m.slices[k] = s
}

// Marks implements storage.Runs.
func (m *Model) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, _ int) iter.Seq2[storage.Mark, error] {
	return modelSeq(ctx, m, func() []storage.Mark { return marksFrom(slices.Collect(maps.Values(m.marks[p])), from) })
}

// marksFrom returns copies of the marks that are not before from, in order.
func marksFrom(marks []storage.Mark, from storage.MarkKey) (out []storage.Mark) {
	for _, mark := range marks {
		if mark.Key().Compare(from) >= 0 {
			out = append(out, cloneMark(mark))
		}
	}
	slices.SortFunc(out, func(a, b storage.Mark) int { return a.Key().Compare(b.Key()) })
	return out
}

// DeleteMarks implements storage.Runs.
func (m *Model) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := m.fenced(f); err != nil {
		return err
	}
	for _, mark := range marks {
		delete(m.marks[p], modelMark{mark.Start, mark.TimeMs, mark.ID})
	}
	return nil
}

// CacheBlock implements storage.Runs.
func (m *Model) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	if err := m.begin(ctx); err != nil {
		return nil, err
	}
	defer m.mu.Unlock()
	var out []storage.Chunk
	size := 0
	for id, data := range m.cache[k] {
		if size += len(data); size > storage.MaxCacheBytes {
			return nil, storage.ErrTooLarge
		}
		out = append(out, storage.Chunk{ID: id, Data: bytes.Clone(data)})
	}
	slices.SortFunc(out, func(a, b storage.Chunk) int { return a.ID.Compare(b.ID) })
	return out, nil
}

// PackRaw implements storage.Runs.
func (m *Model) PackRaw(ctx context.Context, f storage.Fence, packed storage.RawChunk, replaced []blocks.ID) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := m.fenced(f); err != nil {
		return err
	}
	m.packRaw(packed, replaced)
	return nil
}

func (m *Model) packRaw(packed storage.RawChunk, replaced []blocks.ID) {
	for _, id := range replaced {
		delete(m.raw, modelRaw{packed.Group, packed.SliceMs, id})
	}
	m.raw[modelRaw{packed.Group, packed.SliceMs, packed.ID}] = bytes.Clone(packed.Data)
}

// DeleteCacheBlock implements storage.Runs.
func (m *Model) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if err := m.fenced(f); err != nil {
		return err
	}
	delete(m.cache, k)
	return nil
}

// WriteRollups implements storage.Runs.
func (m *Model) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	if err := m.begin(ctx); err != nil {
		return err
	}
	defer m.mu.Unlock()
	if level <= metric.Raw || level > m.settings.Ladder.Top() {
		return fmt.Errorf("bucket %d is not a roll-up of %s", level, m.settings.Ladder)
	}
	if err := m.fenced(f); err != nil {
		return err
	}
	for _, row := range rows {
		m.rollups[modelRow{level, row.Schedule, row.TimeMs}] = cloneRow(row)
	}
	return nil
}

// RawChunks implements storage.Reader.
func (m *Model) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return lent(modelSeq(ctx, m, func() []storage.RawChunk {
		var out []storage.RawChunk
		for k, data := range m.raw {
			groupEnd := k.group + metric.ScheduleID(m.settings.GroupSize)
			if ids.Start < ids.End && ids.Start < groupEnd && k.group < ids.End && fromMs <= k.sliceMs && k.sliceMs < toMs {
				out = append(out, storage.RawChunk{
					Group: k.group, SliceMs: k.sliceMs,
					Chunk: storage.Chunk{ID: k.id, Data: bytes.Clone(data)},
				})
			}
		}
		slices.SortFunc(out, func(a, b storage.RawChunk) int {
			return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.SliceMs, b.SliceMs), a.ID.Compare(b.ID))
		})
		return out
	}))
}

// lent overwrites the data of each chunk after the loop's body, which must not have kept it.
func lent(chunks iter.Seq2[storage.RawChunk, error]) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		for c, err := range chunks {
			more := yield(c, err)
			clear(c.Data)
			if !more {
				return
			}
		}
	}
}

// Rollups implements storage.Reader.
func (m *Model) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return modelSeq(ctx, m, func() []metric.RollupRow {
		var out []metric.RollupRow
		for k, row := range m.rollups {
			if k.level == level && ids.Contains(k.schedule) && fromMs <= k.timeMs && k.timeMs < toMs {
				out = append(out, cloneRow(row))
			}
		}
		slices.SortFunc(out, compareRows)
		return out
	})
}

// modelSeq yields what collect finds under the lock. The lock is released before the loop's body
// runs, so the body may use the store.
func modelSeq[T any](ctx context.Context, m *Model, collect func() []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if err := m.begin(ctx); err != nil {
			yield(zero, err)
			return
		}
		rows := collect()
		m.mu.Unlock()
		for _, row := range rows {
			if ctx.Err() != nil {
				yield(zero, ContextError(ctx))
				return
			}
			if !yield(row, nil) {
				return
			}
		}
	}
}

func compareRows(a, b metric.RollupRow) int {
	return cmp.Or(cmp.Compare(a.Schedule, b.Schedule), cmp.Compare(a.TimeMs, b.TimeMs))
}

func cloneMark(m storage.Mark) storage.Mark {
	m.Schedules = slices.Clone(m.Schedules)
	return m
}

func cloneRow(r metric.RollupRow) metric.RollupRow {
	r.Sketch = bytes.Clone(r.Sketch)
	return r
}
