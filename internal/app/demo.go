package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/demo"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// demoSpan is how much history the demo makes: enough for a whole day's roll-up.
const demoSpan = 26 * time.Hour

// fillDemo puts generated reports of the last 26 hours through ingest and
// aggregation, as they would have come, on a simulated clock that ends now. A store
// that has samples already is left as it is.
func fillDemo(ctx context.Context, cfg config.Config, g *demo.Generator, log *slog.Logger, out io.Writer) (err error) {
	end := time.Now().UTC()
	clk := clock.NewSimulated(end.Add(-demoSpan).Truncate(g.Interval()))
	s := setup{cfg: cfg, roles: roles{ingest: true, aggregate: true}, clk: clk, log: log}
	// When the store fails, so does the next report.
	st, err := s.openStore(ctx, func(error) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	filled, err := hasSamples(ctx, st)
	if err != nil {
		return err
	}
	if filled {
		fmt.Fprintf(out, "%s has data already: the demo goes on from there.\n", cfg.DataDir)
		return nil
	}

	// The runs' log lines would drown the progress bar.
	s.log = slog.New(slog.DiscardHandler)
	e, err := s.newEngine(ctx, st)
	if err != nil {
		return err
	}
	s.startIngest(ctx, e)
	defer func() { err = errors.Join(err, e.close(context.WithoutCancel(ctx))) }()

	fmt.Fprintf(out, "Generating %s of reports of %d series, at one report per source every %s.\n",
		config.FormatSpan(demoSpan), g.Series(), g.Interval())
	bar := newBar(out, int64(demoSpan/g.Interval()), "ingest and roll-up")
	samples, runs := 0, 0
	for ; !clk.Now().After(end); clk.Set(clk.Now().Add(g.Interval())) {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped while the demo's data was generated: %s holds a part of it; "+
				"remove the directory to have all of it next time", cfg.DataDir)
		}
		accepted, ground, err := e.step(ctx, g.Reports(clk.Now().UnixMilli()))
		if err != nil {
			return fmt.Errorf("demo at %s: %w", clk.Now().Format(time.RFC3339), err)
		}
		samples += accepted
		runs += ground
		if err := bar.Add(1); err != nil {
			return err
		}
	}
	took := time.Since(end)
	fmt.Fprintf(out, "%d samples were made durable and %d slices ground in %s.\n", samples, runs, took.Round(100*time.Millisecond))
	return nil
}

// step takes in what is reported at one simulated time, and does what is due then.
func (e *engine) step(ctx context.Context, reports []ingest.Report) (accepted, ground int, err error) {
	res, err := e.ingest.Append(ctx, reports)
	if err != nil {
		return 0, 0, err
	}
	if err := e.ingest.Seal(ctx); err != nil {
		return res.Accepted, 0, err
	}
	ground, err = e.runner.RunDue(ctx)
	return res.Accepted, ground, err
}

func hasSamples(ctx context.Context, st storage.Store) (bool, error) {
	ids, err := st.LeasedIDs(ctx)
	return ids.Len() > 0, err
}

// liveDemo goes on generating as time goes by.
func liveDemo(ctx context.Context, e *engine, g *demo.Generator, clk clock.Clock, log *slog.Logger) {
	for {
		now := clk.Now()
		next := now.Truncate(g.Interval()).Add(g.Interval())
		if clk.Sleep(ctx, next.Sub(now)) != nil {
			return
		}
		if _, err := e.ingest.Append(ctx, g.Reports(next.UnixMilli())); err != nil && ctx.Err() == nil {
			log.Warn("demo report not taken", "err", err)
		}
	}
}

// printNext says what to try with the running demo.
func printNext(out io.Writer, cfg config.Config, addr string) {
	base := "http://" + addr
	lo := cfg.Ladder.Name(metric.Raw + 1)
	hi := cfg.Ladder.Name(cfg.Ladder.Top())
	fmt.Fprintf(out, `
Quern is serving on %[1]s. Try:

  what aggregation did       curl -s %[1]s/api/v1/status/aggregation
  roll-ups of %-15[2]scurl -s -G %[1]s/api/v1/rollups -d 'match[]={source="web-001"}' -d level=%[2]s -d start=-26h
  the same for %-14[3]scurl -s -G %[1]s/api/v1/rollups -d 'match[]={source="web-001"}' -d level=%[3]s -d start=-48h
  20 points of 26 hours      curl -s -G %[1]s/api/v1/points -d 'match[]={source="web-001"}' -d start=-26h -d buckets=20
  PromQL, as Grafana asks    curl -s -G %[1]s/api/v1/query --data-urlencode 'query=topk(3, avg_over_time(cpu_usage_ratio[1h]))'
  this host, live            curl -s -G %[1]s/api/v1/latest -d 'match[]={__name__=~"host_.*"}'
  send a report              curl -s %[1]s/api/v1/reports -H 'Content-Type: application/json' -d '{"source":"%[4]s","measurements":[{"metric":"tea_temperature_celsius","value":71.5}]}'
  read it back               curl -s -G %[1]s/api/v1/export -d 'match[]=tea_temperature_celsius'
  Quern's own metrics        curl -s %[1]s/metrics

Ctrl-C stops it; data rests in %[5]s.
`, base, lo, hi, hostName(), cfg.DataDir)
}

func hostName() string {
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return "localhost"
}
