package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
)

const clusterSchedules = clusterSources * perSource

// cassandraHourMeasurement compares a run with the ancestor's.
func cassandraHourMeasurement() measurement {
	const name, what = "aggregate-20k", "grind 20,000 schedules × 60 samples"
	ancestor := func(requests int) func(context.Context, *bench) error {
		return func(ctx context.Context, b *bench) error {
			return measureAncestorRun(ctx, b, clusterSchedules, requests)
		}
	}
	return measurement{
		name: name,
		steps: []step{
			{name: "load", run: func(ctx context.Context, b *bench) error {
				return loadKeyspace(ctx, b, clusterSchedules, blockSize)
			}},
			{name: "run", run: func(ctx context.Context, b *bench) error { return measureRun(ctx, b, clusterSchedules, blockSize) }},
			{name: "load-rows", run: func(ctx context.Context, b *bench) error { return loadRows(ctx, b, clusterSchedules) }},
			{name: "serial", run: ancestor(1)},
			{name: "parallel", run: ancestor(manyInFlight)},
		},
		rows: func(r results) []row {
			f := r[name]
			blockSeconds := f["run.seconds"]
			longer := func(how, step string, times float64) row {
				took := f[step+".seconds"]
				how = "the same by a query for each schedule, " + how
				if done := f[step+".done"]; done < f["run.schedules"] {
					how += fmt.Sprintf(" (estimated from %s schedules)", count(done))
				}
				return judged(how, fmt.Sprintf("%s, %.1f times as long", seconds(took), took/blockSeconds), fmt.Sprintf("≥ %.0f times", times),
					took >= times*blockSeconds, took/blockSeconds/times)
			}
			return append(append([]row{info(what, seconds(blockSeconds))}, runRows(what, f)...),
				longer("serial", "serial", 50), longer("64 in flight", "parallel", 5))
		},
	}
}

func loadKeyspace(ctx context.Context, b *bench, schedules, blockSize int) error {
	if err := applySchema(ctx, b, blockSize); err != nil {
		return err
	}
	return loadStore(ctx, b, schedules, time.Minute)
}

// cassandraMillionMeasurement measures memory: a run holds only the blocks that it is grinding,
// however many there are.
func cassandraMillionMeasurement() measurement {
	const name, what = "aggregate-1m", "grind 1,000,000 schedules × 6 samples"
	return measurement{
		name: name,
		steps: []step{
			{name: "load", run: func(ctx context.Context, b *bench) error {
				return loadUnregistered(ctx, b, millionSchedules, 10*time.Minute)
			}},
			{name: "run", run: func(ctx context.Context, b *bench) error { return measureRun(ctx, b, millionSchedules, blockSize) }},
			{name: "rows", run: measureRows},
		},
		rows: func(r results) []row {
			f := r[name]
			alone := f["rows.seconds"]
			return append([]row{
				info(what, seconds(f["run.seconds"])),
				info("to write the same rows alone", fmt.Sprintf("%s, the run takes %.2f times as long", seconds(alone), f["run.seconds"]/alone)),
			}, runRows(what, f)...)
		},
	}
}

