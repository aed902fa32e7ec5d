package stores

import (
	"fmt"
	"testing"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/integration/acceptance"
	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(cassandratest.Stopping(m),
		// gocql waits ten seconds before it connects to a node that has come up, even if the session has been closed.
		goleak.IgnoreAnyFunction("github.com/gocql/gocql.(*Session).handleNodeUp"))
}

// TestHistory runs random histories of operations on the model and on Cassandra.
func TestHistory(t *testing.T) {
	for seed := range uint64(4) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			h := storagetest.History{Seed: seed, Steps: 250, NoExpire: true, ManyWriters: true}
			h.Run(t, storagetest.OpenModel, Open)
		})
	}
}

func TestAcceptance(t *testing.T) {
	acceptance.Run(t, acceptance.Backend{Open: openAny, Stride: 83, ManyWriters: true})
}

// openAny is openAt in any keyspace.
func openAny(t testing.TB, s storage.Settings, r storage.Retention, clk clock.Clock) func() storage.Store {
	t.Helper()
	return openAt(t, place(t, s.Ladder), s, r, clk)
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
