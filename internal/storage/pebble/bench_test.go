package pebble

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
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
		batch.Raw = append(batch.Raw, storage.RawChunk{Group: blocks.BlockAt(k.Start, 1024).Start, SliceMs: k.StartMs, Chunk: c})
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
