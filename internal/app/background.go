package app

import (
	"context"
	"errors"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/throttle"
)

const (
	// settleEvery is how soon what a commit that failed may have left is written again.
	settleEvery = time.Second
	// warnEvery is how often is logged what goes on failing.
	warnEvery = time.Minute
)

// aggregation grinds what is due, and has what has expired removed after each pass.
func (s *server) aggregation(ctx context.Context) {
	// Whoever goes by another's name must have heard of it before. heartbeats says when it fails.
	_ = s.engine.member.Beat(ctx)
	rollup.NewAggregator(s.engine.runner, s.engine.timing, func(ctx context.Context) error {
		return s.engine.store.Expire(ctx, clock.NowMs(s.clk))
	}).Run(ctx)
}

// seals tells ingest when the grace of a slice has passed, which leaves it the rest
// of the delay before the run.
func (s *server) seals(ctx context.Context) {
	ladder, grace := s.engine.ladder, s.engine.timing.Grace
	for {
		now := s.clk.Now()
		next := time.UnixMilli(ladder.SliceAt(metric.Raw, now.Add(-grace).UnixMilli()).EndMs).Add(grace)
		if s.clk.Sleep(ctx, next.Sub(now)) != nil {
			return
		}
		if err := s.engine.ingest.Seal(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("blocks not sealed: they are ground from raw", "err", err)
		}
	}
}

// settles has ingest write again what a commit that failed may have left, also while no other commit follows.
func (s *server) settles(ctx context.Context) {
	s.every(ctx, settleEvery, "what a commit that failed may have left is not written again yet", s.engine.ingest.Settle)
}

// refreshes keeps the label index up with the series that other processes register.
func (s *server) refreshes(ctx context.Context) {
	s.every(ctx, query.RefreshEvery, "series of other processes not read", func(ctx context.Context) error {
		return s.engine.index.Refresh(ctx, s.engine.store)
	})
}

// heartbeats shows that this worker lives, and at the end that it goes. Where the store is a cluster, they also
// show whether it answers: an embedded one that takes no writes can still be read.
func (s *server) heartbeats(ctx context.Context) {
	told, doubts := false, s.doubts()
	s.every(ctx, s.engine.member.Every(), "no heartbeat", func(ctx context.Context) error {
		err := s.engine.member.Beat(ctx)
		doubts()
		unfit := errors.Is(err, storage.ErrConflict) || errors.Is(err, storage.ErrSettings)
		if unfit && !told {
			s.recordError(ctx, "worker", err)
		}
		if unfit || err == nil {
			told = unfit
		}
		// By a wrong clock samples would be put into slices that have been ground. A heartbeat without an answer has not
		// looked at the clock: what is known of it stays. One that is refused for the worker's name only has.
		switch {
		case errors.Is(err, storage.ErrSettings):
			s.unfit.set(err)
		case err == nil, errors.Is(err, storage.ErrConflict) && !storage.IsAway(err):
			s.unfit.set(nil)
		}
		switch {
		case !s.shared() || ctx.Err() != nil:
		case storage.IsAway(err):
			s.away.set(err)
		default:
			s.away.set(nil)
		}
		return err
	})
	leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	if err := s.engine.member.Leave(leave); err != nil {
		s.log.Debug("no last heartbeat", "err", err)
	}
}

// metadataEvery is how soon what is said of metrics is in the store, and others' is seen.
const metadataEvery = time.Minute

func (s *server) metadata(ctx context.Context) {
	s.every(ctx, metadataEvery, "metadata", func(ctx context.Context) error {
		err := s.engine.catalog.Flush(ctx)
		if s.shared() {
			err = errors.Join(err, s.engine.catalog.Refresh(ctx))
		}
		return err
	})
}

// recordError keeps an error among those that the status shows.
func (s *server) recordError(ctx context.Context, component string, err error) {
	if rerr := s.engine.store.RecordError(ctx, storage.ComponentError{
		Component: component, Worker: s.engine.member.ID(), TimeMs: clock.NowMs(s.clk), Start: -1, Message: err.Error(),
	}); rerr != nil {
		s.log.Warn("error not recorded", "err", rerr)
	}
}

// every does something now and again until ctx is done, and says when it fails.
func (s *server) every(ctx context.Context, span time.Duration, failure string, do func(context.Context) error) {
	warnings := throttle.New(s.clk, warnEvery)
	for {
		if err := do(ctx); err != nil && ctx.Err() == nil {
			if skipped, ok := warnings.Pass(); ok {
				s.log.Warn(failure, "more_since_last", skipped, "err", err)
			}
		}
		if s.clk.Sleep(ctx, span) != nil {
			return
		}
	}
}
