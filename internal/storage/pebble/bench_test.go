package pebble

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

const (
	benchPBS    = 128
	benchHourMs = int64(3600 * 1000)
	benchStart  = int64(1_763_683_200_000)
)

func benchStore(b *testing.B) *Store {
	b.Helper()
	st, err := Open(b.TempDir(), Options{Settings: storagetest.TestSettings(), Logger: quiet()})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, st.Close()) })
	return st
}

// benchChunk returns data that compares to an encoded chunk with one sample each of 128 schedules:
// about three bytes a sample, which hardly compress.
func benchChunk(rng *rand.Rand) []byte {
	data := make([]byte, 3*benchPBS)
	for i := range data {
		data[i] = byte(rng.Uint32())
	}
	return data
}

func benchKey(slice, block int) storage.CacheKey {
	return storage.CacheKey{
		SliceKey: storage.SliceKey{StartMs: benchStart + int64(slice)*benchHourMs},
		Start:    metric.ScheduleID(block * benchPBS),
	}
}

// flush returns the batch that one flush of ingest writes for the given blocks.
func benchFlush(ids *blocks.IDs, data []byte, slice, from, to int, marks bool) *storage.Batch {
	batch := &storage.Batch{}
	for block := from; block < to; block++ {
		k := benchKey(slice, block)
		c := storage.Chunk{ID: ids.Next(k.StartMs), Data: data}
		batch.Raw = append(batch.Raw, storage.RawChunk{Group: blocks.Of(k.Start, 1024).Start, SliceMs: k.StartMs, Chunk: c})
		batch.Cache = append(batch.Cache, storage.CacheChunk{CacheKey: k, Chunk: c})
		if marks {
			batch.Marks = append(batch.Marks, storage.PlacedMark{
				Partition: storage.IndexPartition{SliceKey: k.SliceKey, Shard: blocks.ShardOf(k.Start, 4)},
				Mark:      storage.Mark{Start: k.Start, TimeMs: k.StartMs, ID: c.ID},
			})
		}
	}
	return batch
}

// BenchmarkWrite writes synced batches of 100 blocks, each with a raw and a cached chunk.
func BenchmarkWrite(b *testing.B) {
	const n = 100
	st := benchStore(b)
	ids := blocks.NewIDs(1)
	data := benchChunk(rand.New(rand.NewPCG(1, 2)))
	b.SetBytes(int64(2 * n * len(data)))
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		require.NoError(b, st.Write(b.Context(), benchFlush(ids, data, 0, i%78*n, (i%78+1)*n, i < 78)))
		i++
	}
	b.ReportMetric(float64(b.N*n*benchPBS)/b.Elapsed().Seconds(), "samples/s")
}

// BenchmarkRun grinds slices of 7,800 blocks, a million schedules. For each block it reads the
// cache, writes 128 rows, and deletes the cache block and the mark.
func BenchmarkRun(b *testing.B) {
	for _, chunks := range []int{1, 10, 60} {
		b.Run(fmt.Sprintf("chunks=%d", chunks), func(b *testing.B) {
			const n = 7800
			st := benchStore(b)
			ids := blocks.NewIDs(1)
			data := benchChunk(rand.New(rand.NewPCG(1, 2)))
			sketch := data[:60]
			b.ReportAllocs()
			slice := 0
			for b.Loop() {
				b.StopTimer()
				for c := range chunks {
					for from := 0; from < n; from += 300 {
						require.NoError(b, st.Write(b.Context(), benchFlush(ids, data, slice, from, from+300, c == 0)))
					}
				}
				b.StartTimer()
				benchRun(b, st, slice, chunks, sketch)
				slice++
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N), "s/run")
		})
	}
}

func benchRun(b *testing.B, st *Store, slice, chunks int, sketch []byte) {
	b.Helper()
	ctx := b.Context()
	tMs := benchKey(slice, 0).StartMs
	rows := make([]metric.RollupRow, benchPBS)
	var read, write, del, marks time.Duration
	blocksRead := 0
	clk := clock.System{}
	for shard := range 4 {
		lease, err := st.AcquireShard(ctx, shard, "w", time.Hour)
		require.NoError(b, err)
		part := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: tMs}, Shard: shard}
		for m, err := range st.Marks(ctx, part) {
			require.NoError(b, err)
			key := storage.CacheKey{SliceKey: part.SliceKey, Start: m.Start}
			t0 := clk.Now()
			got, err := st.CacheBlock(ctx, key)
			if err != nil || len(got) != chunks {
				b.Fatalf("block %d: %d chunks, %v", m.Start, len(got), err)
			}
			t1 := clk.Now()
			for i := range rows {
				rows[i] = metric.RollupRow{Schedule: m.Start + metric.ScheduleID(i), TimeMs: tMs, Rollup: metric.Rollup{Count: 60, Sketch: sketch}}
			}
			if err := st.WriteRollups(ctx, lease.Fence, 1, rows); err != nil {
				b.Fatal(err)
			}
			t2 := clk.Now()
			if err := st.DeleteCacheBlock(ctx, lease.Fence, key); err != nil {
				b.Fatal(err)
			}
			t3 := clk.Now()
			if err := st.DeleteMarks(ctx, lease.Fence, part, []storage.Mark{m}); err != nil {
				b.Fatal(err)
			}
			read, write, del, marks = read+t1.Sub(t0), write+t2.Sub(t1), del+t3.Sub(t2), marks+clk.Now().Sub(t3)
			blocksRead++
		}
	}
	per := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(blocksRead) }
	b.ReportMetric(per(read), "µs/read")
	b.ReportMetric(per(write), "µs/rollups")
	b.ReportMetric(per(del), "µs/delete")
	b.ReportMetric(per(marks), "µs/marks")
}
