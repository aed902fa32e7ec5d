package pebble

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// BenchmarkDiskSize writes an hour of 128,000 schedules, with a sample a minute, as ingest does,
// and compacts the store. It reports the size of a sample in chunks and on disk.
func BenchmarkDiskSize(b *testing.B) {
	const nBlocks, flushes = 1000, 60
	for b.Loop() {
		st := benchStore(b)
		ids := blocks.NewIDs(1)
		rng := rand.New(rand.NewPCG(1, 2))
		values := make([]float64, nBlocks*benchPBS)
		var packed int
		for f := range flushes {
			batch := &storage.Batch{}
			for block := range nBlocks {
				k := benchKey(0, block)
				samples := make([]metric.Sample, benchPBS)
				for i := range samples {
					v := &values[block*benchPBS+i]
					switch i % 4 { // a gauge of two decimals, a counter, a constant, noise
					case 0:
						*v = math.Round((*v+rng.NormFloat64())*100) / 100
					case 1:
						*v += float64(rng.IntN(1000))
					case 3:
						*v = rng.Float64()
					}
					samples[i] = metric.Sample{Schedule: k.Start + metric.ScheduleID(i), TimeMs: benchStart + int64(f)*60_000 + rng.Int64N(100), Value: *v}
				}
				c := storage.Chunk{ID: ids.Next(benchStart), Data: blocks.AppendSamples(nil, samples)}
				packed += len(c.Data)
				batch.Raw = append(batch.Raw, storage.RawChunk{Group: blocks.Of(k.Start, 1024).Start, SliceMs: benchStart, Chunk: c})
			}
			require.NoError(b, st.Write(b.Context(), batch))
		}
		n := float64(nBlocks * benchPBS * flushes)
		b.ReportMetric(float64(packed)/n, "packed-B/sample")
		require.NoError(b, st.db.Compact(b.Context(), []byte{0}, []byte{255}, true))
		m := st.db.Metrics()
		tables := m.Total()
		b.ReportMetric(float64(tables.TablesSize)/n, "disk-B/sample")
	}
}
