package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/quern/quern/internal/app/demo"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
)

// fillDemo sends the generated reports that the store lacks through ingest and aggregation, as they
// would have arrived, on a simulated clock.
func fillDemo(ctx context.Context, cfg config.Config, g *demo.Generator, end time.Time, log *slog.Logger, out io.Writer) (err error) {
	clk := clock.NewSimulated(g.Begin(end))
	s := setup{cfg: cfg, roles: roles{ingest: true, aggregate: true}, clk: clk, log: log}
	// onFatal does nothing: when the store fails, the next report fails too.
	st, err := s.openStore(ctx, func(error) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	history, err := g.Missing(ctx, st, end)
	if err != nil {
		return err
	}
	history.Dir, history.Out, history.Wall = cfg.DataDir, out, clock.System{}
	clk.Set(history.From)
	if history.Nothing() {
		return nil
	}

	// The log lines of the runs would bury the progress bar.
	s.log = slog.New(slog.DiscardHandler)
	e, err := s.newEngine(ctx, st)
	if err != nil {
		return err
	}
	s.startIngest(ctx, e, nil)
	defer func() { err = errors.Join(err, e.finish(context.WithoutCancel(ctx))) }()
	return history.Fill(ctx, clk, e.step)
}

// step ingests the reports of one simulated time, and runs what is due then.
func (p *process) step(ctx context.Context, reports []ingest.Report) (accepted, ground int, err error) {
	res, err := p.Ingest.Append(ctx, reports)
	if err != nil {
		return 0, 0, err
	}
	if err := p.Ingest.Seal(ctx); err != nil {
		return res.Accepted, 0, err
	}
	ground, err = p.Runner.RunDue(ctx)
	return res.Accepted, ground, err
}

// liveDemo generates reports in real time.
func liveDemo(ctx context.Context, e *process, g *demo.Generator, clk clock.Clock, log *slog.Logger) {
	for {
		now := clk.Now()
		next := now.Truncate(g.Interval()).Add(g.Interval())
		if clk.Sleep(ctx, next.Sub(now)) != nil {
			return
		}
		if _, err := e.Ingest.Append(ctx, g.Reports(next.UnixMilli())); err != nil && ctx.Err() == nil {
			log.Warn("demo report not accepted", "err", err)
		}
	}
}

func hostName() string {
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return "localhost"
}
