package demo

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/quern/quern/internal/app/terminal"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// historySpan is the length of the generated history: enough for a whole day's roll-up.
const historySpan = 26 * time.Hour

// Begin returns when a history that ends at a time begins.
func (g *Generator) Begin(end time.Time) time.Time {
	return end.Add(-historySpan).Truncate(g.Interval())
}

// History is the part of the demo's data that a store lacks.
type History struct {
	// From is the time of the first report that is lacking.
	From time.Time
	// Dir is the store's directory, Out where to tell people what happens. Wall measures how long that takes.
	Dir  string
	Out  io.Writer
	Wall clock.Clock

	g    *Generator
	end  time.Time
	has  holds
	last time.Time // of the reports in the store
}

// Missing returns what the store lacks of the history that ends at a time: all after the last
// report of the demo that it has, whether an earlier fill was interrupted or the server was stopped
// for a while. A store with other samples lacks nothing.
func (g *Generator) Missing(ctx context.Context, st storage.Store, end time.Time) (*History, error) {
	h := &History{From: g.Begin(end), g: g, end: end}
	var err error
	h.last, h.has, err = g.state(ctx, st, h.From, end)
	if h.has == holdsPart {
		h.From = h.last.Add(g.Interval())
	}
	return h, err
}

// Nothing returns whether nothing is lacking, and then says so.
func (h *History) Nothing() bool {
	if h.has != holdsOther && !h.From.After(h.end) {
		return false
	}
	fmt.Fprintf(h.Out, "%s already has data: the demo continues from there.\n", h.Dir)
	return true
}

// Fill has step take the reports of each time in turn. Step returns the samples that were made
// durable and the slices that were ground. The clock shows the time of the reports.
func (h *History) Fill(
	ctx context.Context, clk *clock.Simulated, step func(context.Context, []ingest.Report) (accepted, ground int, err error),
) error {
	started := h.Wall.Now()
	every := h.g.Interval()
	left := h.end.Sub(clk.Now()).Truncate(every)
	if h.has == holdsPart {
		fmt.Fprintf(h.Out, "%s has reports up to %s: the demo continues from there.\n", h.Dir, h.last.Format(time.RFC3339))
	}
	fmt.Fprintf(h.Out, "Generating %s of reports of %d series, at one report per source every %s.\n",
		metric.SpanText(left), h.g.Series(), metric.SpanText(every))
	bar := terminal.NewBar(h.Out, int64(left/every)+1, "ingest and roll-up")
	samples, runs := 0, 0
	for ; !clk.Now().After(h.end); clk.Set(clk.Now().Add(every)) {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped while generating the demo's data: %s holds part of it, and the next start continues from there", h.Dir)
		}
		accepted, ground, err := step(ctx, h.g.Reports(clk.Now().UnixMilli()))
		if err != nil {
			return fmt.Errorf("demo at %s: %w", clk.Now().Format(time.RFC3339), err)
		}
		samples += accepted
		runs += ground
		if err := bar.Add(1); err != nil {
			return err
		}
	}
	took := h.Wall.Now().Sub(started)
	fmt.Fprintf(h.Out, "%d samples were made durable and %d slices ground in %s.\n", samples, runs, took.Round(100*time.Millisecond))
	return nil
}

// holds says what a store has of the demo.
type holds int

const (
	holdsNothing holds = iota // nothing, or only reports older than what is generated
	holdsPart                 // reports of the demo, up to some time
	holdsOther                // other data
)

// probe is the number of sources to look at: one source may be silent for two hours.
const probe = 12

// state finds the last report of the demo that arrived between begin and end.
func (g *Generator) state(ctx context.Context, st storage.Store, begin, end time.Time) (last time.Time, has holds, err error) {
	ids, err := st.LeasedIDs(ctx)
	if err != nil || ids.Len() == 0 {
		return last, holdsNothing, err
	}
	own := map[metric.ScheduleID]bool{}
	var within blocks.Range
	for _, source := range g.Sources(probe) {
		for s, err := range st.SourceSchedules(ctx, source) {
			if err != nil {
				return last, holdsNothing, err
			}
			if len(own) == 0 {
				within = blocks.Range{Start: s.ID, End: s.ID + 1}
			}
			own[s.ID] = true
			within = blocks.Range{Start: min(within.Start, s.ID), End: max(within.End, s.ID+1)}
		}
	}
	if len(own) == 0 {
		return last, holdsOther, nil
	}
	// Search backwards hour by hour: the newest hour with samples holds the last report.
	lastMs := int64(math.MinInt64)
	oldest := begin.Add(-time.Duration(st.Settings().Ladder.WidthMs(metric.Raw+1)) * time.Millisecond)
	for to := end.Add(time.Hour).Truncate(time.Hour); to.After(oldest) && lastMs == math.MinInt64; to = to.Add(-time.Hour) {
		for c, err := range st.RawChunks(ctx, within, to.Add(-time.Hour).UnixMilli(), to.UnixMilli()) {
			if err != nil {
				return last, holdsNothing, err
			}
			samples, err := blocks.DecodeSamples(nil, c.Data)
			if err != nil {
				return last, holdsNothing, err
			}
			for _, s := range samples {
				if own[s.Schedule] {
					lastMs = max(lastMs, s.TimeMs)
				}
			}
		}
	}
	if lastMs < begin.UnixMilli() {
		return last, holdsNothing, nil
	}
	return time.UnixMilli(lastMs).UTC(), holdsPart, nil
}
