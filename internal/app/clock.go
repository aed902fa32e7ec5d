package app

import (
	"context"
	"time"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/throttle"
)

// clockKeeper is a store that doubts the clock by itself.
type clockKeeper interface {
	// ClockDoubt returns why nothing expires for now, or nil if the store believes the clock.
	ClockDoubt() error
	// ConfirmClock makes the store believe the clock as it is.
	ConfirmClock(ctx context.Context) error
}

// sayDoubtEvery is the minimum time between two log lines about a doubted clock.
const sayDoubtEvery = time.Hour

// doubts returns a function that logs now and then that the clock is doubted, and once that it is
// believed again.
func (s *server) doubts() func() {
	keeper, ok := s.engine.Store.(clockKeeper)
	if !ok {
		return func() {}
	}
	doubted, said := false, throttle.New(s.clk, sayDoubtEvery)
	return func() {
		err := keeper.ClockDoubt()
		if err != nil {
			if _, pass := said.Pass(); pass {
				s.log.Warn("clock not trusted, nothing expires: set the clock, or confirm it with `quern settings confirm-clock`; "+
					"while it is ahead, samples with correct times may be rejected as too old", "err", err)
			}
		} else if doubted {
			s.log.Info("clock trusted again")
		}
		doubted = err != nil
	}
}

// confirms returns the endpoint that confirms the clock.
func (s *server) confirms() api.Registrar {
	var confirm func(context.Context) error
	if keeper, ok := s.engine.Store.(clockKeeper); ok {
		confirm = keeper.ConfirmClock
	}
	return api.NewConfirmClock(confirm, s.cfg.EnableAdminAPI, s.cfg.AllowedHosts)
}
