package storagetest

import (
	"context"
	"errors"
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

// Step is one operation on a Faulty store. Each row of an iterator is a step too, such as
// "Marks.next" for Marks; rows are neither counted nor logged.
type Step struct {
	Op string
	// Fence is 0 for an operation of ingest.
	Fence storage.Fence
	// Detail is the argument that says most: the *storage.Batch, the rows, the marks, the key. For
	// the step of a row it is the row.
	Detail any
}

// rowSuffix ends the name of a step that is a row of an iterator.
const rowSuffix = ".next"

// Schedules returns the schedules that the step is about: the starts of its blocks and ranges, and
// the schedules of its rows.
func (s Step) Schedules() []metric.ScheduleID {
	var out []metric.ScheduleID
	switch d := s.Detail.(type) {
	case *storage.Batch:
		for _, m := range d.Marks {
			out = append(out, m.Start)
		}
		for _, c := range d.Raw {
			out = append(out, c.Group)
		}
		for _, c := range d.Cache {
			out = append(out, c.Start)
		}
	case []storage.Mark:
		for _, m := range d {
			out = append(out, m.Start)
		}
	case []metric.RollupRow:
		for _, r := range d {
			out = append(out, r.Schedule)
		}
	case blocks.Range:
		out = append(out, d.Start)
	case storage.CacheKey:
		out = append(out, d.Start)
	case storage.Mark:
		out = append(out, d.Start)
	case storage.RawChunk:
		out = append(out, d.Group)
	case metric.RollupRow:
		out = append(out, d.Schedule)
	}
	return out
}

// about reports whether the step is about items of a kind.
func (s Step) about(kind string) bool {
	switch d := s.Detail.(type) {
	case string:
		return d == kind
	case []storage.Item:
		return slices.ContainsFunc(d, func(e storage.Item) bool { return e.Kind == kind })
	}
	return false
}

// String is the step as a failing test prints it.
func (s Step) String() string { return fmt.Sprintf("%s%v", s.Op, s.Schedules()) }

// Rule says what to do at matching steps.
type Rule struct {
	Op string
	// Block selects the steps about these schedules, unless its End is 0.
	Block blocks.Range
	// Kind selects the steps about items of the kind, unless it is "".
	Kind string
	// Fenced selects only steps of a run, Unfenced only steps of ingest.
	Fenced, Unfenced bool
	// Times is how often the rule applies; below 0 means always.
	Times int
	// Before and After are called around the step. They may block, and may use the store. If Before
	// returns an error, the step does not happen. After is called when the step has happened
	// without an error; if After returns an error, the step looks as if it had not happened, as
	// after a time-out. For a row, After is called when the loop asks for the next row.
	Before, After func() error
	// OneCopy, for Write, is the error with which the step fails after its slices and marks are
	// written. Its raw chunks then lie on one copy only, and nobody reads them before Surface.
	OneCopy error
}

func (r *Rule) matches(s Step) bool {
	if r.Times == 0 || r.Op != s.Op || r.Fenced && s.Fence == 0 || r.Unfenced && s.Fence != 0 || r.Kind != "" && !s.about(r.Kind) {
		return false
	}
	return r.Block.End == 0 || slices.ContainsFunc(s.Schedules(), r.Block.Contains)
}

// ErrCrashed is the error of every operation after a crash.
var ErrCrashed = fmt.Errorf("%w: the process has crashed", storage.ErrUnavailable)

// Faulty wraps a store. It logs the steps, applies its rules to them, and ends the life of a
// process at a chosen step. Settings, NewestID, Confirms and Close are no steps: they go to the wrapped
// store, even after a crash.
type Faulty struct {
	storage.Store

	mu    sync.Mutex
	rules []*Rule
	log   []Step
	// crashAt is the number of steps until everything fails; below 0 means never.
	crashAt int
	crashed bool
	torn    bool
	// landed are the chunks that lie on one copy only.
	landed []storage.RawChunk
}

var _ storage.Store = (*Faulty)(nil)

// NewFaulty wraps a store. Without rules it changes nothing.
func NewFaulty(s storage.Store) *Faulty { return &Faulty{Store: s, crashAt: -1} }

// Add adds a rule. If several rules match a step, only the first applies.
func (f *Faulty) Add(r Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &r)
}

// Fail makes the next n steps of a kind fail with err; a block limits this to steps about it.
func (f *Faulty) Fail(op string, block blocks.Range, n int, err error) {
	f.Add(Rule{Op: op, Block: block, Times: n, Before: func() error { return err }})
}

