package rollup

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/recovery"
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
	// cut is the mark at which an earlier run of the shard gave up, and last the last mark whose work
	// this run started.
	cut  *storage.MarkKey
	last storage.MarkKey

	wg     sync.WaitGroup
	cancel context.CancelCauseFunc

	mu sync.Mutex
	// left is the first reason why a block was left, and inRow how many were left since the last one
	// that was not.
	left  error
	inRow int
}

// grind grinds the blocks that are marked in the shard, as many side by side as workplaces are free.
// The first error that concerns more than one block ends it. It leaves blocks that are out of reach,
// goes on with the others, and returns errLeft in the end. After too many in a row it gives up and
// notes where. It begins after the place where the last run gave up, and does the rest after that.
func (s *shardRun) grind(ctx context.Context) error {
	ctx, s.cancel = context.WithCancelCause(ctx)
	defer s.cancel(nil)
	from := *s.cut
	s.last = from
	before, err := s.read(ctx, from, true)
	if before && err == nil {
		s.wg.Wait()
		_, err = s.read(ctx, from, false)
	}
	s.wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	switch {
	case err == nil: // all were tried
		*s.cut = storage.MarkKey{}
		return s.left
	case errors.Is(err, errGaveUp):
		*s.cut = s.last
		return s.left
	}
	return err
}

// read starts the work whose last mark is after from, or the work whose last mark is not. It reports
// whether there is work of the other kind.
func (s *shardRun) read(ctx context.Context, from storage.MarkKey, after bool) (others bool, _ error) {
	for w, err := range s.cache.Read(ctx, s.partition) {
		if storage.IsAway(err) {
			return others, leftOver(err)
		}
		if err != nil {
			return others, err
		}
		at := w.Marks[len(w.Marks)-1].Key()
		if (at.Compare(from) > 0) != after {
			others = true
			continue
		}
		select {
		case g := <-s.free:
			if s.gaveUp() {
				s.free <- g
				return others, errGaveUp
			}
			s.last = at
			s.wg.Go(func() {
				g.lease = s.lease
				s.ended(s.finish(ctx, g, w))
				s.free <- g
			})
		case <-ctx.Done():
			return others, context.Cause(ctx)
		}
	}
	return others, nil
}

func (s *shardRun) gaveUp() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inRow >= mostLeft
}

// ended notes how a block ended.
func (s *shardRun) ended(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, errLeft):
		if s.left == nil {
			s.left = err
		}
		s.inRow++
	case err != nil:
		s.cancel(err)
	default:
		s.inRow = 0
	}
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
	v := s.recovery.Judge(w)
	if v == recovery.Expired {
		// A drop is final, and if the clock has gone wrong since the last heartbeat all work looks
		// expired. So the store confirms the clock first, and Judge decides again by a confirmed
		// clock.
		if err := s.store.CheckFit(ctx); err != nil {
			return leftOver(fmt.Errorf("%d marks of slice %s are not dropped: %w", len(w.Marks), w.Slice, err))
		}
		v = s.recovery.Judge(w)
	}
	err := s.try(ctx, g, w, v)
	switch {
	case err == nil && v == recovery.Expired:
		s.report(ctx, s.key, w.Block.Start, coded(Expired, w.Slice, "%d marks of slice %s dropped: %s", len(w.Marks), w.Slice, v))
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
		return s.orLeave(ctx, fmt.Errorf("%w, because of %w", rerr, err))
	}
	s.rescheduled.Add(1)
	s.report(ctx, s.key, w.Block.Start, fmt.Errorf("block of slice %s put off: %w", w.Slice, err))
	return nil
}

// try grinds a block, more than once if that may help.
func (s *shardRun) try(ctx context.Context, g *grind, w *cache.Work, v recovery.Verdict) error {
	err := g.block(ctx, w, v)
	for attempt := 1; err != nil && attempt < s.opts.Attempts && !stops(ctx, err); attempt++ {
		if storage.IsAway(err) && s.away.Load() >= mostAway {
			break
		}
		if err := s.clk.Sleep(ctx, s.opts.Backoff<<(attempt-1)); err != nil {
			return err
		}
		err = g.block(ctx, w, v)
	}
	return err
}
