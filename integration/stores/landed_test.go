package stores

import (
	"testing"
	"time"

	"github.com/gocql/gocql"
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
)

// TestLandedOnOneCopy pauses two of three nodes, so that a write fails after it landed on the
// third. The run uses the two nodes without the data, and the third comes back after the run. A
// read of all copies brings its data to light. In the end the row must match the raw table,
// although the sample was not sent again.
func TestLandedOnOneCopy(t *testing.T) {
	c, err := cassandratest.StartCluster(t.Context(), 3, cassandratest.Options{Logf: t.Logf})
	require.NoError(t, err)
	t.Cleanup(c.Stop)

	ten := time.Date(2025, time.November, 21, 10, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(ten.Add(30 * time.Minute))
	settings := storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}}}
	// A node that has just started may not know all others yet, from which the default takes the number of copies.
	require.NoError(t, cassandra.ApplySchema(t.Context(), cassandra.Options{
		Hosts: c.Hosts(), Timeout: timeout, Settings: settings, Clock: clk, Policy: storage.Policy{}.Always,
	}, "datacenter1=3", func(int, int, string) {}))
	at := func(node int) storage.Store {
		s, err := cassandra.Open(t.Context(), cassandra.Options{
			Hosts: []string{c.Node(node).Addr()}, DirectHosts: true, Timeout: timeout, Settings: settings, Clock: clk,
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}
	ingest, aggregator := at(0), at(1)

	slice := metric.DefaultLadder().SliceAt(metric.Raw, ten.UnixMilli())
	w := cache.NewWriter(cache.New(ingest, clk, 1, cache.DefaultTiming()))
	flush := func(minute int) error {
		return w.Flush(t.Context(), []cache.BlockSamples{{Slice: slice, Block: blocks.Of(0, 4), Samples: []metric.Sample{
			{Schedule: 1, TimeMs: ten.Add(time.Duration(minute) * time.Minute).UnixMilli(), Value: float64(minute)},
		}}})
	}
	runner := engine.New(engine.Options{
		Store: aggregator, Clock: clk, Writer: 2, Worker: storage.Worker{ID: "worker"}, Timeout: time.Hour, Rollup: &rollup.Options{},
	}).Runner
	run := func() {
		t.Helper()
		_, err := runner.RunDue(t.Context())
		require.NoError(t, err)
	}
	count := func() (raw, row int) {
		for ch, err := range aggregator.RawChunks(t.Context(), blocks.Range{End: 4}, slice.StartMs, slice.EndMs) {
			require.NoError(t, err)
			samples, err := blocks.DecodeSamples(nil, ch.Data)
			require.NoError(t, err)
			raw += len(samples)
		}
		for r, err := range aggregator.Rollups(t.Context(), 1, blocks.Range{End: 4}, slice.StartMs, slice.EndMs) {
			require.NoError(t, err)
			row += int(r.Count)
		}
		return raw, row
	}

	require.NoError(t, flush(10))
	sent := 1
	for {
		for _, other := range []int{1, 2} {
			require.NoError(t, c.Node(other).Pause())
		}
		err := flush(10 + sent)
		// Under load the driver may give up the connection to the node that has the data instead of the request.
		require.True(t, storage.IsAway(err), "%v", err)
		sent++
		// The node that has the data pauses, and the others continue.
		require.NoError(t, c.Node(0).Pause())
		for _, other := range []int{1, 2} {
			require.NoError(t, c.Node(other).Resume())
		}
		await(t, c, 1, gocql.Quorum)
		if raw, _ := count(); raw < sent {
			break
		}
		// When one of the paused nodes continued, it accepted what had arrived during the pause. It
		// uses a coarse clock that was paused too, and notices only later that the write has
		// expired. So this write did not land on one copy only.
		require.NoError(t, c.Node(0).Resume())
		await(t, c, 0, gocql.All)
		require.NoError(t, w.Settle(t.Context()))
	}
	clk.Set(ten.Add(time.Hour + 2*time.Minute))
	run()
	raw, row := count()
	require.Equal(t, sent-1, raw, "two copies of three do not have it")
	require.Equal(t, raw, row)

	require.NoError(t, c.Node(0).Resume())
	await(t, c, 0, gocql.All)
	await(t, c, 1, gocql.All)
	require.NoError(t, w.Settle(t.Context()), "as ingest does each second")
	// This read asks all nodes, and tells each what the others have.
	s := sessionOf(t, c, 1, gocql.All)
	require.NoError(t, s.Query("SELECT * FROM quern.raw_metrics").Exec())
	raw, _ = count()
	require.Equal(t, sent, raw, "it has come to light")

	clk.Set(ten.Add(2*time.Hour + 2*time.Minute))
	run()
	_, row = count()
	require.Equal(t, sent, row)
}

func sessionOf(t *testing.T, c *cassandratest.Cluster, node int, consistency gocql.Consistency) *gocql.Session {
	t.Helper()
	config := gocql.NewCluster(c.Node(node).Addr())
	config.DisableInitialHostLookup, config.Consistency = true, consistency
	config.ConnectTimeout, config.Timeout = timeout, timeout
	s, err := config.CreateSession()
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// await waits until a node answers at a consistency: paused nodes have to find each other again.
func await(t *testing.T, c *cassandratest.Cluster, node int, consistency gocql.Consistency) {
	t.Helper()
	s := sessionOf(t, c, node, consistency)
	require.Eventually(t, func() bool { return s.Query("SELECT * FROM quern.raw_metrics").Exec() == nil }, 2*time.Minute, 100*time.Millisecond)
}
