// Package cluster tests the programs over Cassandra: real processes, real servers that are killed
// and restarted, real refusals.
package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/integration/process"
)

// programs are the programs under test.
var programs *process.Programs

// timing fits a ladder of seconds.
var timing = []string{"--aggregation-delay", "2s", "--late-grace", "1s"}

func TestMain(m *testing.M) {
	os.Exit(process.Tests{M: cassandratest.Stopping(m), Use: func(p *process.Programs) { programs = p }}.Run())
}

// startLimit is how long a server or a cluster may take to start.
const startLimit = 20 * time.Minute

// patient are flags of all programs that have no faults injected: none may have a time-out only because the machine is busy.
var patient = []string{"--cassandra-timeout", "30s"}

// aliveFor are flags with which others soon notice that a worker has died, and not that the machine is busy.
var aliveFor = []string{"--heartbeat-timeout", "15s"}

// place is a keyspace in a cluster, and how to connect to it.
type place struct {
	hosts    []string
	direct   bool
	keyspace string
	login    []string // more flags
	session  func(*gocql.ClusterConfig)
}

// placeIn returns a new place. Its keyspace does not exist yet.
func placeIn(hosts []string) place {
	return place{hosts: hosts, keyspace: fmt.Sprintf("quern_it_%08x", rand.Uint32())}
}

// sharedPlace returns a place in the server that tests share.
func sharedPlace(t *testing.T) place {
	t.Helper()
	server := cassandratest.Shared(t)
	pl := placeIn(server.Hosts())
	pl.direct = server.Way() == cassandratest.WayDocker
	t.Cleanup(func() {
		// The server may outlive the tests.
		require.NoError(t, pl.connect(t).Query("DROP KEYSPACE IF EXISTS "+pl.keyspace).Exec())
	})
	return pl
}

// ownServer returns a server that the test may kill. It ends with the test.
func ownServer(t *testing.T, o cassandratest.Options) *cassandratest.Server {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startLimit)
	defer cancel()
	o.Logf = t.Logf
	begin := time.Now()
	server, err := cassandratest.Start(ctx, o)
	require.NoError(t, err)
	t.Cleanup(server.Stop)
	t.Logf("Cassandra started in %s", time.Since(begin).Round(time.Second))
	return server
}

// flags returns the flags with which a program connects.
func (pl place) flags() []string {
	hosts := pl.hosts[0]
	for _, host := range pl.hosts[1:] {
		hosts += "," + host
	}
	flags := []string{"--cassandra-hosts", hosts, "--keyspace", pl.keyspace}
	if pl.direct {
		flags = append(flags, "--cassandra-direct")
	}
	return append(flags, pl.login...)
}

// connect opens a session for what no program does. It ends with the test.
func (pl place) connect(t testing.TB) *gocql.Session {
	t.Helper()
	config := gocql.NewCluster(pl.hosts...)
	config.DisableInitialHostLookup = pl.direct
	config.Consistency = gocql.Quorum
	config.ConnectTimeout, config.Timeout = 5*time.Minute, 5*time.Minute
	if pl.session != nil {
		pl.session(config)
	}
	s, err := config.CreateSession()
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

// quern, ingest and aggregator start the programs at this place.
func (pl place) quern(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return pl.start(t, programs.Quern, args...)
}

func (pl place) ingest(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return pl.start(t, programs.Ingest, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
}

func (pl place) aggregator(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return pl.start(t, programs.Aggregator, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
}

func (pl place) start(t *testing.T, program string, args ...string) *process.Process {
	t.Helper()
	return process.Start(t, exec.CommandContext(t.Context(), program, slices.Concat(args, patient, pl.flags())...))
}

// apply creates the tables.
func (pl place) apply(t *testing.T, args ...string) {
	t.Helper()
	pl.applied(t, pl.quern(t, append([]string{"schema", "apply"}, args...)...))
}

// applied waits until the tables are created.
func (pl place) applied(t *testing.T, p *process.Process) {
	t.Helper()
	// Cassandra is slow to create tables, above all on a slow disk.
	select {
	case <-p.Ended:
	case <-time.After(startLimit):
	}
	require.Equal(t, 0, p.ExitCode(), "%s", &p.Stderr)
	require.Contains(t, p.Stdout.String(), "Keyspace "+pl.keyspace+" is ready")
	for _, host := range pl.hosts {
		one := pl
		one.hosts, one.direct = []string{host}, true
		// A node that lacks a table refuses this.
		require.NoError(t, one.connect(t).Query("SELECT * FROM "+pl.keyspace+".shards LIMIT 1").Consistency(gocql.One).Exec(), "at %s", host)
	}
}

// ready waits until all of the processes are ready.
func ready(ps ...*process.Process) {
	for _, p := range ps {
		p.Ready()
	}
}

// running fails the test if one of the processes has ended.
func running(t *testing.T, ps ...*process.Process) {
	t.Helper()
	for _, p := range ps {
		select {
		case <-p.Ended:
			require.Fail(t, "a program has ended", "%s: %s", p.Cmd, p.Cmd.ProcessState)
		default:
		}
	}
}

// serve starts one process that does everything.
func (pl place) serve(t *testing.T, args ...string) *process.Process {
	t.Helper()
	return pl.quern(t, append([]string{"serve", "--store", "cassandra", "--host-metrics=false", "--listen", "127.0.0.1:0"}, args...)...)
}