// Land makes the next n writes of ingest fail with err, though their chunks have landed on one
// copy; see Rule.OneCopy.
func (f *Faulty) Land(n int, err error) {
	f.Add(Rule{Op: "Write", Unfenced: true, Times: n, OneCopy: err})
}

// Landed is the number of chunks that lie on one copy only.
func (f *Faulty) Landed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.landed)
}

// Surface makes the chunks that lie on one copy readable for all, as a repair or a delivered hint
// does.
func (f *Faulty) Surface(ctx context.Context) error {
	f.mu.Lock()
	raw := f.landed
	f.landed = nil
	f.mu.Unlock()
	return f.Store.Write(ctx, &storage.Batch{Raw: raw})
}

// land writes the slices and marks of a batch, and keeps its raw chunks for Surface. Its cache
// chunks are lost.
func (f *Faulty) land(ctx context.Context, b *storage.Batch) error {
	if err := f.Store.Write(ctx, &storage.Batch{Fence: b.Fence, Open: b.Open, Marks: b.Marks}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.landed = append(f.landed, b.Raw...)
	return nil
}

// Heal removes all rules.
func (f *Faulty) Heal() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// CrashAt lets n-1 more steps happen and none after them. An n below 0 undoes a crash.
func (f *Faulty) CrashAt(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt, f.crashed = n, false
}

// Crashed says whether the chosen step was reached.
func (f *Faulty) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Tear says whether each Write is cut into its rows, with each row a step of its own. A store
// without transactions over partitions may do that.
func (f *Faulty) Tear(torn bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.torn = torn
}

// Log returns the steps since Forget, including those that a rule failed.
func (f *Faulty) Log() []Step {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.log)
}

// Count is the number of steps of the named operation since Forget.
func (f *Faulty) Count(op string) int {
	n := 0
	for _, s := range f.Log() {
		if s.Op == op {
			n++
		}
	}
	return n
}

// Forget starts a new log.
func (f *Faulty) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = nil
}

// begin counts and logs a step, and finds the rule for it.
func (f *Faulty) begin(step Step) (Rule, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	row := strings.HasSuffix(step.Op, rowSuffix)
	if !row {
		if f.crashAt > 0 {
			f.crashAt--
		}
		f.crashed = f.crashAt == 0
	}
	if f.crashed {
		return Rule{}, fmt.Errorf("%s: %w", step.Op, ErrCrashed)
	}
	if !row {
		f.log = append(f.log, step)
	}
	for _, r := range f.rules {
		if r.matches(step) {
			r.Times--
			return *r, nil
		}
	}
	return Rule{}, nil
}

func (f *Faulty) do(step Step, op func() error) error {
	return f.by(step, func(Rule) error { return op() })
}

// by is do for a step that depends on its rule.
func (f *Faulty) by(step Step, op func(Rule) error) error {
	rule, err := f.begin(step)
	if err != nil {
		return err
	}
	if rule.Before != nil {
		if err := rule.Before(); err != nil {
			return err
		}
	}
	if err := op(rule); err != nil {
		return err
	}
	if rule.After != nil {
		return rule.After()
	}
	return nil
}

func ask[T any](f *Faulty, step Step, op func() (T, error)) (T, error) {
	var answer, zero T
	err := f.do(step, func() (err error) {
		answer, err = op()
		return err
	})
	if err != nil {
		return zero, err
	}
	return answer, nil
}

// errLeft stands for a loop that was left before its end.
var errLeft = errors.New("the loop was left")

