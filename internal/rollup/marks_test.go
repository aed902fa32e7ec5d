package rollup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestOpenMarkBehindAFlood: of a block with thousands of marks the last one is open, for a flush that did not reach the
// cache. The cache agrees with all others. No row comes from it, also if the run ends before it has dealt with all marks.
func TestOpenMarkBehindAFlood(t *testing.T) {
	const flood = 5000
	clk := clock.NewSimulated(hour.Add(time.Hour + 2*time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 16, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk))
	startMs := hour.UnixMilli()
	k := storage.SliceKey{StartMs: startMs}
	ids := blocks.NewIDs(1)
	chunk := func(i int) storage.Chunk {
		return storage.Chunk{ID: ids.Next(startMs), Data: blocks.AppendSamples(nil, []metric.Sample{{TimeMs: startMs + int64(i), Value: 1}})}
	}
	flushed, lost := chunk(1), chunk(2)
	b := &storage.Batch{
		Open:  []storage.SliceKey{k},
		Raw:   []storage.RawChunk{{SliceMs: startMs, Chunk: flushed}, {SliceMs: startMs, Chunk: lost}},
		Cache: []storage.CacheChunk{{CacheKey: storage.CacheKey{SliceKey: k}, Chunk: flushed}},
	}
	for i := range flood {
		m := storage.Mark{TimeMs: startMs, ID: ids.Next(startMs), Kind: storage.MarkFresh, DueMs: startMs + time.Hour.Milliseconds()}
		switch i {
		case 0:
			m.Chunks = 1
		case flood - 1:
			m.Kind = storage.MarkOpen
		}
		b.Marks = append(b.Marks, storage.PlacedMark{Partition: storage.IndexPartition{SliceKey: k, Shard: blocks.ShardOf(0, 2)}, Mark: m})
	}
	require.NoError(t, store.Write(t.Context(), b))

	// The run is aborted after its first row.
	n := 0
	onRows(store, func() error {
		if n++; n > 1 {
			return storage.ErrUnavailable
		}
		return nil
	})
	_, err := worker(store, clk, 1, storage.Worker{ID: "w"}, rollup.Options{Parallel: 1, Attempts: 1}).Runner.Run(t.Context(), k)
	require.Equal(t, 2, n, "%v", err)
	all := rows(t, store)
	require.Len(t, all, 1)
	require.EqualValues(t, 2, all[0].Count)
}

// TestAbortedRunsLeaveOneMark: what runs pass on to another slice than the one around their own has one mark there,
// however often they are aborted.
func TestAbortedRunsLeaveOneMark(t *testing.T) {
	const aborted = 5
	r, store, clk, k := setUp(t, 1, rollup.Options{Attempts: 1})
	six := metric.DefaultLadder().SliceAt(1, hour.UnixMilli())
	// A run of the six hours around has begun, by a clock that was ahead.
	require.NoError(t, store.BeginSlice(t.Context(), storage.SliceKey{Bucket: 1, StartMs: six.StartMs}))
	clk.Set(time.UnixMilli(six.EndMs).Add(2 * time.Minute))
	store.Fail("DeleteCacheBlock", blocks.Range{}, aborted, storage.ErrUnavailable)
	store.Fail("DeleteMarks", blocks.Range{}, aborted, storage.ErrUnavailable)
	for range aborted {
		_, err := r.Run(t.Context(), k)
		require.ErrorIs(t, err, storage.ErrUnavailable)
	}
	next := metric.DefaultLadder().SliceAt(1, six.EndMs)
	marks := 0
	for shard := range store.Settings().IndexPartitions {
		for _, err := range store.Marks(t.Context(), storage.IndexPartition{SliceKey: storage.SliceKey{Bucket: 1, StartMs: next.StartMs}, Shard: shard}, storage.MarkKey{}, 0) {
			require.NoError(t, err)
			marks++
		}
	}
	require.Equal(t, 1, marks)
}
