package app

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/throttle"
)

// clockKeeper is a store that doubts the clock by itself.
type clockKeeper interface {
	// ClockDoubt says why nothing expires for now, nil when the clock is believed.
	ClockDoubt() error
	// ConfirmClock has it believed as it is.
	ConfirmClock(ctx context.Context) error
}

// sayDoubtEvery is how often the log has that the clock is doubted.
const sayDoubtEvery = time.Hour

// doubts says now and again that the clock is doubted, and once that it is no more.
func (s *server) doubts() func() {
	keeper, ok := s.engine.store.(clockKeeper)
	if !ok {
		return func() {}
	}
	doubted, said := false, throttle.New(s.clk, sayDoubtEvery)
	return func() {
		err := keeper.ClockDoubt()
		if err != nil {
			if _, pass := said.Pass(); pass {
				s.log.Warn("nothing expires: set the clock, or confirm it by `quern settings confirm-clock`; "+
					"while it is ahead, samples with right times may be rejected as too old", "err", err)
			}
		} else if doubted {
			s.log.Info("the clock is believed again")
		}
		doubted = err != nil
	}
}

// confirms is the endpoint by which somebody says that the clock is right.
func (s *server) confirms() api.Registrar {
	var confirm func(context.Context) error
	if keeper, ok := s.engine.store.(clockKeeper); ok {
		confirm = keeper.ConfirmClock
	}
	return api.NewConfirmClock(confirm, s.cfg.EnableAdminAPI)
}

// ConfirmClock has a server of the embedded store believe its clock.
func ConfirmClock(ctx context.Context, cfg config.Status, stdout, _ io.Writer) error {
	reply, err := ask(ctx, cfg.URL, api.ConfirmClockPath, nil)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer reply.Close()
	fmt.Fprintln(stdout, "The clock is confirmed: rows expire by it.")
	return nil
}
