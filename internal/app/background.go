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
	// settleEvery is how soon the chunks of a failed commit are written again.
	settleEvery = time.Second
	// warnEvery is the minimum time between two log lines about a failure that lasts.
	warnEvery = time.Minute
)

// aggregation grinds what is due, and expires rows after each pass.
func (s *server) aggregation(ctx context.Context) {
	// If this worker's name belongs to another process, the worker must learn so before its first
	// run. heartbeats logs failures.
	_ = s.engine.Member.Beat(ctx)
	rollup.NewAggregator(s.engine.Runner, s.engine.Cache.Timing(), s.engine.Store.Expire).Run(ctx)
}

// seals seals the blocks of a slice when its grace has passed. The rest of the delay remains before
// the run.
func (s *server) seals(ctx context.Context) {
	ladder, grace := s.engine.ladder, s.engine.Cache.Timing().Grace
	for {
		now := s.clk.Now()
		next := time.UnixMilli(ladder.SliceAt(metric.Raw, now.Add(-grace).UnixMilli()).EndMs).Add(grace)
		if s.clk.Sleep(ctx, next.Sub(now)) != nil {
			return
		}
		if err := s.engine.Ingest.Seal(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("seal failed; blocks will be ground from raw", "err", err)
		}
	}
}

// settles writes the chunks of failed commits again, even if no other commit follows.
func (s *server) settles(ctx context.Context) {
	s.every(ctx, settleEvery, "cannot yet rewrite the chunks of a failed commit", s.engine.Ingest.Settle)
}

// refreshes adds the series that other processes register to the label index.
func (s *server) refreshes(ctx context.Context) {
	s.every(ctx, query.RefreshEvery, "label index refresh failed", func(ctx context.Context) error {
		return s.engine.index.Refresh(ctx, s.engine.Store)
	})
}

// heartbeats shows the others that this worker lives, and at the end that it leaves. With a cluster
// the heartbeats also show whether the store answers. An embedded store that accepts no writes can
// still be read.
func (s *server) heartbeats(ctx context.Context) {
	told, doubts := false, s.doubts()
	s.every(ctx, s.engine.Member.Every(), "heartbeat failed", func(ctx context.Context) error {
		err := s.engine.Member.Beat(ctx)
		doubts()
		unfit := errors.Is(err, storage.ErrConflict) || errors.Is(err, storage.ErrSettings)
		if unfit && !told {
			s.recordError(ctx, "worker", err)
		}
		if unfit || err == nil {
			told = unfit
		}
		// A wrong clock would put samples into slices that are already ground. A heartbeat without
		// an answer did not check the clock, so the last result stays. A heartbeat that is refused
		// only for the worker's name did check it.
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
	if err := s.engine.Member.Leave(leave); err != nil {
		s.log.Debug("last heartbeat failed", "err", err)
	}
}

// metadataEvery is how often this process stores its metadata of metrics and reads that of others.
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

// recordError stores an error among those that the status shows.
func (s *server) recordError(ctx context.Context, component string, err error) {
	if rerr := s.engine.Store.RecordError(ctx, storage.ComponentError{
		Component: component, Worker: s.engine.Member.ID(), TimeMs: clock.NowMs(s.clk), Start: -1, Message: err.Error(),
	}); rerr != nil {
		s.log.Warn("cannot record an error", "err", rerr)
	}
}

// every calls do repeatedly, with a pause of span, until ctx is done, and logs failures.
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
