package main

import "context"

// measurement is one or more steps over a directory, and how their figures read.
type measurement struct {
	name  string
	steps []step
	// always: also when its name was not asked for, and for what it does, not for its figures.
	always bool
	// rows may look at what was measured before it; figures that are missing are 0.
	rows func(r results) []row
}

// step runs in a process of its own.
type step struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

// The stores that can be measured.
const (
	storePebble    = "pebble"
	storeCassandra = "cassandra"
)

func measurements(store string) []measurement {
	if store == storeCassandra {
		return cassandraMeasurements()
	}
	return []measurement{
		ingestMeasurement(),
		httpMeasurement(),
		latencyMeasurement(),
		aggregateMeasurement(),
		millionMeasurement(),
		ancestorMeasurement(),
		diskMeasurement(),
		chunkMeasurement(),
	}
}
