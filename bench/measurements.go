package main

import "context"

// measurement is one or more steps over a directory, and how their figures read.
type measurement struct {
	name  string
	steps []step
	// rows may look at what was measured before it; figures that are missing are 0.
	rows func(r results) []row
}

// step runs in a process of its own.
type step struct {
	name string
	run  func(ctx context.Context, b *bench) error
}

func measurements() []measurement {
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
