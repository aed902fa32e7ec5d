package main

import "context"

// measurement is one or more steps over a shared place, and how their figures are shown.
type measurement struct {
	name  string
	steps []step
	// always: runs even if its name was not requested, for its effect and not for its figures.
	always bool
	// rows may use the figures of earlier measurements; missing figures are 0.
	rows func(r results) []row
}

// step runs in its own process, or operates the server from the program's own process, which started it.
type step struct {
	name    string
	run     func(ctx context.Context, b *bench) error
	operate func(ctx context.Context, b *bench) error // instead of run
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
		newSeriesMeasurement(),
		aggregateMeasurement(),
		millionMeasurement(),
		ancestorMeasurement(),
		diskMeasurement(),
		chunkMeasurement(),
	}
}
