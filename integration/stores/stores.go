// Package stores opens stores over a real Cassandra for the suites that all stores share. Its own tests are what only
// Cassandra can show: TTLs, tombstones, timestamps, copies.
package stores

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

// Open prepares an empty store and opens it, as storagetest.Run wants it: with a function that opens
// it again.
func Open(t *testing.T, s storage.Settings, r storage.Retention, clk clock.Clock) (storage.Store, func() storage.Store) {
	reopen := open(t, s, r, clk)
	return reopen(), reopen
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

// openAt prepares an empty store in a keyspace that the caller has chosen. The returned function opens
// it, each time for another process.
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
		Keyspace: cassandratest.SharedKeyspace(t, ladder.String()),
	}
}
