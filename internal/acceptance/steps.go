package acceptance

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Step is one operation of a store that is about to happen or has happened.
type Step struct {
	Op string
	// Fence is 0 for what ingest does.
	Fence storage.Fence
	// Schedules are those that the step begins with or is about: the starts of the
	// blocks, or the first schedule of the rows.
	Schedules []metric.ScheduleID
}

// String is the step as a failing test prints it.
func (s Step) String() string { return fmt.Sprintf("%s%v", s.Op, s.Schedules) }

// Steps stands in front of a store. It counts the operations, fails those that it is
// told to fail, and ends the life of a process at a chosen one.
type Steps struct {
	storage.Store

	mu    sync.Mutex
	rules []*Rule
	// log are the steps since Forget.
	log  []Step
	runs []storage.Run
	// crashAt is the number of steps until everything fails; below 0 never.
	crashAt int
	crashed bool
	// torn cuts each Write into its rows, each a step of its own: what a store may do
	// that has no transaction over partitions.
	torn bool
	// noCache loses what is written into the cache, as a cache does that is only a
	// fast path.
	noCache bool
}

// Rule is something to be done at matching steps.
type Rule struct {
	Op string
	// Block, where its End is not 0, picks steps about these schedules.
	Block blocks.Range
	// Fenced picks steps of a run only, or those of ingest only.
	Fenced, Unfenced bool
	// Times is how often the rule applies; below 0 always.
	Times int
	// Before and After are called around the step. An error from Before keeps the step from
	// happening; one from After makes it look as if it had not.
	Before, After func() error
}

func (r *Rule) matches(s Step) bool {
	if r.Times == 0 || r.Op != s.Op || r.Fenced && s.Fence == 0 || r.Unfenced && s.Fence != 0 {
		return false
	}
	return r.Block.End == 0 || slices.ContainsFunc(s.Schedules, r.Block.Contains)
}

var (
	errInjected = errors.New("injected")
	errCrashed  = fmt.Errorf("%w: the process is dead", storage.ErrUnavailable)
)

// NewSteps puts Steps in front of a store.
func NewSteps(s storage.Store) *Steps { return &Steps{Store: s, crashAt: -1} }

// Add adds a rule. Of several that match a step only the first applies.
func (s *Steps) Add(r Rule) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = append(s.rules, &r)
}

// Fail makes the next n steps of a kind fail with err; with a block, those about it.
func (s *Steps) Fail(op string, block blocks.Range, n int, err error) {
	s.Add(Rule{Op: op, Block: block, Times: n, Before: func() error { return err }})
}

// Heal takes away all rules.
func (s *Steps) Heal() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rules = nil
}

// CrashAt lets n-1 more steps happen and none after them.
func (s *Steps) CrashAt(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.crashAt, s.crashed = n, false
}

// Crashed says whether the chosen step was reached.
func (s *Steps) Crashed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.crashed
}

// Forget starts a new log.
func (s *Steps) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log, s.runs = nil, nil
}

// Log are the steps since Forget.
func (s *Steps) Log() []Step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// Runs are the runs recorded since Forget.
func (s *Steps) Runs() []storage.Run {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.runs)
}

func (s *Steps) begin(step Step) (*Rule, error) {
	s.mu.Lock()
	if s.crashAt > 0 {
		s.crashAt--
	}
	if s.crashAt == 0 {
		s.crashed = true
		s.mu.Unlock()
		return nil, errCrashed
	}
	s.log = append(s.log, step)
	var rule *Rule
	for _, r := range s.rules {
		if r.matches(step) {
			rule = r
			r.Times--
			break
		}
	}
	s.mu.Unlock()
	// A rule's functions may use the store.
	if rule != nil && rule.Before != nil {
		return rule, rule.Before()
	}
	return rule, nil
}

func (s *Steps) do(step Step, f func() error) error {
	rule, err := s.begin(step)
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	if rule != nil && rule.After != nil {
		return rule.After()
	}
	return nil
}

func stepSeq[T any](s *Steps, step Step, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		rule, err := s.begin(step)
		if err != nil {
			yield(zero, err)
			return
		}
		for v, err := range seq {
			if !yield(v, err) {
				return
			}
		}
		if rule != nil && rule.After != nil {
			if err := rule.After(); err != nil {
				yield(zero, err)
			}
		}
	}
}

// Write implements storage.Store.
func (s *Steps) Write(ctx context.Context, b *storage.Batch) error {
	s.mu.Lock()
	torn, noCache := s.torn, s.noCache
	s.mu.Unlock()
	if noCache {
		cut := *b
		cut.Cache = nil
		b = &cut
	}
	parts := []*storage.Batch{b}
	if torn {
		parts = tear(b)
	}
	for _, p := range parts {
		step := Step{Op: "Write", Fence: p.Fence}
		for _, m := range p.Marks {
			step.Schedules = append(step.Schedules, m.Start)
		}
		for _, c := range p.Raw {
			step.Schedules = append(step.Schedules, c.Group)
		}
		for _, c := range p.Cache {
			step.Schedules = append(step.Schedules, c.Start)
		}
		if err := s.do(step, func() error { return s.Store.Write(ctx, p) }); err != nil {
			return err
		}
	}
	return nil
}

