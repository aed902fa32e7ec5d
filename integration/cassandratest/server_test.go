package cassandratest

import (
	"os"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(Stopping(m)) }

func connect(t *testing.T, s *Server) *gocql.Session {
	t.Helper()
	c := gocql.NewCluster(s.Hosts()...)
	c.DisableInitialHostLookup = s.Way() == WayDocker
	c.ConnectTimeout, c.Timeout = 10*time.Second, 30*time.Second
	session, err := c.CreateSession()
	require.NoError(t, err)
	t.Cleanup(session.Close)
	return session
}

// TestShared writes to the server that is had by the order of the ways, and reads.
func TestShared(t *testing.T) {
	s := Shared(t)
	t.Logf("by way of %s: %q", s.Way(), s.Hosts())
	require.Same(t, s, Shared(t))
	if forced := os.Getenv(envWay); forced != "" {
		require.Equal(t, Way(forced), s.Way())
	}
	session := connect(t, s)
	for _, cql := range []string{
		`CREATE KEYSPACE cassandratest WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}`,
		`CREATE TABLE cassandratest.samples (series int, at timestamp, value double, PRIMARY KEY (series, at))`,
		`INSERT INTO cassandratest.samples (series, at, value) VALUES (7, 1000, 0.5)`,
	} {
		require.NoError(t, session.Query(cql).Exec(), cql)
	}
	var value float64
	require.NoError(t, session.Query(`SELECT value FROM cassandratest.samples WHERE series = 7`).Scan(&value))
	require.Equal(t, 0.5, value)
	require.NoError(t, session.Query(`DROP KEYSPACE cassandratest`).Exec())
}
