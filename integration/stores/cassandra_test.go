// Package stores runs on a real Cassandra what every store is tested with: the contract's
// conformance, the acceptance scripts and sweeps, and histories that are lived on the model too.
package stores

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/acceptance"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(cassandratest.Stopping(m)) }

func TestConformance(t *testing.T) {
	storagetest.Run(t, openBoth, storagetest.MissingExpire, storagetest.MissingTTL, storagetest.MissingNewestID)
}

// TestHistory lives random histories of operations on the model and on Cassandra.
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
	acceptance.Run(t, acceptance.Backend{Open: openAny, Stride: 23, Histories: 2, ManyWriters: true})
}

// openAny makes an empty store. What it returns opens it, each time for another process.
func openAny(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	t.Helper()
	return openAt(t, place(t), s, r, clk)
}

// open makes an empty store. What it returns opens it, and the next time closes the one
// before and opens it again.
func open(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	t.Helper()
	another := openAt(t, place(t), s, r, clk)
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

// closing may be closed by whoever is done with it first: the test or its cleanup.
type closing struct {
	*cassandra.Store
	once sync.Once
}

func (c *closing) Close() (err error) {
	c.once.Do(func() { err = c.Store.Close() })
	return err
}

// keyspaces are those made so far and not in use: making one takes seconds, emptying one does not.
var keyspaces struct {
	sync.Mutex
	free []string
	n    int
}

// timeout is long: a request fails where a test says so, and not because the server has much to do.
const timeout = 30 * time.Second

// place is an empty keyspace for one test.
func place(t testing.TB) cassandra.Options {
	t.Helper()
	server := cassandratest.Shared(t)
	opts := cassandra.Options{Hosts: server.Hosts(), DirectHosts: server.Way() == cassandratest.WayDocker, Timeout: timeout}
	keyspaces.Lock()
	defer keyspaces.Unlock()
	if n := len(keyspaces.free); n > 0 {
		opts.Keyspace, keyspaces.free = keyspaces.free[n-1], keyspaces.free[:n-1]
		empty(t, opts)
	} else {
		keyspaces.n++
		opts.Keyspace = fmt.Sprintf("quern_test_%d", keyspaces.n)
		create(t, opts)
	}
	t.Cleanup(func() {
		keyspaces.Lock()
		defer keyspaces.Unlock()
		keyspaces.free = append(keyspaces.free, opts.Keyspace)
	})
	return opts
}

func connect(t testing.TB, opts cassandra.Options, keyspace string) *gocql.Session {
	t.Helper()
	config := gocql.NewCluster(opts.Hosts...)
	config.Keyspace, config.DisableInitialHostLookup = keyspace, opts.DirectHosts
	config.Consistency = gocql.One
	config.ConnectTimeout, config.Timeout = timeout, 10*timeout // for what changes tables
	s, err := config.CreateSession()
	require.NoError(t, err)
	return s
}

// create makes a keyspace without a commit log, which nothing here relies on: what is in
// memory only can be emptied without being written first.
func create(t testing.TB, opts cassandra.Options) {
	t.Helper()
	s := connect(t, opts, "")
	defer s.Close()
	require.NoError(t, s.Query("DROP KEYSPACE IF EXISTS "+opts.Keyspace).Exec())
	require.NoError(t, s.Query("CREATE KEYSPACE "+opts.Keyspace+
		" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false").Exec())
}

func empty(t testing.TB, opts cassandra.Options) {
	t.Helper()
	s := connect(t, opts, opts.Keyspace)
	defer s.Close()
	var tables []string
	it := s.Query("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", opts.Keyspace).Iter()
	for name := ""; it.Scan(&name); {
		tables = append(tables, name)
	}
	require.NoError(t, it.Close())
	require.NotEmpty(t, tables, strings.Join(tables, ","))
	for _, name := range tables {
		require.NoError(t, s.Query("TRUNCATE "+name).Exec())
	}
}
