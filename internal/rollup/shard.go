package rollup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

const (
	// mostLeft is how many blocks in a row a run of a shard leaves before it gives up. The next run
	// begins after them. If the whole store is away, the next shard cannot be leased either.
	mostLeft = 8
	// mostAway is how many unavailable blocks a run retries with pauses. After that it does not retry
	// such blocks, so that blocks in reach do not wait for the pauses.
	mostAway = 8
)

// errGaveUp says that too many blocks of a shard are left.
var errGaveUp = errors.New("too many blocks in a row were left for a later run")

// shardRun grinds one shard of a slice, under the shard's lease.
type shardRun struct {
	*run

	lease     *shards.Lease
	partition storage.IndexPartition
	last      storage.MarkKey // the last mark whose work was started

	mu sync.Mutex
	// left is the first reason why a block was left, and inRow how many were left since the last one
	// that was not.
	left  error
	inRow int
	// failed says that a block ended with an error that concerns more than the block.
	failed bool
}

// grind grinds the blocks that are marked in the shard, as many side by side as workplaces are free.
// The first error that concerns more than one block ends it. It leaves blocks that are out of reach,
// goes on with the others, and returns errLeft in the end. After too many in a row it gives up. It
// begins after cut, where the last run gave up, does the rest after that, and returns the new cut.
func (s *shardRun) grind(ctx context.Context, cut storage.MarkKey) (storage.MarkKey, error) {
	s.last = cut
	before, err := s.read(ctx, cut, true)
	if before && err == nil {
		_, err = s.read(ctx, cut, false)
	}
	switch {
	case ctx.Err() != nil:
		return cut, context.Cause(ctx)
	case err == nil: // all were tried
		return storage.MarkKey{}, s.left
	case errors.Is(err, errGaveUp):
		return s.last, s.left
	}
	return cut, err
}

// read grinds the work whose last mark is after cut, or the work whose last mark is not. It reports
// whether there is work of the other kind.
func (s *shardRun) read(ctx context.Context, cut storage.MarkKey, after bool) (others bool, err error) {
	g, ctx := errgroup.WithContext(ctx)
	others, err = s.start(ctx, g, cut, after)
	if failed := g.Wait(); failed != nil {
		err = failed
	}
	return others, err
}

func (s *shardRun) start(ctx context.Context, blocks *errgroup.Group, cut storage.MarkKey, after bool) (others bool, _ error) {
	for w, err := range s.cache.Read(ctx, s.partition) {
		if err != nil {
			return others, orLeave(ctx, errLeft, err)
		}
		at := w.Marks[len(w.Marks)-1].Key()
		if (at.Compare(cut) > 0) != after {
			others = true
			continue
		}
		select {
		case g := <-s.free:
			if s.ends() {
				s.free <- g
				return others, errGaveUp
			}
			s.last, g.lease = at, s.lease
			blocks.Go(func() error {
				defer func() { s.free <- g }()
				return s.orGoOn(s.finish(ctx, g, w))
			})
		case <-ctx.Done():
			return others, context.Cause(ctx)
		}
	}
	return others, nil
}

// ends reports whether no more blocks are started. A workplace is free again before the group's
// context is cancelled, so a failure is noted here, too.
func (s *shardRun) ends() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed || s.inRow >= mostLeft
}

// orGoOn returns the error with which a block ended, unless the block is only left.
func (s *shardRun) orGoOn(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, errLeft):
		s.left = cmp.Or(s.left, err)
		s.inRow++
		return nil
	case err == nil:
		s.inRow = 0
	default:
		s.failed = true
	}
	return err
}

// finish brings one block to an end: ground, put off, or given up. An error means that the run
// cannot go on.
func (s *shardRun) finish(ctx context.Context, g *grind, w *cache.Work) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := s.lease.Check(); err != nil {
		return err
	}
	if err := s.steady(); err != nil {
		return err
	}
	expired := s.recovery.Expired(w, clock.NowMs(s.clk))
	if expired {
		// A drop is final, and if the clock has gone wrong since the last heartbeat all work looks
		// expired. So the store confirms the clock first, and a confirmed clock decides.
		if err := s.store.CheckFit(ctx); err != nil {
			return fmt.Errorf("%w: %d marks of slice %s are not dropped: %w", errLeft, len(w.Marks), w.Slice, err)
		}
		expired = s.recovery.Expired(w, clock.NowMs(s.clk))
	}
	err := s.try(ctx, g, w, expired)
	switch {
	case err == nil && expired:
		s.report(ctx, s.key, w.Block.Start, coded(Expired, w.Slice, "%d marks of slice %s dropped: its input has expired", len(w.Marks), w.Slice))
		return nil
	case err == nil:
		return nil
	case stops(ctx, err):
		return err
	}
	if storage.IsAway(err) {
		s.away.Add(1)
	}
	// A block that always times out, or whose copies are gone, must not hold up the others. If its
	// mark cannot be put off either, the mark stays where it is, and the slice stays open.
	if rerr := s.recovery.Reschedule(ctx, s.lease.Fence, w, err); rerr != nil {
		return orLeave(ctx, errLeft, fmt.Errorf("%w, because of %w", rerr, err))
	}
	s.rescheduled.Add(1)
	s.report(ctx, s.key, w.Block.Start, fmt.Errorf("block of slice %s put off: %w", w.Slice, err))
	return nil
}

// try grinds a block, more than once if that may help.
func (s *shardRun) try(ctx context.Context, g *grind, w *cache.Work, expired bool) error {
	err := g.block(ctx, w, expired)
	for attempt := 1; err != nil && attempt < s.opts.Attempts && !stops(ctx, err); attempt++ {
		if storage.IsAway(err) && s.away.Load() >= mostAway {
			break
		}
		if err := s.clk.Sleep(ctx, s.opts.Backoff<<(attempt-1)); err != nil {
			return err
		}
		err = g.block(ctx, w, expired)
	}
	return err
}
