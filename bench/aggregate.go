package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
)

const (
	hourSchedules    = 100_000
	millionSchedules = 1_000_000
	// maxMemoryMB bounds the memory of the process that grinds, however many schedules there are.
	maxMemoryMB = 400
)

func aggregateMeasurement() measurement {
	const what = "grind 100,000 schedules × 60 samples"
	return measurement{
		name: "aggregate-100k",
		steps: []step{
			{name: "load", run: func(ctx context.Context, b *bench) error {
				return loadStore(ctx, b, hourSchedules, time.Minute)
			}},
			{name: "run", run: func(ctx context.Context, b *bench) error { return measureRun(ctx, b, hourSchedules, blockSize) }},
		},
		rows: func(r results) []row {
			f := r["aggregate-100k"]
			return append(
				[]row{atMost(what, f["run.seconds"], 6, seconds)},
				runRows(what, f)...)
		},
	}
}

func millionMeasurement() measurement {
	const what = "grind 1,000,000 schedules × 6 samples"
	return measurement{
		name: "aggregate-1m",
		steps: []step{
			{name: "load", run: func(ctx context.Context, b *bench) error {
				return loadStore(ctx, b, millionSchedules, 10*time.Minute)
			}},
			{name: "start", run: measureStart},
			{name: "run", run: func(ctx context.Context, b *bench) error { return measureRun(ctx, b, millionSchedules, blockSize) }},
		},
		rows: func(r results) []row {
			f := r["aggregate-1m"]
			rows := append(
				[]row{info(what, seconds(f["run.seconds"]))},
				runRows(what, f)...)
			return append(rows,
				peakMemory("take in 1,000,000 new schedules", f, "load", 0),
				info("start with 1,000,000 schedules: store and label index", seconds(f["start.seconds"])),
				peakMemory("start with 1,000,000 schedules", f, "start", 0),
			)
		},
	}
}

// runRows returns the rows for a run of any size.
func runRows(what string, f figures) []row {
	return []row{
		peakMemory(what, f, "run", maxMemoryMB),
		exactly(what+": block reads", f["run.block_queries"], f["run.blocks_wanted"]),
		exactly(what+": index reads", f["run.index_queries"], partitions),
	}
}

func loadStore(ctx context.Context, b *bench, schedules int, interval time.Duration) (err error) {
	clk := clock.NewSimulated(historyStart)
	e, err := openEngine(ctx, b, clk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	took, err := b.timed(func() error {
		return loadHour(ctx, b, e, clk, b.scaled(schedules/perSource, 1), interval)
	})
	b.figures["seconds"] = took.Seconds()
	return err
}

// measureRun times the run of the loaded hour. When the run ends, its rows are written and handed
// on to the next bucket.
func measureRun(ctx context.Context, b *bench, schedules, blockSize int) (err error) {
	e, err := openEngine(ctx, b, clock.NewSimulated(historyStart.Add(time.Hour+2*time.Minute)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()

	want := b.scaled(schedules/perSource, 1) * perSource
	wantBlocks := (want + blockSize - 1) / blockSize
	e.ground = b.bar(wantBlocks, "blocks ground")
	defer e.ground.end()
	var rec storage.Run
	took, err := b.timed(func() error {
		rec, err = e.Runner.Run(ctx, storage.SliceKey{Bucket: metric.Raw, StartMs: historyStart.UnixMilli()})
		return err
	})
	if err != nil {
		return err
	}
	if rec.Schedules != want {
		return fmt.Errorf("%d rows written where there are %d schedules", rec.Schedules, want)
	}
	b.figures["seconds"] = took.Seconds()
	b.figures["schedules"] = float64(rec.Schedules)
	b.figures["block_queries"] = float64(rec.BlockQueries)
	b.figures["blocks_wanted"] = float64(wantBlocks)
	b.figures["index_queries"] = float64(rec.IndexQueries)
	b.progress("%d schedules in %v", want, took.Round(time.Millisecond))
	return nil
}

// measureStart times the start of a process until it is ready. Series ids are read later, source by
// source, when each source first reports.
func measureStart(ctx context.Context, b *bench) (err error) {
	var e *measured
	took, err := b.timed(func() error {
		if e, err = openEngine(ctx, b, clock.NewSimulated(historyStart.Add(time.Hour))); err != nil {
			return err
		}
		return query.NewIndex().Refresh(ctx, e.Store)
	})
	if e != nil {
		err = errors.Join(err, e.Close())
	}
	b.figures["seconds"] = took.Seconds()
	return err
}
