package main

import (
	"context"
	"errors"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"

	"github.com/quern/quern/internal/clock"
)

const (
	diskSchedules = 10_000
	diskInterval  = 10 * time.Second
)

func diskMeasurement() measurement {
	const what = "disk for a sample (10,000 gauges of 2 decimals, 1 h at 10 s, ground)"
	return measurement{
		name:  "disk",
		steps: []step{{name: "load", run: loadDisk}, {name: "sizes", run: measureDisk}},
		rows: func(r results) []row {
			f := r["disk"]
			return []row{
				info(what+": raw, compacted", bytesEach(f["sizes.raw_settled"])),
				info(what+": everything, compacted", bytesEach(f["sizes.all_settled"])),
				info(what+": raw, as flushed", bytesEach(f["sizes.raw_flushed"])),
				info(what+": everything, as flushed", bytesEach(f["sizes.all_flushed"])),
			}
		},
	}
}

// loadDisk ingests an hour, grinds it, so that its cache and index are gone, and packs it.
func loadDisk(ctx context.Context, b *bench) (err error) {
	clk := clock.NewSimulated(historyStart)
	e, err := openEngine(ctx, b, clk)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	if err := loadHour(ctx, b, e, clk, b.scaled(diskSchedules/perSource, 1), diskInterval); err != nil {
		return err
	}
	clk.Set(historyStart.Add(time.Hour + 2*time.Minute))
	if _, err := e.Runner.RunDue(ctx); err != nil {
		return err
	}
	clk.Set(historyStart.Add(time.Hour + 5*time.Minute))
	return e.Runner.Pack(ctx)
}

// measureDisk opens the store's database without the store. It measures once when all data is in
// tables, and again when those are compacted. It does not count log and manifest.
func measureDisk(ctx context.Context, b *bench) (err error) {
	opts := pebbleOptions()
	opts.DisableAutomaticCompactions = true
	db, err := lsm.Open(storeDir(b.dir), opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	samples := float64(b.scaled(diskSchedules/perSource, 1)*perSource) * float64(time.Hour/diskInterval)
	sizes := func(when string) error {
		raw, err := db.EstimateDiskUsage([]byte{'r'}, []byte{'r' + 1})
		b.figures["raw_"+when] = float64(raw) / samples
		tables := db.Metrics().Total()
		b.figures["all_"+when] = float64(tables.AggregateSize()) / samples
		return err
	}
	if err := db.Flush(); err != nil {
		return err
	}
	if err := sizes("flushed"); err != nil {
		return err
	}
	if err := db.Compact(ctx, []byte{0}, []byte{0xff}, false); err != nil {
		return err
	}
	return sizes("settled")
}