// tear cuts a batch into its rows, in the order that the contract promises.
func tear(b *storage.Batch) []*storage.Batch {
	var out []*storage.Batch
	for _, k := range b.Open {
		out = append(out, &storage.Batch{Fence: b.Fence, Open: []storage.SliceKey{k}})
	}
	for _, m := range b.Marks {
		out = append(out, &storage.Batch{Fence: b.Fence, Marks: []storage.PlacedMark{m}})
	}
	for _, c := range b.Raw {
		out = append(out, &storage.Batch{Fence: b.Fence, Raw: []storage.RawChunk{c}})
	}
	for _, c := range b.Cache {
		out = append(out, &storage.Batch{Fence: b.Fence, Cache: []storage.CacheChunk{c}})
	}
	return out
}

// ClaimSchedules implements storage.Registry.
func (s *Steps) ClaimSchedules(ctx context.Context, source string, want []storage.Schedule) (ids []metric.ScheduleID, err error) {
	err = s.do(Step{Op: "ClaimSchedules"}, func() error {
		ids, err = s.Store.ClaimSchedules(ctx, source, want)
		return err
	})
	return ids, err
}

// LeaseIDs implements storage.Registry.
func (s *Steps) LeaseIDs(ctx context.Context, n int) (r blocks.Range, err error) {
	err = s.do(Step{Op: "LeaseIDs"}, func() error {
		r, err = s.Store.LeaseIDs(ctx, n)
		return err
	})
	return r, err
}

// SourceSchedules implements storage.Registry.
func (s *Steps) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return stepSeq(s, Step{Op: "SourceSchedules"}, s.Store.SourceSchedules(ctx, source))
}

// AcquireShard implements storage.Runs.
func (s *Steps) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (l storage.Lease, err error) {
	err = s.do(Step{Op: "AcquireShard"}, func() error {
		l, err = s.Store.AcquireShard(ctx, shard, owner, ttl)
		return err
	})
	return l, err
}

// Slices implements storage.Runs.
func (s *Steps) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) (out []storage.SliceState, err error) {
	err = s.do(Step{Op: "Slices"}, func() error {
		out, err = s.Store.Slices(ctx, b, fromMs, toMs)
		return err
	})
	return out, err
}

// Marks implements storage.Runs.
func (s *Steps) Marks(ctx context.Context, p storage.IndexPartition) iter.Seq2[storage.Mark, error] {
	return stepSeq(s, Step{Op: "Marks"}, s.Store.Marks(ctx, p))
}

// CacheBlock implements storage.Runs.
func (s *Steps) CacheBlock(ctx context.Context, k storage.CacheKey) (out []storage.Chunk, err error) {
	err = s.do(Step{Op: "CacheBlock", Schedules: []metric.ScheduleID{k.Start}}, func() error {
		out, err = s.Store.CacheBlock(ctx, k)
		return err
	})
	return out, err
}

// RawChunks implements storage.Reader.
func (s *Steps) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return stepSeq(s, Step{Op: "RawChunks", Schedules: []metric.ScheduleID{ids.Start}}, s.Store.RawChunks(ctx, ids, fromMs, toMs))
}

// Rollups implements storage.Reader.
func (s *Steps) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return stepSeq(s, Step{Op: "Rollups", Schedules: []metric.ScheduleID{ids.Start}}, s.Store.Rollups(ctx, level, ids, fromMs, toMs))
}

// WriteRollups implements storage.Runs.
func (s *Steps) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	step := Step{Op: "WriteRollups", Fence: f, Schedules: []metric.ScheduleID{rows[0].Schedule}}
	return s.do(step, func() error { return s.Store.WriteRollups(ctx, f, level, rows) })
}

// DeleteCacheBlock implements storage.Runs.
func (s *Steps) DeleteCacheBlock(ctx context.Context, f storage.Fence, k storage.CacheKey) error {
	step := Step{Op: "DeleteCacheBlock", Fence: f, Schedules: []metric.ScheduleID{k.Start}}
	return s.do(step, func() error { return s.Store.DeleteCacheBlock(ctx, f, k) })
}

// DeleteMarks implements storage.Runs.
func (s *Steps) DeleteMarks(ctx context.Context, f storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	step := Step{Op: "DeleteMarks", Fence: f}
	for _, m := range marks {
		step.Schedules = append(step.Schedules, m.Start)
	}
	return s.do(step, func() error { return s.Store.DeleteMarks(ctx, f, p, marks) })
}

// CompleteSlice implements storage.Runs.
func (s *Steps) CompleteSlice(ctx context.Context, f storage.Fence, k storage.SliceKey) error {
	return s.do(Step{Op: "CompleteSlice", Fence: f}, func() error { return s.Store.CompleteSlice(ctx, f, k) })
}

// RecordRun implements storage.Operations.
func (s *Steps) RecordRun(ctx context.Context, r storage.Run) error {
	return s.do(Step{Op: "RecordRun"}, func() error {
		s.mu.Lock()
		s.runs = append(s.runs, r)
		s.mu.Unlock()
		return s.Store.RecordRun(ctx, r)
	})
}

// RecordError implements storage.Operations.
func (s *Steps) RecordError(ctx context.Context, e storage.ComponentError) error {
	return s.do(Step{Op: "RecordError"}, func() error { return s.Store.RecordError(ctx, e) })
}
