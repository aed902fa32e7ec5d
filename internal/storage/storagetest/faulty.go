package storagetest

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Hook is called at an operation with the method's name and the argument that tells
// most about it: the *storage.Batch, the rows, the marks, the key. It may block, and
// the error that it returns is the operation's. An iterator calls it as "Marks" when
// the loop begins, and as "Marks.next" before each row, with the row.
type Hook func(op string, detail any) error

// Call is one operation that a Faulty store was asked for.
type Call struct {
	Op     string
	Detail any
}

// Faulty is a store that does as the wrapped one, unless a hook says otherwise.
//
//  1. Before runs ahead of the operation: with an error from it the operation has not
//     happened.
//  2. After runs when the operation has happened without an error: with an error from
//     it the caller sees a failure of something that took effect, as after a timeout.
//  3. After Crash nothing happens any more, and everything fails with ErrUnavailable.
type Faulty struct {
	inner storage.Store

	mu      sync.Mutex
	before  Hook
	after   Hook
	crashed bool
	calls   []Call
}

var _ storage.Store = (*Faulty)(nil)

// NewFaulty wraps a store; before may be nil.
func NewFaulty(inner storage.Store, before Hook) *Faulty {
	return &Faulty{inner: inner, before: before}
}

// Before sets the hook that runs ahead of operations, nil for none.
func (f *Faulty) Before(h Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = h
}

// After sets the hook that runs behind operations, nil for none.
func (f *Faulty) After(h Hook) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.after = h
}

// Crash makes every later operation fail, as for a process that is gone.
func (f *Faulty) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// CrashAt makes the n-th operation from now, counted from 1, and every later one fail.
// With done, the n-th takes effect all the same. Rows of iterators do not count, and
// neither does what no operation named in ops is, unless ops is empty.
func (f *Faulty) CrashAt(n int, done bool, ops ...string) {
	var mu sync.Mutex
	hook := func(op string, _ any) error {
		if strings.HasSuffix(op, ".next") || len(ops) > 0 && !slices.Contains(ops, op) {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if n--; n > 0 {
			return nil
		}
		f.Crash()
		return crashError(op)
	}
	if done {
		f.After(hook)
	} else {
		f.Before(hook)
	}
}

func crashError(op string) error {
	return fmt.Errorf("%s: %w: the process has crashed", op, storage.ErrUnavailable)
}

// FailOn is a hook that lets the named operation fail with err the given number of
// times, -1 for ever.
func FailOn(op string, times int, err error) Hook {
	var mu sync.Mutex
	return func(o string, _ any) error {
		mu.Lock()
		defer mu.Unlock()
		if o != op || times == 0 {
			return nil
		}
		if times > 0 {
			times--
		}
		return err
	}
}

// Calls are the operations so far in order, rows of iterators left out.
func (f *Faulty) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Count is how often the named operations were called, all of them if none is named.
func (f *Faulty) Count(ops ...string) int {
	n := 0
	for _, c := range f.Calls() {
		if len(ops) == 0 || slices.Contains(ops, c.Op) {
			n++
		}
	}
	return n
}

// ResetCalls forgets the calls so far.
func (f *Faulty) ResetCalls() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

// enter is the point ahead of an operation, leave the one behind it. Hooks run
// without the lock, so that they may block and may use f.
func (f *Faulty) enter(op string, detail any) error {
	f.mu.Lock()
	if !strings.HasSuffix(op, ".next") {
		f.calls = append(f.calls, Call{op, detail})
	}
	hook, crashed := f.before, f.crashed
	f.mu.Unlock()
	if crashed {
		return crashError(op)
	}
	if hook == nil {
		return nil
	}
	return hook(op, detail)
}

func (f *Faulty) leave(op string, detail any, err error) error {
	f.mu.Lock()
	hook, crashed := f.after, f.crashed
	f.mu.Unlock()
	if crashed {
		return crashError(op)
	}
	if err != nil || hook == nil {
		return err
	}
	return hook(op, detail)
}

func (f *Faulty) call(op string, detail any, do func() error) error {
	if err := f.enter(op, detail); err != nil {
		return err
	}
	return f.leave(op, detail, do())
}

func ask[T any](f *Faulty, op string, detail any, do func() (T, error)) (T, error) {
	var zero T
	if err := f.enter(op, detail); err != nil {
		return zero, err
	}
	v, err := do()
	if err := f.leave(op, detail, err); err != nil {
		return zero, err
	}
	return v, nil
}

func sequence[T any](f *Faulty, op string, detail any, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		if err := f.enter(op, detail); err != nil {
			yield(zero, err)
			return
		}
		for v, err := range seq {
			if err == nil {
				err = f.enter(op+".next", v)
			}
			if err != nil {
				yield(zero, err)
				return
			}
			if !yield(v, nil) {
				return
			}
		}
		if err := f.leave(op, detail, nil); err != nil {
			yield(zero, err)
		}
	}
}

// Write implements storage.Store.
func (f *Faulty) Write(ctx context.Context, b *storage.Batch) error {
	return f.call("Write", b, func() error { return f.inner.Write(ctx, b) })
}

// Settings implements storage.Store; no hook sees it.
func (f *Faulty) Settings() storage.Settings { return f.inner.Settings() }

// NewestID implements storage.Store; no hook sees it.
func (f *Faulty) NewestID() blocks.ID { return f.inner.NewestID() }

// AddEpoch implements storage.Store.
func (f *Faulty) AddEpoch(ctx context.Context, e blocks.Epoch) error {
	return f.call("AddEpoch", e, func() error { return f.inner.AddEpoch(ctx, e) })
}

