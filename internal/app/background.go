package app

import (
	"context"
	"errors"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/metadata"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits/throttle"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// warnEvery is the minimum time between two log lines about a failure that lasts.
const warnEvery = time.Minute

// aggregation grinds what is due, and expires rows after each pass.
func (s *server) aggregation(ctx context.Context) {
	// If this worker's name belongs to another process, the worker must learn so before its first
	// run. heartbeats logs failures.
	_ = s.engine.Member.Beat(ctx)
	rollup.NewAggregator(s.engine.Runner, s.engine.Cache.Timing(), s.engine.Store.Expire).Run(ctx)
}

// seals seals the blocks of each slice.
func (s *server) seals(ctx context.Context) {
	for s.clk.Sleep(ctx, s.engine.Ingest.UntilSeal()) == nil {
		if err := s.engine.Ingest.Seal(ctx); err != nil && ctx.Err() == nil {
			s.log.Warn("seal failed; blocks will be ground from raw", "err", err)
		}
	}
}

// settles writes the chunks of failed commits again, even if no other commit follows.
func (s *server) settles(ctx context.Context) {
	s.every(ctx, ingest.SettleEvery, "cannot yet rewrite the chunks of a failed commit", s.engine.Ingest.Settle)
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
	told := false
	s.every(ctx, s.engine.Member.Every(), "heartbeat failed", func(ctx context.Context) error {
		err := s.engine.Member.Beat(ctx)
		unfit := errors.Is(err, storage.ErrConflict) || errors.Is(err, storage.ErrSettings)
		if unfit && !told {
			s.recordError(ctx, "worker", err)
		}
		if unfit || err == nil {
			told = unfit
		}
		// A wrong clock would put samples into slices that are already ground.
		if checked, misfit := shards.Misfit(err); checked {
			s.unfit.set(misfit)
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

// metadata stores what this process has learnt of metrics, and reads what others have.
func (s *server) metadata(ctx context.Context) {
	s.every(ctx, metadata.SyncEvery, "metadata", s.engine.catalog.Sync)
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
