package app

import (
	"context"
	"fmt"
	"time"

	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/app/hostagent"
	"github.com/quern/quern/internal/ingest"
)

// hostMetricsInterval is the time between two collections of the host's metrics.
const hostMetricsInterval = 10 * time.Second

// hostMetrics runs the agent inside the server's process.
func (s *server) hostMetrics(ctx context.Context) {
	kept, err := spool.Open("/", spool.Options{FS: spool.Memory(), Clock: s.clk, Logger: s.log, MaxBytes: 16 << 20})
	if err != nil {
		s.log.Warn("host metrics are not collected", "err", err)
		return
	}
	agent.New(agent.Parts{
		Adaptors: []adaptor.Configured{{Adaptor: adaptor.NewHost(hostMetricsInterval)}}, Output: adaptor.NewOutput(kept, s.clk, s.log, hostagent.HostName(s.cfg.Source)),
		Sender: &localSender{ingest: s.engine.Ingest}, Clock: s.clk, Logger: s.log,
	}, agent.Options{}).Run(ctx)
}

// localSender delivers to this process's own ingest.
type localSender struct{ ingest *ingest.Ingest }

// Send implements agent.Sender.
func (l *localSender) Send(ctx context.Context, b agent.Batch) error {
	var batch ingest.Batch
	if err := b.Decode(&batch); err != nil {
		return fmt.Errorf("%w: %w", agent.ErrRefused, err)
	}
	res, err := l.ingest.Append(ctx, batch.Reports())
	if err != nil {
		return fmt.Errorf("append host metrics: %w", err)
	}
	if len(res.Rejected) == 0 {
		return nil
	}
	return &agent.RejectedError{Total: len(res.Rejected), Message: res.Rejected[0].Message}
}