// Expire implements storage.Store.
func (f *Faulty) Expire(ctx context.Context, nowMs int64) error {
	return f.call("Expire", nowMs, func() error { return f.inner.Expire(ctx, nowMs) })
}

// Close implements storage.Store; no hook sees it, and it closes a crashed one too.
func (f *Faulty) Close() error { return f.inner.Close() }

// LeaseIDs implements storage.Registry.
func (f *Faulty) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	return ask(f, "LeaseIDs", n, func() (blocks.Range, error) { return f.inner.LeaseIDs(ctx, n) })
}

// LeasedIDs implements storage.Registry.
func (f *Faulty) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	return ask(f, "LeasedIDs", nil, func() (blocks.Range, error) { return f.inner.LeasedIDs(ctx) })
}

// ClaimSchedules implements storage.Registry.
func (f *Faulty) ClaimSchedules(ctx context.Context, source string, want []storage.Schedule) ([]metric.ScheduleID, error) {
	return ask(f, "ClaimSchedules", want, func() ([]metric.ScheduleID, error) {
		return f.inner.ClaimSchedules(ctx, source, want)
	})
}

// SourceSchedules implements storage.Registry.
func (f *Faulty) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return sequence(f, "SourceSchedules", source, f.inner.SourceSchedules(ctx, source))
}

// Schedules implements storage.Registry.
func (f *Faulty) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	return sequence(f, "Schedules", ids, f.inner.Schedules(ctx, ids))
}

// AcquireShard implements storage.Runs.
func (f *Faulty) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	return ask(f, "AcquireShard", shard, func() (storage.Lease, error) {
		return f.inner.AcquireShard(ctx, shard, owner, ttl)
	})
}

// ReleaseShard implements storage.Runs.
func (f *Faulty) ReleaseShard(ctx context.Context, shard int, owner string) error {
	return f.call("ReleaseShard", shard, func() error { return f.inner.ReleaseShard(ctx, shard, owner) })
}

// Slices implements storage.Runs.
func (f *Faulty) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	return ask(f, "Slices", b, func() ([]storage.SliceState, error) { return f.inner.Slices(ctx, b, fromMs, toMs) })
}

// Marks implements storage.Runs.
func (f *Faulty) Marks(ctx context.Context, p storage.IndexPartition) iter.Seq2[storage.Mark, error] {
	return sequence(f, "Marks", p, f.inner.Marks(ctx, p))
}

// CacheBlock implements storage.Runs.
func (f *Faulty) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	return ask(f, "CacheBlock", k, func() ([]storage.Chunk, error) { return f.inner.CacheBlock(ctx, k) })
}

// WriteRollups implements storage.Runs.
func (f *Faulty) WriteRollups(ctx context.Context, fence storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	return f.call("WriteRollups", rows, func() error { return f.inner.WriteRollups(ctx, fence, level, rows) })
}

// DeleteCacheBlock implements storage.Runs.
func (f *Faulty) DeleteCacheBlock(ctx context.Context, fence storage.Fence, k storage.CacheKey) error {
	return f.call("DeleteCacheBlock", k, func() error { return f.inner.DeleteCacheBlock(ctx, fence, k) })
}

// DeleteMarks implements storage.Runs.
func (f *Faulty) DeleteMarks(ctx context.Context, fence storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	return f.call("DeleteMarks", marks, func() error { return f.inner.DeleteMarks(ctx, fence, p, marks) })
}

// CompleteSlice implements storage.Runs.
func (f *Faulty) CompleteSlice(ctx context.Context, fence storage.Fence, k storage.SliceKey) error {
	return f.call("CompleteSlice", k, func() error { return f.inner.CompleteSlice(ctx, fence, k) })
}

// RawChunks implements storage.Reader.
func (f *Faulty) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return sequence(f, "RawChunks", ids, f.inner.RawChunks(ctx, ids, fromMs, toMs))
}

// Rollups implements storage.Reader.
func (f *Faulty) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return sequence(f, "Rollups", ids, f.inner.Rollups(ctx, level, ids, fromMs, toMs))
}

// RecordRun implements storage.Operations.
func (f *Faulty) RecordRun(ctx context.Context, r storage.Run) error {
	return f.call("RecordRun", r, func() error { return f.inner.RecordRun(ctx, r) })
}

// RecentRuns implements storage.Operations.
func (f *Faulty) RecentRuns(ctx context.Context, limit int) ([]storage.Run, error) {
	return ask(f, "RecentRuns", limit, func() ([]storage.Run, error) { return f.inner.RecentRuns(ctx, limit) })
}

// RecordError implements storage.Operations.
func (f *Faulty) RecordError(ctx context.Context, e storage.ComponentError) error {
	return f.call("RecordError", e, func() error { return f.inner.RecordError(ctx, e) })
}

// RecentErrors implements storage.Operations.
func (f *Faulty) RecentErrors(ctx context.Context) ([]storage.ComponentError, error) {
	return ask(f, "RecentErrors", nil, func() ([]storage.ComponentError, error) { return f.inner.RecentErrors(ctx) })
}

// Heartbeat implements storage.Operations.
func (f *Faulty) Heartbeat(ctx context.Context, w storage.Worker, ttl time.Duration) error {
	return f.call("Heartbeat", w, func() error { return f.inner.Heartbeat(ctx, w, ttl) })
}

// Workers implements storage.Operations.
func (f *Faulty) Workers(ctx context.Context) ([]storage.Worker, error) {
	return ask(f, "Workers", nil, func() ([]storage.Worker, error) { return f.inner.Workers(ctx) })
}

// Leases implements storage.Operations.
func (f *Faulty) Leases(ctx context.Context) ([]storage.Lease, error) {
	return ask(f, "Leases", nil, func() ([]storage.Lease, error) { return f.inner.Leases(ctx) })
}
