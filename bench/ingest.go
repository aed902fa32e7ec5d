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
	// ingestRounds is the number of reports per source in one call. Commits follow one another
	// without a pause only if enough samples wait for the next one.
	ingestRounds = 40
	// ingestStep is the time between two reports of a source. It is short, so that times stay
	// within the future limit although the sources send faster than real time.
	ingestStep = 20 * time.Millisecond
)

func ingestMeasurement() measurement {
	return measurement{
		name:  "ingest-go",
		steps: []step{{name: "run", run: measureIngest}},
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
	e, err := openEngine(ctx, b, clock.System{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	callers, err := newCallers(ctx, e, ingestSources, ingestCallers)
	if err != nil {
		return err
	}
	length := b.scaledTime(10 * time.Second)
	b.progress("%v of reports of %d sources", length, ingestSources)
	var accepted int
	took, err := b.timed(func() (err error) {
		accepted, err = callers.report(ctx, length, ingestRounds)
		return err
	})
	b.figures["rate"] = float64(accepted) / took.Seconds()
	return err
}

// callers report concurrently, each for sources of its own.
type callers struct {
	ingest *ingest.Ingest
	fleets []*fleet
}

// newCallers makes all sources report once, which registers their series.
func newCallers(ctx context.Context, e *measured, sources, n int) (*callers, error) {
	c := &callers{ingest: e.Ingest, fleets: make([]*fleet, n)}
	var register errgroup.Group
	for i := range c.fleets {
		c.fleets[i] = newFleet(i*sources/n, sources/n)
		register.Go(func() error { return c.fleets[i].report(ctx, e.Ingest, clock.System{}) })
	}
	return c, register.Wait()
}

// report makes each caller report repeatedly for the given time. Each call of Append has as many
// reports of each of the caller's sources as rounds says. It returns the number of durable samples.
func (c *callers) report(ctx context.Context, length time.Duration, rounds int) (accepted int, err error) {
	var total atomic.Int64
	start := time.Now()
	var running errgroup.Group
	for _, f := range c.fleets {
		running.Go(func() error {
			reports := make([]ingest.Report, len(f.names)*rounds)
			for at := start; time.Since(start) < length; {
				for i := range reports {
					f.fill(&reports[i], i%len(f.names), at.UnixMilli())
					if i%len(f.names) == len(f.names)-1 {
						at = at.Add(ingestStep)
					}
				}
				if err := appendAll(ctx, c.ingest, reports); err != nil {
					return err
				}
				total.Add(int64(len(reports) * perSource))
			}
			return nil
		})
	}
	err = running.Wait()
	return int(total.Load()), err
}
