package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// perSource is the number of schedules of a source. Each of its reports has all of them.
const perSource = 100

// fleet is a set of sources that report gauges. Each gauge walks at random between 10.00 and 99.99,
// by up to 1.00 per report, as load, temperatures and latencies do. A value always has five
// characters, so that a JSON report keeps its length. A fleet is not safe for concurrent use.
type fleet struct {
	first int // number of the first source
	names []string
	rng   *rand.Rand
	cents []int32 // by source, then metric
	round []ingest.Report
}

const (
	minCents, maxCents = 1000, 9999
	stepCents          = 100
)

func newFleet(first, sources int) *fleet {
	f := &fleet{
		first: first, names: make([]string, sources),
		rng:   rand.New(rand.NewPCG(1, uint64(first))),
		cents: make([]int32, sources*perSource),
	}
	for i := range f.names {
		f.names[i] = sourceName(first + i)
	}
	for i := range f.cents {
		f.cents[i] = minCents + f.rng.Int32N(maxCents-minCents+1)
	}
	return f
}

func sourceName(n int) string { return fmt.Sprintf("host-%05d", n) }

// measurementsOf returns a report's measurements without times and values: 20 metrics of 5 units.
func measurementsOf() []ingest.Measurement {
	ms := make([]ingest.Measurement, perSource)
	for i := range ms {
		ms[i] = ingest.Measurement{
			Metric: fmt.Sprintf("app_gauge_%02d", i/5),
			Labels: []metric.Label{{Name: "unit", Value: string(rune('0' + i%5))}},
		}
	}
	return ms
}

// next returns a gauge's next value, in hundredths.
func (f *fleet) next(source, i int) int32 {
	c := &f.cents[source*perSource+i]
	*c = min(maxCents, max(minCents, *c+f.rng.Int32N(2*stepCents+1)-stepCents))
	return *c
}

// fill writes the source's next report to r.
func (f *fleet) fill(r *ingest.Report, source int, tMs int64) {
	if r.Measurements == nil {
		r.Measurements = measurementsOf()
	}
	r.Source = f.names[source]
	for i := range r.Measurements {
		r.Measurements[i].TimeMs = tMs
		r.Measurements[i].Value = float64(f.next(source, i)) / 100
	}
}

// sourcesPerCall is the number of sources whose reports go to ingest together.
const sourcesPerCall = 1000

// report makes each source report once at the clock's time, with one call of Append per
// sourcesPerCall sources.
func (f *fleet) report(ctx context.Context, in *ingest.Ingest, clk clock.Clock) error {
	if f.round == nil {
		f.round = make([]ingest.Report, min(len(f.names), sourcesPerCall))
	}
	for from := 0; from < len(f.names); from += sourcesPerCall {
		reports := f.round[:min(sourcesPerCall, len(f.names)-from)]
		for i := range reports {
			f.fill(&reports[i], from+i, clock.NowMs(clk))
		}
		if err := appendAll(ctx, in, reports); err != nil {
			return err
		}
	}
	return nil
}

// appendAll appends reports. It returns an error unless all measurements are accepted.
func appendAll(ctx context.Context, in *ingest.Ingest, reports []ingest.Report) error {
	res, err := in.Append(ctx, reports)
	if err != nil {
		return err
	}
	if len(res.Rejected) > 0 {
		return fmt.Errorf("%d measurements rejected, the first because %s", len(res.Rejected), res.Rejected[0].Message)
	}
	return nil
}

// historyStart is the start of simulated history, and of a slice of every bucket.
var historyStart = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// loadHour makes the sources report for one raw slice under a simulated clock, every interval,
// through ingest as in production. The rate excludes the first reports, which register the series.
func loadHour(ctx context.Context, b *bench, e *measured, clk *clock.Simulated, sources int, interval time.Duration) error {
	f := newFleet(0, sources)
	p := b.bar(sources*perSource*int(time.Hour/interval), "samples loaded")
	defer p.end()
	var registered time.Time
	for at := time.Duration(0); at < time.Hour; at += interval {
		clk.Set(historyStart.Add(at))
		if err := f.report(ctx, e.Ingest, clk); err != nil {
			return err
		}
		if at == 0 {
			registered = time.Now()
		}
		p.add(sources * perSource)
	}
	b.figures["rate"] = float64(sources*perSource) * float64(time.Hour/interval-1) / time.Since(registered).Seconds()
	// As in production: when the grace has passed, the blocks are sealed, so that they are ground
	// from the cache.
	clk.Set(historyStart.Add(time.Hour + time.Minute))
	return e.Ingest.Seal(ctx)
}
