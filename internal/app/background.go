package app

import (
	"context"
	"errors"
	"time"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/documents/metadata"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// warnEvery is the minimum time between two log lines about a failure that lasts.
const warnEvery = time.Minute

// start starts the background work, which runs until ctx is done.
func (s *server) start(ctx context.Context) {
	often := func(span time.Duration, failure string, do func(context.Context) error) {
		s.background.Go(func() { s.every(ctx, span, failure, do) })
	}
	s.background.Go(func() { s.heartbeats(ctx) })
	if s.roles.aggregate {
		s.background.Go(func() { s.aggregation(ctx) })
	}
	if s.roles.ingest {
		s.background.Go(func() { s.seals(ctx) })
		// The chunks of failed commits are written again, even if no other commit follows.
		often(ingest.SettleEvery, "cannot yet rewrite the chunks of a failed commit", s.engine.Ingest.Settle)
		// What this process has learnt of metrics is stored, and what others have is read.
		often(metadata.SyncEvery, "metadata", s.engine.catalog.Sync)
		if s.shared() {
			s.background.Go(func() { s.refreshes(ctx) })
		}
	}
	often(access.RefreshEvery, "cannot learn of changed tokens; the known ones stay valid", s.tokens.Refresh)
	if s.graphite != nil {
		s.log.Info("serving Graphite", "graphite_address", s.lines.Addr().String())
		s.background.Go(func() {
			if err := s.graphite.Serve(s.linesOverTLS(limits.Limit(s.lines, s.accepts.graphite, s.clients, nil))); err != nil {
				s.log.Error("Graphite server failed", "err", err)
			}
		})
	}
	if s.cfg.HostMetrics {
		s.background.Go(func() { s.hostMetrics(ctx) })
	}
	if s.demo != nil {
		s.background.Go(func() { liveDemo(ctx, s.engine, s.demo, s.clk, s.log) })
	}
}

// aggregation grinds what is due, and expires rows after each pass.
func (s *server) aggregation(ctx context.Context) {
	// A worker whose clock is wrong must learn so before its first run. heartbeats logs failures.
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
	recorded, errorLog := false, storage.NewErrorLog(s.engine.Store, "worker", s.engine.Member.ID())
	s.every(ctx, s.engine.Member.Every(), "heartbeat failed", func(ctx context.Context) error {
		err := s.engine.Member.Beat(ctx)
		unfit := errors.Is(err, storage.ErrSettings)
		if unfit && !recorded {
			e := storage.ComponentError{TimeMs: clock.NowMs(s.clk), Start: -1, Message: err.Error()}
			if err := errorLog.Record(ctx, e); err != nil {
				s.log.Warn("cannot record an error", "err", err)
			}
		}
		if unfit || err == nil {
			recorded = unfit
			s.unfit.set(err) // a wrong clock would put samples into slices that are already ground
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

// every calls do repeatedly, with a pause of span, until ctx is done, and logs failures.
func (s *server) every(ctx context.Context, span time.Duration, failure string, do func(context.Context) error) {
	warnings := limits.NewThrottle(s.clk, warnEvery)
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
