package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quern/quern/internal/clock"
)

const (
	clusterSources = 200
	clusterCallers = 20
	clusterLength  = 15 * time.Second
	// singleCallers is the number of INSERTs in flight, so that both ways have the same. Each has
	// as many sources as the other callers have.
	singleCallers = manyInFlight
	singleSources = singleCallers * clusterSources / clusterCallers
	// settling is how long a server runs something before it is measured.
	settling = 5 * time.Second
)

// warmUpMeasurement runs on a new server for a while what is measured later. A JVM compiles what
// runs often, and is several times slower before that.
func warmUpMeasurement() measurement {
	return measurement{
		name: "warm-up", always: true,
		steps: []step{
			{name: "insert", run: func(ctx context.Context, b *bench) error { return measureInsert(ctx, b, 10*time.Second) }},
			{name: "ingest", run: func(ctx context.Context, b *bench) error {
				return measureClusterIngest(ctx, b, clusterSources, clusterCallers, ingestRounds, 5*time.Second)
			}},
			{name: "load", run: func(ctx context.Context, b *bench) error { return loadRows(ctx, b, warmUpSchedules) }},
			{name: "ancestor", run: func(ctx context.Context, b *bench) error {
				return measureAncestorRun(ctx, b, warmUpSchedules, manyInFlight)
			}},
		},
	}
}

// warmUpRunMeasurement does the same for a run of Quern.
func warmUpRunMeasurement() measurement {
	return measurement{
		name: "warm-up-run", always: true,
		steps: []step{
			{name: "load", run: func(ctx context.Context, b *bench) error { return loadKeyspace(ctx, b, warmUpSchedules, blockSize) }},
			{name: "run", run: func(ctx context.Context, b *bench) error { return measureRun(ctx, b, warmUpSchedules, blockSize) }},
		},
	}
}

const warmUpSchedules = 10_000

func loadRows(ctx context.Context, b *bench, schedules int) error {
	return loadAncestorRows(ctx, b, schedules, time.Minute)
}

// insertMeasurement compares ingest with one row per sample.
func insertMeasurement() measurement {
	return measurement{
		name: "ingest-insert",
		steps: []step{
			{name: "insert", run: func(ctx context.Context, b *bench) error { return measureInsert(ctx, b, clusterLength) }},
			{name: "ingest", run: func(ctx context.Context, b *bench) error {
				return measureClusterIngest(ctx, b, clusterSources, clusterCallers, ingestRounds, clusterLength)
			}},
			{name: "single", run: func(ctx context.Context, b *bench) error {
				return measureClusterIngest(ctx, b, singleSources, singleCallers, 1, clusterLength)
			}},
		},
		rows: func(r results) []row {
			f := r["ingest-insert"]
			inserted := f["insert.rate"]
			against := func(rate float64) row {
				return judged("the same, against an INSERT for each sample", fmt.Sprintf("%.1f times as many", rate/inserted), "≥ 10 times",
					rate >= 10*inserted, rate/inserted/10)
			}
			return []row{
				info("an INSERT for each sample, 64 in flight", count(inserted)+" samples/s"),
				atLeast("ingest, Go entry, 64 callers, 1 report of a source in a call", f["single.rate"], 170_000, " samples/s"),
				against(f["single.rate"]),
				atLeast("ingest, Go entry, 20 callers, 40 reports of a source in a call", f["ingest.rate"], 400_000, " samples/s"),
				against(f["ingest.rate"]),
				peakMemory("ingest, Go entry, 20 callers", f, "ingest", 0),
			}
		},
	}
}

func measureInsert(ctx context.Context, b *bench, length time.Duration) error {
	if err := applySchema(ctx, b, blockSize); err != nil {
		return err
	}
	s, err := connect(b.cluster, b.cluster.keyspace)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := makeAncestor(ctx, s); err != nil {
		return err
	}
	if _, err := insertSamples(ctx, s, clusterSources*perSource, b.scaledTime(settling)); err != nil {
		return err
	}
	length = b.scaledTime(length)
	b.progress("%v of INSERTs", length)
	var n int
	took, err := b.timed(func() (err error) {
		n, err = insertSamples(ctx, s, clusterSources*perSource, length)
		return err
	})
	b.figures["rate"] = float64(n) / took.Seconds()
	return err
}

func measureClusterIngest(ctx context.Context, b *bench, sources, callers, rounds int, length time.Duration) (err error) {
	e, err := openEngine(ctx, b, clock.System{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	c, err := newCallers(ctx, e, sources, callers)
	if err != nil {
		return err
	}
	if _, err := c.report(ctx, b.scaledTime(settling), rounds); err != nil {
		return err
	}
	length = b.scaledTime(length)
	b.progress("%v of reports of %d sources", length, sources)
	var n int
	took, err := b.timed(func() (err error) {
		n, err = c.report(ctx, length, rounds)
		return err
	})
	b.figures["rate"] = float64(n) / took.Seconds()
	return err
}
