package stores

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/engine"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

// landing is a store whose writes land, and whose caller does not learn that.
type landing struct{ storage.Store }

// Write implements storage.Store.
func (l landing) Write(ctx context.Context, b *storage.Batch) error {
	if err := l.Store.Write(ctx, b); err != nil {
		return fmt.Errorf("it did not land: %w", err)
	}
	return fmt.Errorf("%w: too few copies", storage.ErrTimeout)
}

// TestLandedOnOneCopy writes at consistency ONE while two of three nodes are down, so that a write
// that fails for its client is on the first node's copy. The run uses the two nodes without the
// data, and the first comes back after the run. A read of all copies brings its data to light. In
// the end the row must match the raw table, although the sample was not sent again.
func TestLandedOnOneCopy(t *testing.T) {
	// A node that is killed remembers what it has accepted.
	c, err := cassandratest.StartCluster(t.Context(), 3, cassandratest.Options{CommitlogSync: cassandratest.CommitlogBatch, Logf: t.Logf})
	require.NoError(t, err)
	t.Cleanup(c.Stop)

	ten := time.Date(2025, time.November, 21, 10, 0, 0, 0, time.UTC)
	clk := clock.NewSimulated(ten.Add(30 * time.Minute))
	settings := storage.Settings{Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}}}
	// A node that has just started may not know all others yet, from which the default takes the number of copies.
	require.NoError(t, cassandra.ApplySchema(t.Context(), cassandra.Options{
		Hosts: c.Hosts(), Timeout: timeout, Settings: settings, Clock: clk, Policy: storage.Policy{}.Always,
	}, "datacenter1=3", func(int, int, string) {}))
	// Each store is opened while all of its nodes are up, and is used only as long as they are: no
	// request meets a connection to a node that was killed.
	through := func(consistency gocql.Consistency, nodes ...int) storage.Store {
		opts := cassandra.Options{
			DirectHosts: true, Consistency: consistency.String(), Timeout: timeout, Settings: settings, Clock: clk,
		}
		for _, node := range nodes {
			opts.Hosts = append(opts.Hosts, c.Node(node).Addr())
		}
		s, err := cassandra.Open(t.Context(), opts)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		return s
	}

	// The process of ingest goes on while the store behind it changes.
	ingest := &struct{ storage.Store }{through(gocql.LocalQuorum, 0, 1, 2)}
	alone := through(gocql.One, 0)
	slice := metric.DefaultLadder().SliceAt(metric.Raw, ten.UnixMilli())
	w := cache.NewWriter(cache.New(ingest, clk, 1, cache.DefaultTiming()))
	flush := func(minute int) error {
		return w.Flush(t.Context(), []cache.BlockSamples{{Slice: slice, Block: blocks.Of(0, 4), Samples: []metric.Sample{
			{Schedule: 1, TimeMs: ten.Add(time.Duration(minute) * time.Minute).UnixMilli(), Value: float64(minute)},
		}}})
	}
	require.NoError(t, flush(10))

	c.Node(1).Kill()
	c.Node(2).Kill()
	ingest.Store = landing{alone}
	require.ErrorIs(t, flush(11), storage.ErrTimeout)
	c.Node(0).Kill()
	// Nothing of the write is on its way to the others any more: the node that had it to send is dead.
	var restarts errgroup.Group
	for _, node := range []int{1, 2} {
		restarts.Go(func() error { return c.Node(node).Restart(t.Context()) })
	}
	require.NoError(t, restarts.Wait())
	require.NoError(t, c.AwaitUp(t.Context()))

	others := through(gocql.LocalQuorum, 1, 2)
	runner := engine.New(engine.Options{
		Store: others, Clock: clk, Writer: 2, Worker: storage.Worker{ID: "worker"}, Timeout: time.Hour, Rollup: &rollup.Options{},
	}).Runner
	run := func() {
		t.Helper()
		_, err := runner.RunDue(t.Context())
		require.NoError(t, err)
	}
	requireCounts := func(raw, row int, why string) {
		t.Helper()
		var inRaw, inRow int
		for ch, err := range others.RawChunks(t.Context(), blocks.Range{End: 4}, slice.StartMs, slice.EndMs) {
			require.NoError(t, err)
			samples, err := blocks.DecodeSamples(nil, ch.Data)
			require.NoError(t, err)
			inRaw += len(samples)
		}
		for r, err := range others.Rollups(t.Context(), 1, blocks.Range{End: 4}, slice.StartMs, slice.EndMs) {
			require.NoError(t, err)
			inRow += int(r.Count)
		}
		require.Equal(t, [2]int{raw, row}, [2]int{inRaw, inRow}, why)
	}

	clk.Set(ten.Add(time.Hour + 2*time.Minute))
	run()
	requireCounts(1, 1, "two copies of three do not have it")

	require.NoError(t, c.Node(0).Restart(t.Context()))
	require.NoError(t, c.AwaitUp(t.Context()))
	// A read at ALL asks all nodes, and tells each what the others have.
	config := gocql.NewCluster(c.Node(1).Addr())
	config.DisableInitialHostLookup, config.Consistency = true, gocql.All
	config.ConnectTimeout, config.Timeout = timeout, timeout
	all, err := config.CreateSession()
	require.NoError(t, err)
	t.Cleanup(all.Close)
	process.Eventually(t, "an answer of all nodes", all.Query("SELECT * FROM quern.raw_metrics").Exec)
	requireCounts(2, 1, "it has come to light after the run")

	ingest.Store = through(gocql.LocalQuorum, 0, 1, 2)
	require.NoError(t, w.Settle(t.Context()), "as ingest does each second")
	clk.Set(ten.Add(2*time.Hour + 2*time.Minute))
	run()
	requireCounts(2, 2, "the row has it too")
}
