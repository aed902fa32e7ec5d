// Package stores runs the tests of every store on a real Cassandra: the contract's conformance
// suite, the acceptance scripts and sweeps, and random histories compared with the model.
package stores

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/integration/acceptance"
	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) {
	keyspaces.emptied.L = &keyspaces
	goleak.VerifyTestMain(cassandratest.Stopping(leavingNone{m}),
		// gocql waits ten seconds before it connects to a node that has come up, even if the session has been closed.
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Session).handleNodeUp"))
}

// leavingNone waits, after the tests, for the keyspaces that are still being emptied.
type leavingNone struct{ m cassandratest.Runner }

func (l leavingNone) Run() int {
	defer keyspaces.emptying.Wait()
	return l.m.Run()
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

// keyspaces are the keyspaces of this package. Creating one takes several seconds and emptying one
// takes one second, so they are emptied while later tests run.
var keyspaces struct {
	sync.Mutex
	made, dirty int // dirty ones are being emptied
	ready       []*keyspace
	emptying    sync.WaitGroup
	emptied     sync.Cond // dirty has changed
	err         error
}

// keyspace keeps its tables, and the version of its schema, when it is emptied: to apply the schema
// again takes longer than most tests.
type keyspace struct {
	name string
	// ladders are those for whose levels there are tables.
	ladders map[string]bool
}

// enoughKeyspaces is the number of keyspaces from which on a test waits for one that is being
// emptied.
const enoughKeyspaces = 3

// timeout is long: a request fails where a test makes it fail, and not because the server is busy.
const timeout = 30 * time.Second

// place returns an empty keyspace for one test. The test must apply the schema, with this ladder.
func place(t testing.TB, ladder metric.Ladder) cassandra.Options {
	t.Helper()
	server := cassandratest.Shared(t)
	opts := cassandra.Options{Hosts: server.Hosts(), DirectHosts: server.Way() == cassandratest.WayDocker, Timeout: timeout}
	ks := &keyspaces
	ks.Lock()
	defer ks.Unlock()
	for len(ks.ready) == 0 && ks.dirty > 0 && ks.made >= enoughKeyspaces {
		ks.emptied.Wait()
	}
	require.NoError(t, ks.err, "empty a keyspace")
	var k *keyspace
	if n := len(ks.ready); n > 0 {
		k, ks.ready = ks.ready[n-1], ks.ready[:n-1]
		opts.Keyspace = k.name
		if !k.ladders[ladder.String()] {
			unversion(t, opts)
		}
	} else {
		ks.made++
		k = &keyspace{fmt.Sprintf("quern_test_%d", ks.made), map[string]bool{}}
		opts.Keyspace = k.name
		create(t, opts)
	}
	k.ladders[ladder.String()] = true
	t.Cleanup(func() {
		ks.Lock()
		defer ks.Unlock()
		ks.dirty++
		ks.emptying.Go(func() {
			err := empty(opts)
			ks.Lock()
			defer ks.Unlock()
			ks.dirty--
			if err != nil {
				ks.err = err
			} else {
				ks.ready = append(ks.ready, k)
			}
			ks.emptied.Broadcast()
		})
	})
	return opts
}

func connect(t testing.TB, opts cassandra.Options, keyspace string) *gocql.Session {
	t.Helper()
	s, err := session(opts, keyspace)
	require.NoError(t, err)
	return s
}

func session(opts cassandra.Options, keyspace string) (*gocql.Session, error) {
	config := gocql.NewCluster(opts.Hosts...)
	config.Keyspace, config.DisableInitialHostLookup = keyspace, opts.DirectHosts
	config.Consistency = gocql.One
	config.ConnectTimeout, config.Timeout = timeout, 10*timeout // long, for statements that change tables
	return config.CreateSession()
}

// create creates a keyspace without a commit log, which no test here needs. Data that is only in
// memory can be emptied without being written to disk first.
func create(t testing.TB, opts cassandra.Options) {
	t.Helper()
	s := connect(t, opts, "")
	defer s.Close()
	require.NoError(t, s.Query("DROP KEYSPACE IF EXISTS "+opts.Keyspace).Exec())
	require.NoError(t, s.Query("CREATE KEYSPACE "+opts.Keyspace+
		" WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false").Exec())
}

// unversion forgets the version of the schema, so that applying it makes all tables that are missing.
func unversion(t testing.TB, opts cassandra.Options) {
	t.Helper()
	s := connect(t, opts, opts.Keyspace)
	defer s.Close()
	require.NoError(t, s.Query("DELETE FROM settings WHERE name = 'schema_version'").Exec())
}

func empty(opts cassandra.Options) error {
	s, err := session(opts, opts.Keyspace)
	if err != nil {
		return err
	}
	defer s.Close()
	var version string
	if err := s.Query("SELECT value FROM settings WHERE name = 'schema_version'").Scan(&version); err != nil && !errors.Is(err, gocql.ErrNotFound) {
		return err
	}
	var tables []string
	it := s.Query("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", opts.Keyspace).Iter()
	for name := ""; it.Scan(&name); {
		tables = append(tables, name)
	}
	if err := it.Close(); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(4)
	for _, name := range tables {
		g.Go(func() error { return s.Query("TRUNCATE " + name).Exec() })
	}
	if err := g.Wait(); err != nil || version == "" {
		return err
	}
	return s.Query("INSERT INTO settings (name, value) VALUES ('schema_version', ?)", version).Exec()
}
