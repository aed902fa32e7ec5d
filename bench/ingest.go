package main

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
)

const (
	ingestSources = 100
	ingestCallers = 10
	// ingestRounds are the reports of each source in one call. Commits follow one
	// another without a pause only while enough samples wait for the next one.
	ingestRounds = 40
	// ingestStep is the time between two reports of a source: short, so that what is
	// sent faster than in real time stays within the limit for times to come.
	ingestStep = 20 * time.Millisecond
)

func ingestMeasurement() measurement {
	return measurement{
		name:  "ingest-go",
		steps: []step{{"run", measureIngest}},
		rows: func(r results) []row {
			f := r["ingest-go"]
			return []row{
				atLeast("ingest, Go entry, 10,000 schedules", f["run.rate"], 2e6, " samples/s"),
				peakMemory("ingest, Go entry", f, "run", 0),
			}
		},
	}
}

func measureIngest(ctx context.Context, b *bench) (err error) {
	clk := clock.System{}
	e, err := openEngine(ctx, b, clk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()

	fleets := make([]*fleet, ingestCallers)
	var register errgroup.Group
	for i := range fleets {
		fleets[i] = newFleet(i*ingestSources/ingestCallers, ingestSources/ingestCallers)
		register.Go(func() error { return fleets[i].report(ctx, e.ingest, clk) })
	}
	if err := register.Wait(); err != nil {
		return err
	}

	length := b.scaledTime(10 * time.Second)
	b.progress("%v of reports of %d sources", length, ingestSources)
	var accepted atomic.Int64
	took, err := b.timed(func() error {
		start := time.Now()
		var callers errgroup.Group
		for _, f := range fleets {
			callers.Go(func() error {
				reports := make([]ingest.Report, len(f.names)*ingestRounds)
				for at := start; time.Since(start) < length; {
					for i := range reports {
						f.fill(&reports[i], i%len(f.names), at.UnixMilli())
						if i%len(f.names) == len(f.names)-1 {
							at = at.Add(ingestStep)
						}
					}
					if err := appendAll(ctx, e.ingest, reports); err != nil {
						return err
					}
					accepted.Add(int64(len(reports) * perSource))
				}
				return nil
			})
		}
		return callers.Wait()
	})
	b.figures["rate"] = float64(accepted.Load()) / took.Seconds()
	return err
}
