package app

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/agent/hostmetrics"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/wire"
)

// Agent measures this host and sends reports to a server until ctx is done.
func Agent(ctx context.Context, cfg config.Agent, _, stderr io.Writer) error {
	log := cfg.Logger(stderr)
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	clk := clock.System{}
	sender, err := agent.NewHTTPSender(cfg.URL, server.HTTP, clk)
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Parts{Collector: hostmetrics.New(), Sender: sender, Clock: clk, Logger: log}, agent.Options{
		Source: orHostName(cfg.Source), Interval: cfg.Interval, QueueLimit: cfg.QueueLimit,
	})
	if err != nil {
		return err
	}
	log.Info("measuring", "source", orHostName(cfg.Source), "interval", cfg.Interval, "url", server.Name())
	err = a.Run(ctx)
	st := a.Stats()
	log.Info("stopped", "delivered", st.Delivered, "rejected", st.Rejected, "refused", st.Refused, "dropped", st.Dropped)
	return err
}

// hostMetricsInterval is the time between two collections of the host's metrics.
const hostMetricsInterval = 10 * time.Second

// hostMetrics runs the agent inside the server's process.
func (s *server) hostMetrics(ctx context.Context) {
	a, err := agent.New(agent.Parts{
		Collector: hostmetrics.New(), Sender: &localSender{ingest: s.engine.Ingest}, Clock: s.clk, Logger: s.log,
	}, agent.Options{
		Source: orHostName(s.cfg.Source), Interval: hostMetricsInterval,
	})
	if err == nil {
		err = a.Run(ctx)
	}
	if err != nil {
		s.log.Warn("host metrics stopped", "err", err)
	}
}

// localSender delivers to this process's own ingest.
type localSender struct {
	ingest *ingest.Ingest
	buf    []ingest.Measurement
}

// Send implements agent.Sender.
func (l *localSender) Send(ctx context.Context, r agent.Report) error {
	l.buf = l.buf[:0]
	for _, m := range r.Measurements {
		l.buf = append(l.buf, ingest.Measurement(m))
	}
	res, err := l.ingest.Append(ctx, []ingest.Report{{Source: r.Source, Measurements: l.buf}})
	if err != nil {
		return fmt.Errorf("append host metrics: %w", err)
	}
	if len(res.Rejected) == 0 {
		return nil
	}
	rejected := &agent.RejectedError{Total: len(res.Rejected)}
	for _, rej := range res.Rejected {
		rejected.Rejected = append(rejected.Rejected, wire.Rejection{Index: rej.Index, Reason: string(rej.Reason), Message: rej.Message})
	}
	return rejected
}

func orHostName(source string) string {
	if source != "" {
		return source
	}
	return hostName()
}
