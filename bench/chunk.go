package main

import (
	"context"
	"fmt"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// chunkTimes are the samples per schedule in the measured chunks: what a flush writes at most
// intervals, and an hour at one minute.
var chunkTimes = []int{1, 60}

func chunkMeasurement() measurement {
	return measurement{
		name:  "chunk",
		steps: []step{{name: "run", run: measureChunks}},
		rows: func(r results) []row {
			f := r["chunk"]
			var rows []row
			for _, times := range chunkTimes {
				what := fmt.Sprintf("chunk of %d gauges × %d samples", blockSize, times)
				name := fmt.Sprintf("run.%d_", times)
				rows = append(rows,
					info(what+": for a sample, before the store compresses it", bytesEach(f[name+"bytes"])),
					info(what+": packed, read, on one core", fmt.Sprintf("%s, %s samples/s", count(f[name+"pack"]), count(f[name+"read"]))))
			}
			return rows
		},
	}
}

func measureChunks(_ context.Context, b *bench) error {
	f := newFleet(0, (blockSize+perSource-1)/perSource)
	for _, times := range chunkTimes {
		var samples []metric.Sample
		for id := range blockSize {
			for i := range times {
				samples = append(samples, metric.Sample{
					Schedule: metric.ScheduleID(id),
					TimeMs:   historyStart.UnixMilli() + int64(i)*time.Minute.Milliseconds(),
					Value:    float64(f.next(id/perSource, id%perSource)) / 100,
				})
			}
		}
		var chunk []byte
		pack, err := b.repeat(func() error {
			chunk = blocks.AppendSamples(chunk[:0], samples)
			return nil
		})
		if err != nil {
			return err
		}
		var back []metric.Sample
		read, err := b.repeat(func() (err error) {
			back, err = blocks.DecodeSamples(back[:0], chunk)
			return err
		})
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%d_", times)
		n := float64(len(samples))
		b.figures[name+"bytes"] = float64(len(chunk)) / n
		b.figures[name+"pack"] = n * pack
		b.figures[name+"read"] = n * read
	}
	return nil
}

// repeat calls f for a second and returns the number of calls per second.
func (b *bench) repeat(f func() error) (perSecond float64, err error) {
	length := b.scaledTime(time.Second)
	calls := 0
	start := time.Now()
	for time.Since(start) < length {
		for range 64 {
			if err := f(); err != nil {
				return 0, err
			}
		}
		calls += 64
	}
	return float64(calls) / time.Since(start).Seconds(), nil
}
