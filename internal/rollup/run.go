package rollup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/treecheck/invariants"
)

// ErrShared says that this worker is done with a slice, or unfit, and others are not done.
var ErrShared = errors.New("other workers are not done with the slice")

// errLeft says that blocks of a slice could be neither ground nor put off: the part of the store
// that they need is away, while other parts answer.
var errLeft = errors.New("left for a later run")

// errState says that a slice is left because states of slices are out of reach. Its progress is
// forgotten: the slice stays open, and if a clock goes back, it may get more marks.
var errState = fmt.Errorf("%w: states of slices are out of reach", errLeft)

// shardsAtOnce is the number of shards held at the same time. While one shard is acquired or
// released, or its last blocks are ground, the other provides work.
const shardsAtOnce = 2

// run is one run of one slice. The way of a block through it, from the top of this file to the end of block.go:
// Run, grind, ownShards and hold lead to its shard; shardRun's grind, read and start to its marks; finish and
// try to block, which grinds it. An error goes back the same way: orGoOn keeps what concerns the block alone,
// ownShards what concerns the shard alone, and RunDue what concerns the slice alone.
type run struct {
	*Runner

	key   storage.SliceKey
	slice metric.Slice
	began clock.Reading
	// reached is what earlier runs have reached, and this one reaches.
	reached *sliceProgress
	// free holds the workplaces that no block occupies.
	free chan *grind

	blocks, schedules          atomic.Int64
	blockQueries, indexQueries atomic.Int64
	late, rescheduled, dropped atomic.Int64
	// away counts the blocks that were unavailable at each attempt.
	away atomic.Int64

	mu sync.Mutex
	// begun says that the run has begun, and next is what cache.Next returned then.
	begun bool
	next  cache.Next
	// trusts is what cache.Trusts returned before the run began.
	trusts bool
}

// Run runs one slice over this worker's shards. It completes the slice if no other worker has work
// left in it, and returns ErrShared otherwise. The record says what was done, also if the run was
// aborted and the error is not nil.
func (r *Runner) Run(ctx context.Context, k storage.SliceKey) (storage.Run, error) {
	u := &run{Runner: r, key: k, slice: r.slice(k), began: clock.Read(r.clk), free: make(chan *grind, r.opts.Parallel)}
	for range cap(u.free) {
		u.free <- &grind{run: u}
	}
	name := r.ladder.Name(k.Bucket)
	rec := storage.Run{SliceKey: k, Worker: r.member.ID(), StartedMs: clock.NowMs(r.clk)}
	if err := u.due(ctx); err != nil {
		return rec, fmt.Errorf("run of %s slice %s not started: %w", name, u.slice, err)
	}
	started := r.clk.Elapsed()
	u.reached = r.progress.slice(k)
	err := u.grind(ctx)
	r.progress.ended(k, err)
	rec.Duration = r.clk.Elapsed() - started
	rec.Blocks, rec.Schedules = int(u.blocks.Load()), int(u.schedules.Load())
	rec.BlockQueries, rec.IndexQueries = int(u.blockQueries.Load()), int(u.indexQueries.Load())
	rec.Late, rec.Rescheduled, rec.Dropped = int(u.late.Load()), int(u.rescheduled.Load()), int(u.dropped.Load())
	if err != nil {
		err = fmt.Errorf("run of %s slice %s: %w", name, u.slice, err)
		waits := errors.Is(err, ErrShared)
		if ctx.Err() != nil || waits && rec.Blocks+rec.Rescheduled+rec.Dropped == 0 {
			return rec, err // stopped or waiting: nothing went wrong, and the slice stays open
		}
		if !waits {
			rec.Err = err.Error()
			r.report(ctx, k, -1, err)
		}
	}
	r.metrics.run(name, u.slice, rec, err)
	if rerr := storage.RecordRun(ctx, r.store, rec); rerr != nil && err == nil {
		// The slice is complete. A missing record is no reason to run it again.
		r.opts.Logger.Warn("cannot record the run", "slice", u.slice, "err", rerr)
	}
	level := slog.LevelInfo
	if rec.Err != "" {
		level = slog.LevelWarn
	}
	r.opts.Logger.Log(ctx, level, "run", "bucket", name, "slice", u.slice,
		"blocks", rec.Blocks, "schedules", rec.Schedules, "block_queries", rec.BlockQueries,
		"index_queries", rec.IndexQueries, "late", rec.Late, "rescheduled", rec.Rescheduled,
		"dropped", rec.Dropped, "seconds", rec.Duration.Seconds(), "err", err)
	return rec, err
}

// grind grinds the shards of this worker, and completes the slice if no shard has work left.
func (u *run) grind(ctx context.Context) error {
	mine, err := u.member.Mine(ctx)
	if errors.Is(err, shards.ErrUnfit) {
		return fmt.Errorf("%w: %w", ErrShared, err)
	}
	if err != nil {
		return err
	}
	if err := u.ownShards(ctx, mine); err != nil {
		return err
	}
	if err := u.othersEnded(ctx); err != nil {
		return err
	}
	if invariants.Enabled {
		if err := u.checkComplete(ctx); err != nil {
			return orLeave(ctx, errState, err)
		}
	}
	// What comes for a complete slice is late, whatever the sender's clock says.
	if err := u.due(ctx); err != nil {
		return err
	}
	return orLeave(ctx, errState, u.store.CompleteSlice(ctx, u.key))
}

