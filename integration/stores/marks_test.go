package stores

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestManyMarks imports a week of many series. Two workers grind it, and one of them starts again
// after it has deleted many marks. The server aborts a read that meets mostPerRead tombstones,
// which is less than half of the marks in each shard.
func TestManyMarks(t *testing.T) {
	const (
		series, block = 40, 4
		hours         = 7 * 24
		mostPerRead   = 150
		index         = 2
	)
	t.Setenv("QUERN_TEST_CASSANDRA_HOSTS", "")
	server, err := cassandratest.Start(t.Context(), cassandratest.Options{Logf: t.Logf, TombstoneFailureThreshold: mostPerRead})
	require.NoError(t, err)
	t.Cleanup(server.Stop)

	clk := clock.NewSimulated(time.Date(2025, time.November, 21, 11, 30, 0, 0, time.UTC))
	open := openAt(t, cassandra.Options{Hosts: server.Hosts(), Timeout: timeout}, storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: block, IndexPartitions: index, Epochs: blocks.Epochs{{BlockSize: block}},
	}, nil, clk)
	first := open()
	_, err = first.LeaseIDs(t.Context(), series)
	require.NoError(t, err)

	// Each series comes alone, as in an import of one file after the other.
	w := cache.NewWriter(cache.New(first, clk, 1, cache.DefaultTiming()))
	for id := range metric.ScheduleID(series) {
		var groups []cache.BlockSamples
		for h := range hours {
			s := metric.DefaultLadder().SliceAt(metric.Raw, clk.Now().Add(-time.Duration(h+1)*time.Hour).UnixMilli())
			groups = append(groups, cache.BlockSamples{
				Slice: s, Block: blocks.Of(id, block),
				Samples: []metric.Sample{{Schedule: id, TimeMs: s.StartMs, Value: float64(h)}},
			})
		}
		require.NoError(t, w.Flush(t.Context(), groups))
	}
	k := storage.SliceKey{StartMs: clk.Now().Truncate(time.Hour).UnixMilli()}
	marks := 0
	for shard := range index {
		n := 0
		for _, err := range first.Marks(t.Context(), storage.IndexPartition{SliceKey: k, Shard: shard}) {
			require.NoError(t, err)
			n++
		}
		require.Greater(t, n, 2*mostPerRead, "shard %d", shard)
		marks += n
	}
	require.Equal(t, series/block*hours, marks, "one for each block and hour")

	clk.Set(clk.Now().Truncate(time.Hour).Add(time.Hour + 2*time.Minute))
	worker := func(id string) (*rollup.Runner, *storagetest.Faulty) {
		store := storagetest.NewFaulty(open())
		e := engine.New(engine.Options{
			Store: store, Clock: clk, Writer: 7, Worker: storage.Worker{ID: id, Aggregates: true}, Timeout: time.Hour, Rollup: &rollup.Options{},
		})
		require.NoError(t, e.Member.Beat(t.Context()))
		return e.Runner, store
	}
	a, broken := worker("a")
	b, _ := worker("b")

	var ground atomic.Int64
	ctx, abort := context.WithCancel(t.Context())
	broken.Add(storagetest.Rule{Op: "DeleteMarks", Times: -1, After: func() error {
		if ground.Add(1) == mostPerRead*3/2 {
			abort()
		}
		return nil
	}})
	_, err = a.Run(ctx, k)
	require.ErrorIs(t, err, context.Canceled)
	require.GreaterOrEqual(t, ground.Load(), int64(mostPerRead*3/2))
	broken.Heal()

	one, err := a.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared, "it goes on behind what it has deleted")
	other, err := b.Run(t.Context(), k)
	require.NoError(t, err, "it looks into what the first has emptied")
	require.Greater(t, one.Blocks, mostPerRead)
	require.Greater(t, other.Blocks, mostPerRead)

	rows := 0
	for row, err := range first.Rollups(t.Context(), 1, blocks.Range{End: series}, 0, k.StartMs+1) {
		require.NoError(t, err)
		require.EqualValues(t, 1, row.Count)
		rows++
	}
	require.Equal(t, series*hours, rows)
	states, err := first.Slices(t.Context(), metric.Raw, k.StartMs, k.StartMs+1)
	require.NoError(t, err)
	require.Equal(t, []storage.SliceState{{SliceKey: k, Begun: true, Complete: true}}, states)

	// This is the case that the workers met: a partition with nothing but tombstones, and a server
	// that aborts the read.
	s := connect(t, cassandra.Options{Hosts: server.Hosts()}, "quern")
	defer s.Close()
	err = s.Query("SELECT mark_id FROM metrics_cache_index WHERE bucket = 0 AND time_slice = ? AND partition = 0", k.StartMs).
		WithContext(context.WithoutCancel(t.Context())).Exec()
	require.ErrorContains(t, err, "TOMBSTONES")
}
