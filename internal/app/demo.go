package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/quern/quern/internal/app/demo"
	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// demoSources is the number of the demo's sources, and demoSpan the length of its history: enough for a whole day's roll-up.
const (
	demoSources = 200
	demoSpan    = 26 * time.Hour
)

// fillDemo sends generated reports through ingest and aggregation of an empty store, as they would have arrived, on a
// simulated clock.
func fillDemo(ctx context.Context, cfg config.Config, g *demo.Generator, end time.Time, log *slog.Logger, out io.Writer) (err error) {
	every := g.Interval()
	clk := clock.NewSimulated(end.Add(-demoSpan).Truncate(every))
	s := setup{cfg: cfg, roles: roles{ingest: true, aggregate: true}, clk: clk, log: log}
	// onFatal does nothing: when the store fails, the next report fails too.
	st, err := s.openStore(ctx, func(error) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	if ids, err := st.LeasedIDs(ctx); err != nil {
		return err
	} else if ids.Len() > 0 {
		fmt.Fprintf(out, "%s already has data: the demo goes on from now.\n", cfg.DataDir)
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
	left := end.Sub(clk.Now()).Truncate(every)
	fmt.Fprintf(out, "Generating %s of reports of %d series, at one report per source every %s.\n",
		metric.SpanText(left), g.Series(), metric.SpanText(every))
	bar := terminal.NewBar(out, int64(left/every)+1, "ingest and roll-up")
	samples, runs := 0, 0
	for ; !clk.Now().After(end); clk.Set(clk.Now().Add(every)) {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped while generating the demo's data: %s holds part of it; remove it to have all of it", cfg.DataDir)
		}
		accepted, ground, err := e.step(ctx, g.Reports(clk.Now().UnixMilli()))
		if err != nil {
			return fmt.Errorf("demo at %s: %w", clk.Now().Format(time.RFC3339), err)
		}
		samples, runs = samples+accepted, runs+ground
		if err := bar.Add(1); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d samples were made durable and %d slices ground.\n", samples, runs)
	return nil
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
