package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/quern/quern/internal/client"
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

// confirmPath has the clock of a server confirmed.
const confirmPath = "/api/v1/clock/confirm"

// confirms is the endpoint for that.
type confirms struct{ keeper clockKeeper }

// Register implements api.Registrar.
func (c confirms) Register(mux *http.ServeMux) {
	mux.HandleFunc("POST "+confirmPath, func(w http.ResponseWriter, r *http.Request) {
		if err := c.keeper.ConfirmClock(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// ConfirmClock has a server of the embedded store believe its clock.
func ConfirmClock(ctx context.Context, cfg config.Status, stdout, _ io.Writer) error {
	server := client.Client{URL: cfg.URL}
	resp, err := server.Do(ctx, http.MethodPost, confirmPath, nil)
	if err != nil {
		return stopped(ctx, err, "stopped")
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return errors.New(server.Name() + " does not confirm its clock: it is no server of an embedded store")
	}
	fmt.Fprintln(stdout, "The clock is confirmed: rows expire by it.")
	return nil
}
