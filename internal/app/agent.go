package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/agent/spool"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
)

// Agent runs adaptors and sends what they read to a server until ctx is done.
func Agent(ctx context.Context, cfg config.Agent, _, stderr io.Writer) (err error) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50) // it shares its host with what it measures: memory is worth more than processor time
	}
	log := cfg.Logger(stderr)
	adaptors, err := agentAdaptors(cfg)
	if err != nil {
		return err
	}
	server, err := cfg.Client(stderr)
	if err != nil {
		return err
	}
	clk := clock.System{}
	sender, err := agent.NewHTTPSender(cfg.URL, server.HTTP, clk)
	if err != nil {
		return err
	}
	kept, err := spool.Open(cfg.DataDir, spool.Options{Clock: clk, Logger: log, MaxBytes: cfg.SpoolBytes, MaxAge: cfg.SpoolAge})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	out := adaptor.NewOutput(kept, clk, log, orHostName(cfg.Source))
	a := agent.New(agent.Parts{Adaptors: adaptors, Output: out, Sender: sender, Clock: clk, Logger: log}, agent.Options{})
	log.Info("reading", "adaptors", len(adaptors), "source", orHostName(cfg.Source), "url", server.Name(), "waiting", a.Stats().Waiting)
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGHUP)
	defer signal.Stop(again)
	var reloading sync.WaitGroup
	reloading.Go(func() { reloadAdaptors(ctx, cfg, a, again, log) })
	a.Run(ctx)
	reloading.Wait()
	st := a.Stats()
	log.Info("stopped", "delivered", st.Delivered, "rejected", st.Rejected, "refused", st.Refused, "dropped", st.Dropped, "waiting", st.Waiting)
	return nil
}

// reloadAdaptors reads the adaptors of the file again when something is received from again, until ctx ends.
func reloadAdaptors(ctx context.Context, cfg config.Agent, a *agent.Agent, again <-chan os.Signal, log *slog.Logger) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-again:
		}
		err := cfg.Reload()
		var adaptors []adaptor.Configured
		if err == nil {
			adaptors, err = agentAdaptors(cfg)
		}
		if err != nil {
			log.Error("reload: the adaptors stay as they were", "err", err)
			continue
		}
		a.Read(ctx, adaptors)
		log.Info("reloaded", "adaptors", len(adaptors))
	}
}

// agentAdaptors returns those of the file of --config, or the host if it names none.
func agentAdaptors(cfg config.Agent) ([]adaptor.Configured, error) {
	if cfg.Adaptors.IsZero() {
		h, err := adaptor.NewHost(cfg.Interval)
		return []adaptor.Configured{{Adaptor: h}}, err
	}
	return adaptor.Parse("--config "+cfg.File, &cfg.Adaptors)
}

// CheckAgent says what an agent with this configuration would read.
func CheckAgent(_ context.Context, cfg config.Agent, stdout, _ io.Writer) error {
	adaptors, err := agentAdaptors(cfg)
	if err != nil {
		return err
	}
	for _, a := range adaptors {
		if _, err := fmt.Fprintln(stdout, a); err != nil {
			return err
		}
	}
	return nil
}

// hostMetricsInterval is the time between two collections of the host's metrics.
const hostMetricsInterval = 10 * time.Second

// hostMetrics runs the agent inside the server's process.
func (s *server) hostMetrics(ctx context.Context) {
	kept, err := spool.Open("/", spool.Options{FS: spool.Memory(), Clock: s.clk, Logger: s.log, MaxBytes: 16 << 20})
	if err != nil {
		s.log.Warn("host metrics are not collected", "err", err)
		return
	}
	host, err := adaptor.NewHost(hostMetricsInterval)
	if err != nil {
		s.log.Warn("host metrics are not collected", "err", err)
		return
	}
	agent.New(agent.Parts{
		Adaptors: []adaptor.Configured{{Adaptor: host}}, Output: adaptor.NewOutput(kept, s.clk, s.log, orHostName(s.cfg.Source)),
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

func orHostName(source string) string {
	if source != "" {
		return source
	}
	return hostName()
}
