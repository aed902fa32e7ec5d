package rollup_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// A block with more samples than are held at a time is ground in parts, and comes to the same as in one.
func TestLargeBlocksInParts(t *testing.T) {
	const series = 16 // of which each block of 4 has one with most samples
	grind := func(samples int, damaged, cached bool) (rec storage.Run, all []metric.RollupRow, told map[string]int) {
		reg := prometheus.NewRegistry()
		r, store, _, k := setUp(t, series, rollup.Options{Samples: samples, Metrics: reg})
		ids := blocks.NewIDs(9)
		batch := &storage.Batch{}
		for n := range 30 { // in several chunks, which overlap
			var chunk []metric.Sample
			for id := range metric.ScheduleID(series) {
				count := 10
				if id%4 == (id/4)%4 {
					count = 100
				}
				for i := range count {
					chunk = append(chunk, metric.Sample{Schedule: id, TimeMs: k.StartMs + int64(10*n+i), Value: float64(n) + float64(id)/100})
				}
			}
			batch.Raw = append(batch.Raw, storage.RawChunk{
				SliceMs: k.StartMs, Chunk: storage.Chunk{ID: ids.Next(k.StartMs), Data: blocks.AppendSamples(nil, chunk)},
			})
		}
		if damaged {
			batch.Raw = append(batch.Raw, storage.RawChunk{SliceMs: k.StartMs, Chunk: storage.Chunk{ID: ids.Next(k.StartMs), Data: []byte("damaged")}})
		}
		if cached {
			for shard := range 2 {
				p := storage.IndexPartition{SliceKey: k, Shard: shard}
				for m, err := range store.Marks(t.Context(), p, storage.MarkKey{}, 0) {
					require.NoError(t, err)
					m.Kind, m.Chunks = storage.MarkFresh, 1+len(batch.Raw)
					batch.Marks = append(batch.Marks, storage.PlacedMark{Partition: p, Mark: m})
					for _, ch := range batch.Raw {
						batch.Cache = append(batch.Cache, storage.CacheChunk{CacheKey: storage.CacheKey{SliceKey: k, Start: m.Start}, Chunk: ch.Chunk})
					}
				}
			}
		}
		require.NoError(t, store.Write(t.Context(), batch))
		store.Forget()
		rec, err := r.Run(t.Context(), k)
		require.NoError(t, err)
		require.False(t, open(t, store, k))
		require.Equal(t, cached, store.Count("CacheBlock") > 0)
		return rec, rows(t, store), counted(t, reg, "quern_aggregation_damaged_chunks_total")
	}
	for _, kind := range []string{"", "damaged", "cached"} {
		damaged, cached := kind == "damaged", kind == "cached"
		whole, want, told := grind(0, damaged, cached)
		require.Len(t, want, series)
		require.Equal(t, damaged, want[0].Partial)
		for _, most := range []int{1, 500, 3500, 5000} {
			rec, got, toldAgain := grind(most, damaged, cached)
			require.Equal(t, want, got, most)
			require.Equal(t, whole.Blocks, rec.Blocks)
			require.Equal(t, whole.Schedules, rec.Schedules)
			require.Equal(t, told, toldAgain, "a damaged chunk counts once, however many parts meet it")
			if most == 5000 { // 3,900 samples, duplicates included
				require.Equal(t, whole.BlockQueries, rec.BlockQueries)
			} else {
				require.Greater(t, rec.BlockQueries, whole.BlockQueries)
			}
		}
	}
}
