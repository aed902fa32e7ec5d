// Package stores runs the tests of every store on a real Cassandra: the contract's conformance
// suite, the acceptance scripts and sweeps, and random histories compared with the model.
package stores

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/integration/acceptance"
	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(cassandratest.Stopping(m),
		// gocql waits ten seconds before it connects to a node that has come up, even if the session has been closed.
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Session).handleNodeUp"))
}

func TestConformance(t *testing.T) {
	storagetest.Run(t, openBoth, storagetest.MissingExpire, storagetest.MissingTTL, storagetest.MissingNewestID)
}

// TestHistory runs random histories of operations on the model and on Cassandra.
func TestHistory(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			h := storagetest.History{Seed: seed, Steps: 250, NoExpire: true, ManyWriters: true}
			h.Run(t, storagetest.OpenModel, openBoth)
		})
	}
}

func openBoth(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
	reopen := open(t, s, r, clk)
	return reopen(), reopen
}

func TestAcceptance(t *testing.T) {
	acceptance.Run(t, acceptance.Backend{Open: openAny, Stride: 83, Histories: 1, ManyWriters: true})
}

// openAny prepares an empty store. The returned function opens it, each time for another process.
func openAny(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	t.Helper()
	return openAt(t, place(t, s.Ladder), s, r, clk)
}

// open prepares an empty store. The returned function opens it. A later call closes the store and
// opens it again.
func open(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	t.Helper()
	another := openAt(t, place(t, s.Ladder), s, r, clk)
	last := func() error { return nil }
	return func() storage.Store {
		_ = last()
		st := another()
		last = st.Close
		return st
	}
}

// openAt is openAny in a keyspace that the caller has chosen.
func openAt(t testing.TB, opts cassandra.Options, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	t.Helper()
	opts.Settings, opts.Clock = s, clk
	opts.Policy = storage.Policy{Retention: r}.Always
	require.NoError(t, cassandra.ApplySchema(t.Context(), opts, "", func(int, int, string) {}))
	return func() storage.Store {
		st, err := cassandra.Open(context.WithoutCancel(t.Context()), opts)
		require.NoError(t, err)
		c := &closing{Store: st}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
}

// closing may be closed twice, by the test and by its cleanup.
type closing struct {
	*cassandra.Store
	once sync.Once
}

func (c *closing) Close() (err error) {
	c.once.Do(func() { err = c.Store.Close() })
	return err
}

// timeout is long: a request fails where a test makes it fail, and not because the server is busy.
const timeout = 30 * time.Second

// place returns an empty keyspace for one test. The test must apply the schema, with this ladder.
func place(t testing.TB, ladder metric.Ladder) cassandra.Options {
	t.Helper()
	server := cassandratest.Shared(t)
	return cassandra.Options{
		Hosts: server.Hosts(), DirectHosts: server.Way() == cassandratest.WayDocker, Timeout: timeout,
		Keyspace: cassandratest.SharedKeyspace(t, ladder.String()).Name,
	}
}

// connect opens a session for what no store does.
func connect(t testing.TB, opts cassandra.Options, keyspace string) *gocql.Session {
	t.Helper()
	config := gocql.NewCluster(opts.Hosts...)
	config.Keyspace, config.DisableInitialHostLookup = keyspace, opts.DirectHosts
	config.Consistency = gocql.One
	config.ConnectTimeout, config.Timeout = timeout, 10*timeout // long, for statements that change tables
	s, err := config.CreateSession()
	require.NoError(t, err)
	return s
}