func sequence[T any](f *Faulty, step Step, seq iter.Seq2[T, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		err := f.do(step, func() error {
			row := Step{Op: step.Op + rowSuffix}
			for v, err := range seq {
				if err != nil {
					return err
				}
				row.Detail = v
				err = f.do(row, func() error {
					if !yield(v, nil) {
						return errLeft
					}
					return nil
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errLeft) {
			var zero T
			yield(zero, err)
		}
	}
}

// Write implements storage.Store.
func (f *Faulty) Write(ctx context.Context, b *storage.Batch) error {
	f.mu.Lock()
	torn := f.torn
	f.mu.Unlock()
	parts := []*storage.Batch{b}
	if torn {
		parts = tear(b)
	}
	for _, p := range parts {
		err := f.by(Step{Op: "Write", Fence: p.Fence, Detail: p}, func(r Rule) error {
			if r.OneCopy == nil {
				return f.Store.Write(ctx, p)
			}
			return errors.Join(r.OneCopy, f.land(ctx, p))
		})
		if err != nil {
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

// AddEpoch implements storage.Store.
func (f *Faulty) AddEpoch(ctx context.Context, e blocks.Epoch) error {
	return f.do(Step{Op: "AddEpoch", Detail: e}, func() error { return f.Store.AddEpoch(ctx, e) })
}

// SetPolicy implements storage.Store.
func (f *Faulty) SetPolicy(ctx context.Context, p storage.Policy) error {
	return f.do(Step{Op: "SetPolicy", Detail: p}, func() error { return f.Store.SetPolicy(ctx, p) })
}

// CheckFit implements storage.Store.
func (f *Faulty) CheckFit(ctx context.Context) error {
	return f.do(Step{Op: "CheckFit"}, func() error { return f.Store.CheckFit(ctx) })
}

// Expire implements storage.Store.
func (f *Faulty) Expire(ctx context.Context) error {
	return f.do(Step{Op: "Expire"}, func() error { return f.Store.Expire(ctx) })
}

// LeaseIDs implements storage.Registry.
func (f *Faulty) LeaseIDs(ctx context.Context, n int) (blocks.Range, error) {
	return ask(f, Step{Op: "LeaseIDs", Detail: n}, func() (blocks.Range, error) { return f.Store.LeaseIDs(ctx, n) })
}

// LeasedIDs implements storage.Registry.
func (f *Faulty) LeasedIDs(ctx context.Context) (blocks.Range, error) {
	return ask(f, Step{Op: "LeasedIDs"}, func() (blocks.Range, error) { return f.Store.LeasedIDs(ctx) })
}

// ClaimSchedules implements storage.Registry.
func (f *Faulty) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	return ask(f, Step{Op: "ClaimSchedules", Detail: want}, func() ([]metric.ScheduleID, error) {
		return f.Store.ClaimSchedules(ctx, want)
	})
}

// SourceSchedules implements storage.Registry.
func (f *Faulty) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	return sequence(f, Step{Op: "SourceSchedules", Detail: source}, f.Store.SourceSchedules(ctx, source))
}

// Schedules implements storage.Registry.
func (f *Faulty) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	return sequence(f, Step{Op: "Schedules", Detail: ids}, f.Store.Schedules(ctx, ids))
}

// AcquireShard implements storage.Runs.
func (f *Faulty) AcquireShard(ctx context.Context, shard int, owner string, ttl time.Duration) (storage.Lease, error) {
	return ask(f, Step{Op: "AcquireShard", Detail: shard}, func() (storage.Lease, error) {
		return f.Store.AcquireShard(ctx, shard, owner, ttl)
	})
}

// RenewShard implements storage.Runs.
func (f *Faulty) RenewShard(ctx context.Context, l storage.Lease, ttl time.Duration) error {
	return f.do(Step{Op: "RenewShard", Detail: l.Shard}, func() error { return f.Store.RenewShard(ctx, l, ttl) })
}

// ReleaseShard implements storage.Runs.
func (f *Faulty) ReleaseShard(ctx context.Context, shard int, owner string) error {
	return f.do(Step{Op: "ReleaseShard", Detail: shard}, func() error { return f.Store.ReleaseShard(ctx, shard, owner) })
}

// Slices implements storage.Runs.
func (f *Faulty) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	return ask(f, Step{Op: "Slices", Detail: b}, func() ([]storage.SliceState, error) { return f.Store.Slices(ctx, b, fromMs, toMs) })
}

// Marks implements storage.Runs.
func (f *Faulty) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error] {
	return sequence(f, Step{Op: "Marks", Detail: p}, f.Store.Marks(ctx, p, from, most))
}

// CacheBlock implements storage.Runs.
func (f *Faulty) CacheBlock(ctx context.Context, k storage.CacheKey) ([]storage.Chunk, error) {
	return ask(f, Step{Op: "CacheBlock", Detail: k}, func() ([]storage.Chunk, error) { return f.Store.CacheBlock(ctx, k) })
}

// WriteRollups implements storage.Runs.
func (f *Faulty) WriteRollups(ctx context.Context, fence storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	return f.do(Step{Op: "WriteRollups", Fence: fence, Detail: rows}, func() error { return f.Store.WriteRollups(ctx, fence, level, rows) })
}

// PackRaw implements storage.Runs.
func (f *Faulty) PackRaw(ctx context.Context, fence storage.Fence, packed storage.RawChunk, replaced []blocks.ID) error {
	return f.do(Step{Op: "PackRaw", Fence: fence, Detail: packed}, func() error { return f.Store.PackRaw(ctx, fence, packed, replaced) })
}

// DeleteCacheBlock implements storage.Runs.
func (f *Faulty) DeleteCacheBlock(ctx context.Context, fence storage.Fence, k storage.CacheKey) error {
	return f.do(Step{Op: "DeleteCacheBlock", Fence: fence, Detail: k}, func() error { return f.Store.DeleteCacheBlock(ctx, fence, k) })
}

// DeleteMarks implements storage.Runs.
func (f *Faulty) DeleteMarks(ctx context.Context, fence storage.Fence, p storage.IndexPartition, marks []storage.Mark) error {
	return f.do(Step{Op: "DeleteMarks", Fence: fence, Detail: marks}, func() error { return f.Store.DeleteMarks(ctx, fence, p, marks) })
}

// BeginSlice implements storage.Runs.
func (f *Faulty) BeginSlice(ctx context.Context, k storage.SliceKey) error {
	return f.do(Step{Op: "BeginSlice", Detail: k}, func() error { return f.Store.BeginSlice(ctx, k) })
}

// NewestBegun implements storage.Runs.
func (f *Faulty) NewestBegun(ctx context.Context, b metric.Bucket) (startMs int64, ok bool, err error) {
	err = f.do(Step{Op: "NewestBegun", Detail: b}, func() error {
		startMs, ok, err = f.Store.NewestBegun(ctx, b)
		return err
	})
	return startMs, ok, err
}

// CompleteSlice implements storage.Runs.
func (f *Faulty) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	return f.do(Step{Op: "CompleteSlice", Detail: k}, func() error { return f.Store.CompleteSlice(ctx, k) })
}

// RawChunks implements storage.Reader.
func (f *Faulty) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return sequence(f, Step{Op: "RawChunks", Detail: ids}, f.Store.RawChunks(ctx, ids, fromMs, toMs))
}