// measureRows times the writes of the rows that the run has written, with as many in flight.
func measureRows(ctx context.Context, b *bench) (err error) {
	e, err := openEngine(ctx, b, clock.NewSimulated(historyStart.Add(time.Hour+2*time.Minute)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	lease, err := e.Store.AcquireShard(ctx, 0, worker, time.Hour)
	if err != nil {
		return err
	}
	const level = metric.Raw + 1
	schedules := b.scaled(millionSchedules/perSource, 1) * perSource
	written := make([][]metric.RollupRow, 0, schedules/blockSize+1)
	for start := 0; start < schedules; start += blockSize {
		var rows []metric.RollupRow
		for r, err := range e.Store.Rollups(ctx, level, blocks.BlockAt(metric.ScheduleID(start), blockSize),
			historyStart.UnixMilli(), historyStart.UnixMilli()+1) {
			if err != nil {
				return err
			}
			r.Sketch = slices.Clone(r.Sketch)
			rows = append(rows, r)
		}
		slices.SortFunc(rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
		written = append(written, rows)
	}
	took, err := b.timed(func() error {
		writers, ctx := errgroup.WithContext(ctx)
		writers.SetLimit(blocksInFlight)
		for _, rows := range written {
			writers.Go(func() error { return e.Store.WriteRollups(ctx, lease.Fence, level, rows) })
		}
		return writers.Wait()
	})
	b.figures["seconds"] = took.Seconds()
	return err
}

// loadUnregistered writes an hour of unregistered schedules through ingest's last stage. To claim a
// million series takes longer than everything that is measured.
func loadUnregistered(ctx context.Context, b *bench, schedules int, interval time.Duration) (err error) {
	if err := applySchema(ctx, b, blockSize); err != nil {
		return err
	}
	clk := clock.NewSimulated(historyStart)
	e, err := openEngine(ctx, b, clk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	w := cache.NewWriter(e.Cache)
	f := newFleet(0, b.scaled(schedules/perSource, 1))
	schedules = len(f.names) * perSource
	slice := metric.DefaultLadder().SliceAt(metric.Raw, historyStart.UnixMilli())
	const perFlush = 1024
	groups := make([]cache.BlockSamples, 0, perFlush)
	p := b.bar(schedules*int(time.Hour/interval), "samples loaded")
	defer p.end()
	for at := time.Duration(0); at < time.Hour; at += interval {
		clk.Set(historyStart.Add(at))
		for start := 0; start < schedules; start += blockSize {
			block := blocks.BlockAt(metric.ScheduleID(start), blockSize)
			g := cache.BlockSamples{Slice: slice, Block: block}
			for id := start; id < min(start+blockSize, schedules); id++ {
				g.Samples = append(g.Samples, metric.Sample{
					Schedule: metric.ScheduleID(id), TimeMs: clock.NowMs(clk),
					Value: float64(f.next(id/perSource, id%perSource)) / 100,
				})
			}
			if groups = append(groups, g); len(groups) < perFlush && start+blockSize < schedules {
				continue
			}
			if err := w.Flush(ctx, groups); err != nil {
				return err
			}
			p.add(min(len(groups)*blockSize, schedules))
			groups = groups[:0]
		}
	}
	clk.Set(historyStart.Add(time.Hour + time.Minute))
	return w.Seal(ctx)
}

// blockSizes are alternatives to the default. With blocks of one schedule, as the ancestor has,
// fewer schedules are enough.
var blockSizes = []struct{ size, schedules int }{
	{1, 2_000}, {5, clusterSchedules}, {32, clusterSchedules}, {blockSize, clusterSchedules}, {512, clusterSchedules},
}

// blockSizeMeasurements show the effect of the block size.
func blockSizeMeasurements() []measurement {
	name := func(size int) string { return fmt.Sprintf("block-size-%d", size) }
	var out []measurement
	for _, c := range blockSizes {
		out = append(out, measurement{
			name: name(c.size),
			steps: []step{
				{name: "load", run: func(ctx context.Context, b *bench) error { return loadKeyspace(ctx, b, c.schedules, c.size) }},
				{name: "run", run: func(ctx context.Context, b *bench) error { return measureRun(ctx, b, c.schedules, c.size) }},
			},
			rows: func(r results) []row {
				f, standard := r[name(c.size)], r[name(blockSize)]
				rate, took := f["load.rate"], f["run.seconds"]*clusterSchedules/float64(c.schedules)
				what := fmt.Sprintf("blocks of %d, 20,000 schedules × 60 samples", c.size)
				if c.schedules != clusterSchedules {
					what += fmt.Sprintf(" (scaled up from %s schedules)", count(float64(c.schedules)))
				}
				in := info(what+": ingest, a report of each source in a commit", count(rate)+" samples/s")
				run := info(what+": grind", fmt.Sprintf("%s, %s block reads", seconds(took), count(f["run.block_queries"]*clusterSchedules/float64(c.schedules))))
				if len(standard) > 0 {
					in.Verdict = fmt.Sprintf("%.2f × that of %d", rate/standard["load.rate"], blockSize)
					run.Verdict = fmt.Sprintf("%.2f × that of %d", took/standard["run.seconds"], blockSize)
				}
				return []row{in, run}
			},
		})
	}
	return out
}
