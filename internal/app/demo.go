package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/demo"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// demoSpan is the length of the generated history: enough for a whole day's roll-up.
const demoSpan = 26 * time.Hour

// fillDemo sends generated reports of the 26 hours before end through ingest and aggregation, as
// they would have arrived, on a simulated clock. If the store has reports of the demo already,
// fillDemo continues after the last one, whether an earlier fill was interrupted or the server was
// stopped for a while. It leaves a store with other samples as it is.
func fillDemo(ctx context.Context, cfg config.Config, g *demo.Generator, end time.Time, log *slog.Logger, out io.Writer) (err error) {
	started := time.Now()
	begin := end.Add(-demoSpan).Truncate(g.Interval())
	clk := clock.NewSimulated(begin)
	s := setup{cfg: cfg, roles: roles{ingest: true, aggregate: true}, clk: clk, log: log}
	// onFatal does nothing: when the store fails, the next report fails too.
	st, err := s.openStore(ctx, func(error) {})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	last, state, err := demoState(ctx, st, g, begin, end)
	if err != nil {
		return err
	}
	if state == demoResumes {
		clk.Set(last.Add(g.Interval()))
	}
	if state == demoForeign || clk.Now().After(end) {
		fmt.Fprintf(out, "%s has data already: the demo goes on from there.\n", cfg.DataDir)
		return nil
	}

	// The log lines of the runs would bury the progress bar.
	s.log = slog.New(slog.DiscardHandler)
	e, err := s.newEngine(ctx, st)
	if err != nil {
		return err
	}
	s.startIngest(ctx, e, nil)
	defer func() { err = errors.Join(err, e.close(context.WithoutCancel(ctx))) }()

	left := end.Sub(clk.Now()).Truncate(g.Interval())
	if state == demoResumes {
		fmt.Fprintf(out, "%s has reports up to %s: the demo goes on from there.\n", cfg.DataDir, last.Format(time.RFC3339))
	}
	fmt.Fprintf(out, "Generating %s of reports of %d series, at one report per source every %s.\n",
		metric.SpanText(left), g.Series(), metric.SpanText(g.Interval()))
	bar := newBar(out, int64(left/g.Interval())+1, "ingest and roll-up")
	samples, runs := 0, 0
	for ; !clk.Now().After(end); clk.Set(clk.Now().Add(g.Interval())) {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped while the demo's data was generated: %s holds a part of it, and the next start goes on from there",
				cfg.DataDir)
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
	took := time.Since(started)
	fmt.Fprintf(out, "%d samples were made durable and %d slices ground in %s.\n", samples, runs, took.Round(100*time.Millisecond))
	return nil
}

// step ingests the reports of one simulated time, and runs what is due then.
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

// demoHolds says what a store has of the demo.
type demoHolds int

const (
	demoEmpty   demoHolds = iota // nothing, or only reports older than what is generated
	demoResumes                  // reports of the demo, up to some time
	demoForeign                  // other data
)

// demoProbe is the number of sources to look at: one source may be silent for two hours.
const demoProbe = 12

// demoState finds the last report of the demo that arrived between begin and end.
func demoState(ctx context.Context, st storage.Store, g *demo.Generator, begin, end time.Time) (last time.Time, holds demoHolds, err error) {
	ids, err := st.LeasedIDs(ctx)
	if err != nil || ids.Len() == 0 {
		return last, demoEmpty, err
	}
	own := map[metric.ScheduleID]bool{}
	var within blocks.Range
	for _, source := range g.Sources(demoProbe) {
		for s, err := range st.SourceSchedules(ctx, source) {
			if err != nil {
				return last, demoEmpty, err
			}
			if len(own) == 0 {
				within = blocks.Range{Start: s.ID, End: s.ID + 1}
			}
			own[s.ID] = true
			within = blocks.Range{Start: min(within.Start, s.ID), End: max(within.End, s.ID+1)}
		}
	}
	if len(own) == 0 {
		return last, demoForeign, nil
	}
	// Search backwards hour by hour: the newest hour with samples holds the last report.
	lastMs := int64(math.MinInt64)
	oldest := begin.Add(-time.Duration(st.Settings().Ladder.WidthMs(metric.Raw+1)) * time.Millisecond)
	for to := end.Add(time.Hour).Truncate(time.Hour); to.After(oldest) && lastMs == math.MinInt64; to = to.Add(-time.Hour) {
		for c, err := range st.RawChunks(ctx, within, to.Add(-time.Hour).UnixMilli(), to.UnixMilli()) {
			if err != nil {
				return last, demoEmpty, err
			}
			samples, err := blocks.DecodeSamples(nil, c.Data)
			if err != nil {
				return last, demoEmpty, err
			}
			for _, s := range samples {
				if own[s.Schedule] {
					lastMs = max(lastMs, s.TimeMs)
				}
			}
		}
	}
	if lastMs < begin.UnixMilli() {
		return last, demoEmpty, nil
	}
	return time.UnixMilli(lastMs).UTC(), demoResumes, nil
}

// liveDemo generates reports in real time.
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

// printNext prints what to try with the running demo.
func printNext(out io.Writer, ladder metric.Ladder, dir, addr string) {
	base := "http://" + addr
	lo := ladder.Name(metric.Raw + 1)
	hi := ladder.Name(ladder.Top())
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
`, base, lo, hi, hostName(), dir)
}

func hostName() string {
	if h, err := os.Hostname(); err == nil {
		return h
	}
	return "localhost"
}