// Rollups implements storage.Reader.
func (f *Faulty) Rollups(ctx context.Context, level metric.Bucket, ids blocks.Range, fromMs, toMs int64) iter.Seq2[metric.RollupRow, error] {
	return sequence(f, Step{Op: "Rollups", Detail: ids}, f.Store.Rollups(ctx, level, ids, fromMs, toMs))
}

// Document implements storage.Documents.
func (f *Faulty) Document(ctx context.Context, key storage.DocumentKey) (storage.Document, error) {
	return ask(f, Step{Op: "Document", Detail: key}, func() (storage.Document, error) { return f.Store.Document(ctx, key) })
}

// Documents implements storage.Documents.
func (f *Faulty) Documents(ctx context.Context, kind string) iter.Seq2[storage.DocumentHead, error] {
	return sequence(f, Step{Op: "Documents", Detail: kind}, f.Store.Documents(ctx, kind))
}

// PutDocument implements storage.Documents.
func (f *Faulty) PutDocument(ctx context.Context, d storage.Document) error {
	return f.do(Step{Op: "PutDocument", Detail: d}, func() error { return f.Store.PutDocument(ctx, d) })
}

// ForgetDocument implements storage.Documents.
func (f *Faulty) ForgetDocument(ctx context.Context, key storage.DocumentKey, version int64) error {
	return f.do(Step{Op: "ForgetDocument", Detail: key}, func() error { return f.Store.ForgetDocument(ctx, key, version) })
}

// PutItems implements storage.Items.
func (f *Faulty) PutItems(ctx context.Context, es []storage.Item) error {
	return f.do(Step{Op: "PutItems", Detail: es}, func() error { return f.Store.PutItems(ctx, es) })
}

// DeleteItems implements storage.Items.
func (f *Faulty) DeleteItems(ctx context.Context, keys []storage.ItemKey) error {
	return f.do(Step{Op: "DeleteItems", Detail: keys}, func() error { return f.Store.DeleteItems(ctx, keys) })
}

// Items implements storage.Items.
func (f *Faulty) Items(ctx context.Context, kind, from, to string) iter.Seq2[storage.Item, error] {
	return sequence(f, Step{Op: "Items", Detail: kind}, f.Store.Items(ctx, kind, from, to))
}

// Leases implements storage.Runs.
func (f *Faulty) Leases(ctx context.Context) ([]storage.Lease, error) {
	return ask(f, Step{Op: "Leases"}, func() ([]storage.Lease, error) { return f.Store.Leases(ctx) })
}
