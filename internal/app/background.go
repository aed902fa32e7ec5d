package app

import (
	"context"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/throttle"
)

const (
	// heartbeatEvery and heartbeatTTL show that this worker lives.
	heartbeatEvery = 10 * time.Second
	heartbeatTTL   = 30 * time.Second
	// refreshEvery is how soon a series that another process has taken is found.
	refreshEvery = 5 * time.Second
	// warnEvery is how often is logged what goes on failing.
	warnEvery = time.Minute
)

// aggregation grinds what is due, and has what has expired removed after each pass.
func (s *server) aggregation(ctx context.Context) {
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

// refreshes keeps the label index up with the series that other processes register.
func (s *server) refreshes(ctx context.Context) {
	s.every(ctx, refreshEvery, "series of other processes not read", func(ctx context.Context) error {
		return s.engine.index.Refresh(ctx, s.engine.store)
	})
}

// heartbeats shows that this worker lives. Where the store is a cluster, they also
// show whether it answers: an embedded one that takes no writes can still be read.
func (s *server) heartbeats(ctx context.Context) {
	w := storage.Worker{ID: s.engine.worker, Host: hostName(), StartedMs: clock.NowMs(s.clk)}
	s.every(ctx, heartbeatEvery, "no heartbeat", func(ctx context.Context) error {
		w.SeenMs = clock.NowMs(s.clk)
		err := s.engine.store.Heartbeat(ctx, w, heartbeatTTL)
		switch {
		case !s.shared() || ctx.Err() != nil:
		case storage.IsAway(err):
			s.away.set(err)
		default:
			s.away.set(nil)
		}
		return err
	})
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