// ownShards grinds this worker's shards that have not ended, some of them side by side. It goes on
// with the others if another worker holds a shard, or if a shard is damaged or away: the others lie
// in other partitions. The error then says what is left for a later run.
func (u *run) ownShards(ctx context.Context, mine []int) error {
	left := make([]error, len(u.reached.ended))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(min(shardsAtOnce, u.opts.Parallel))
	for _, shard := range mine {
		if u.reached.ended[shard] {
			continue
		}
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			err := u.hold(ctx, shard)
			switch stopped := ctx.Err() != nil; {
			case lost(err) && !stopped:
				u.opts.Logger.Info("shard left to another worker", "bucket", u.ladder.Name(u.key.Bucket), "slice", u.slice, "err", err)
				return nil
			case (errors.Is(err, errLeft) || errors.Is(err, storage.ErrCorrupt)) && !stopped:
				left[shard] = err
				return nil
			}
			u.reached.ended[shard] = err == nil
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return cmp.Or(left...)
}

// hold grinds one shard of the slice's index under the shard's lease.
func (u *run) hold(ctx context.Context, shard int) error {
	return u.member.Hold(ctx, shard, func(ctx context.Context, l *shards.Lease) (err error) {
		if done, err := u.begin(ctx); done || err != nil {
			return orLeave(ctx, errState, err)
		}
		u.indexQueries.Add(1)
		s := &shardRun{run: u, lease: l, partition: storage.IndexPartition{SliceKey: u.key, Shard: shard}}
		u.reached.cut[shard], err = s.grind(ctx, u.reached.cut[shard])
		return err
	})
}

// begin checks, under a shard's lease, whether others have completed the slice since it was found
// due. If so, a mark in it came too late, and its writer is about to delete it. If not, begin
// records that the run has begun, before the run reads any mark: from then on nobody relies on marks
// and cache of the slice.
func (u *run) begin(ctx context.Context) (done bool, err error) {
	state, err := u.cache.State(ctx, u.key)
	if state.Complete || err != nil {
		return state.Complete, err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.begun {
		return false, nil
	}
	if u.next, err = u.cache.Next(ctx, u.key); err != nil {
		return false, err
	}
	if u.trusts, err = u.cache.Trusts(ctx, u.key); err != nil {
		return false, err
	}
	if !state.Begun {
		if err := u.store.BeginSlice(ctx, u.key); err != nil {
			return false, fmt.Errorf("record the beginning: %w", err)
		}
	}
	u.begun = true
	return false, nil
}

// othersEnded looks for marks in the shards that this worker has not ground. A slice whose run has begun
// gets no new marks, so the worker that ends last finds none. It returns ErrShared if there are marks, or no
// worker has begun, and errLeft if a shard is unavailable.
func (u *run) othersEnded(ctx context.Context) error {
	if !u.begun {
		state, err := u.cache.State(ctx, u.key)
		if err != nil {
			return orLeave(ctx, errState, err)
		}
		if !state.Over() { // by a clock that is ahead: marks may come to shards that have none
			return fmt.Errorf("no worker has begun: %w", ErrShared)
		}
	}
	p := u.reached
	for shard := range p.ended {
		if p.ended[shard] {
			continue
		}
		u.indexQueries.Add(1)
		for first, err := range u.store.Marks(ctx, storage.IndexPartition{SliceKey: u.key, Shard: shard}, p.left[shard], 1) {
			if err != nil {
				return orLeave(ctx, errLeft, fmt.Errorf("read the index of shard %d: %w", shard, err))
			}
			p.left[shard] = first.Key()
			return fmt.Errorf("shard %d: %w", shard, ErrShared)
		}
		p.ended[shard] = true
	}
	return nil
}

// due is nil while the slice is due by a clock that the store confirms. The clock may have been
// ahead when the slice was chosen.
func (u *run) due(ctx context.Context) error {
	if err := u.store.CheckFit(ctx); err != nil {
		return fmt.Errorf("the clock is not confirmed: %w", err)
	}
	if err := u.steady(); err != nil {
		return err
	}
	if now := u.clk.Now(); !u.cache.Timing().Due(u.slice, now.UnixMilli()) {
		return fmt.Errorf("the slice is not due at %s: the clock was set back", now.Format(time.RFC3339))
	}
	return nil
}

// steady is nil if the clock was not set since the run began.
func (u *run) steady() error {
	if step := u.began.Step(clock.Read(u.clk)); step.Abs() > u.cache.Timing().MostStep() {
		return fmt.Errorf("the clock was set by %s during the run: the run starts again", step.Round(time.Second))
	}
	return nil
}

// checkComplete asserts what the cascade relies on: a slice is completed only after all slices
// within it (see cache.Promote).
func (u *run) checkComplete(ctx context.Context) error {
	for b := metric.Raw; b < u.key.Bucket; b++ {
		parts, err := u.store.Slices(ctx, b, u.slice.StartMs, u.slice.EndMs)
		if err != nil {
			return err
		}
		for _, p := range parts {
			invariants.Check(p.Complete, "slice %s of %s is completed before its part %s of %s",
				u.slice, u.ladder.Name(u.key.Bucket), u.Runner.slice(p.SliceKey), u.ladder.Name(b))
		}
	}
	return nil
}

// orLeave wraps err in reason, errLeft or errState, if only a part of the store is away.
func orLeave(ctx context.Context, reason, err error) error {
	if storage.IsAway(err) && !stops(ctx, err) {
		return fmt.Errorf("%w: %w", reason, err)
	}
	return err
}

// lost reports whether err means that another worker holds the shard.
func lost(err error) bool {
	return errors.Is(err, storage.ErrFenced) || errors.Is(err, storage.ErrConflict)
}

// stops reports whether err ends the run at once: another attempt cannot help.
func stops(ctx context.Context, err error) bool {
	return ctx.Err() != nil || lost(err)
}
