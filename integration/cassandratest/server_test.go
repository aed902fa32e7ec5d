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

func TestWays(t *testing.T) {
	for _, c := range []struct {
		name        string
		hosts, want string
		options     Options
		ways        []Way
	}{
		{"nothing said", "", "", Options{}, []Way{WayDocker, WayJVM}},
		{"hosts", "a,b:9043", "", Options{HeapMB: 512}, []Way{WayHosts}},
		{"hosts before one way", "a", "docker", Options{}, []Way{WayHosts}},
		{"one way", "", "docker", Options{}, []Way{WayDocker}},
		{"options of our own nodes", "a", "docker", Options{Authentication: true}, []Way{WayJVM}},
		{"TLS", "", "", Options{TLS: TLSServer}, []Way{WayJVM}},
		{"what is Cassandra's default", "", "docker", Options{CommitlogSync: CommitlogPeriodic}, []Way{WayDocker}},
		{"batches", "", "docker", Options{CommitlogSync: CommitlogBatch}, []Way{WayJVM}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(envHosts, c.hosts)
			t.Setenv(envWay, c.want)
			ways, err := waysFor(c.options)
			require.NoError(t, err)
			require.Equal(t, c.ways, ways)
		})
	}
	t.Run("none of them", func(t *testing.T) {
		t.Setenv(envWay, "podman")
		_, err := Start(t.Context(), Options{})
		require.EqualError(t, err, "QUERN_TEST_CASSANDRA=podman: want docker or jvm")
	})
}

func TestHostsAreTaken(t *testing.T) {
	t.Setenv(envHosts, "db1, db2:9043,::1,[::1]:9043,")
	s, err := Start(t.Context(), Options{})
	require.NoError(t, err)
	require.Equal(t, WayHosts, s.Way())
	require.Equal(t, []string{"db1:9042", "db2:9043", "[::1]:9042", "[::1]:9043"}, s.Hosts())
	require.ErrorIs(t, s.Kill(), errWay)
	require.ErrorIs(t, s.Restart(t.Context()), errWay)
	require.Nil(t, s.TLSFiles())
	s.Stop()
}

// TestUnavailable: the error is a sentence that says what to do.
func TestUnavailable(t *testing.T) {
	t.Setenv(envHosts, "")
	t.Setenv(envWay, "jvm")
	t.Setenv(envJars, t.TempDir())
	t.Setenv("PATH", "")
	t.Setenv("JAVA_HOME", "")
	_, err := Start(t.Context(), Options{})
	var missing *UnavailableError
	require.ErrorAs(t, err, &missing)
	require.Regexp(t, `^no Cassandra to test with, since there is no (mvn in PATH|Java 17 in [^:]*): `+
		`install Docker, or Java 17 and Maven, or name one that runs in QUERN_TEST_CASSANDRA_HOSTS$`, err.Error())

	both := &UnavailableError{Why: []string{"no Docker daemon answers", "there is no mvn in PATH"}}
	require.Contains(t, both.Error(), "since no Docker daemon answers and there is no mvn in PATH: install")
}

// TestShared writes to and reads from the server that the order of the ways selects.
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

	status, err := s.Nodetool(t.Context(), "status")
	if s.Way() == WayHosts {
		require.ErrorIs(t, err, errWay)
		return
	}
	require.NoError(t, err)
	require.Contains(t, status, "UN  ")
	require.Contains(t, s.Log(), logsReady)
}
