package cassandratest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"
)

// startLimit is how long a shared server may take: the fetch of an image or jars, and a start on a
// loaded machine.
const startLimit = 20 * time.Minute

// shared is the one server of this process, since a start takes longer than most tests, and its
// keyspaces. To create the tables of one takes the server several seconds, and to empty them one
// second. So a keyspace is emptied after a test, and used again.
var shared struct {
	sync.Mutex
	stops   bool   // TestMain will stop the server
	server  Server // the zero value before the first test
	err     error
	session *gocql.Session // nil before the first keyspace
	made    int
	ready   []*keyspace
}

// Shared returns a server with the default options, which all tests of a package share. The first
// call starts it. The package's TestMain runs Stopping, which stops it. With -short, the test is
// skipped.
func Shared(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("it takes a Cassandra, and -short is for tests without")
	}
	shared.Lock()
	defer shared.Unlock()
	if !shared.stops {
		t.Fatal("cassandratest.Shared: nothing would stop the server; run cassandratest.Stopping in TestMain")
	}
	if shared.server == (Server{}) && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startLimit)
		defer cancel()
		var s *Server
		if s, shared.err = Start(ctx, Options{Logf: t.Logf}); shared.err == nil {
			shared.server = *s
		}
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return &shared.server
}

// Runner runs tests: *testing.M, or a stand-in.
type Runner interface{ Run() int }

// Stopping returns m, followed by the stop of the server that its tests share, if there is one. Goroutines that are left
// then belong to the tests.
func Stopping(m Runner) Runner {
	shared.stops = true
	return runAndStop{m}
}

type runAndStop struct{ m Runner }

func (r runAndStop) Run() int {
	defer func() {
		if shared.session != nil {
			shared.session.Close()
		}
		if shared.server != (Server{}) {
			shared.server.Stop()
		}
	}()
	return r.m.Run()
}

// keyspace is a keyspace of the shared server, for Quern's tables. It has no commit log, which no
// test on that server needs: data that is only in memory is emptied without being written to disk
// first.
type keyspace struct {
	name   string
	ladder string
	// written is the number of writes to each table when it was last emptied.
	written map[string]int64
}

// SharedKeyspace returns the name of a keyspace of the Shared server whose tables are empty, if it
// has any. The test has it for itself, must apply the schema with this ladder of roll-ups, and must
// not change the tables otherwise. The keyspace keeps its tables, with the version of its schema,
// for tests that follow: to apply the schema again takes longer than most tests.
func SharedKeyspace(t testing.TB, ladder string) string {
	t.Helper()
	server := Shared(t)
	shared.Lock()
	defer shared.Unlock()
	k, err := takeKeyspace(server, ladder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.empty(); err != nil {
			t.Errorf("empty a keyspace: %v", err)
			return // nobody gets it any more
		}
		shared.Lock()
		defer shared.Unlock()
		shared.ready = append(shared.ready, k)
	})
	return k.name
}

// takeKeyspace returns a keyspace that is ready, or a new one. The caller has locked shared.
func takeKeyspace(server *Server, ladder string) (*keyspace, error) {
	if shared.session == nil {
		config := gocql.NewCluster(server.Hosts()...)
		config.DisableInitialHostLookup = server.Way() == WayDocker
		config.Consistency = gocql.One
		config.ConnectTimeout, config.Timeout = 5*time.Minute, 5*time.Minute
		s, err := config.CreateSession()
		if err != nil {
			return nil, fmt.Errorf("connect to make keyspaces: %w", err)
		}
		shared.session = s
	}
	if i := slices.IndexFunc(shared.ready, func(k *keyspace) bool { return k.ladder == ladder }); i >= 0 {
		k := shared.ready[i]
		shared.ready = slices.Delete(shared.ready, i, i+1)
		return k, nil
	}
	shared.made++
	k := &keyspace{name: fmt.Sprintf("quern_test_%d", shared.made), ladder: ladder, written: map[string]int64{}}
	return k, k.exec("CREATE KEYSPACE %s WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false")
}

// exec executes a statement with the name of the keyspace in it.
func (k *keyspace) exec(cql string, values ...any) error {
	return shared.session.Query(fmt.Sprintf(cql, k.name), values...).Exec()
}

// empty empties the tables, and leaves the version of the schema. To empty a table takes the server
// as much as hundreds of writes, even if there is nothing in it. So it is only done to tables that
// were written to since they were last emptied: the server counts that.
func (k *keyspace) empty() error {
	var version string
	err := shared.session.Query("SELECT value FROM " + k.name + ".settings WHERE name = 'schema_version'").Scan(&version)
	if err != nil && !errors.Is(err, gocql.ErrNotFound) {
		return err
	}
	var g errgroup.Group
	g.SetLimit(4)
	it := shared.session.Query("SELECT keyspace_name, table_name, count FROM system_views.local_write_latency").Iter()
	var name, table string
	for count := int64(0); it.Scan(&name, &table, &count); {
		if name == k.name && count != k.written[table] {
			k.written[table] = count
			truncate := "TRUNCATE %s." + table
			g.Go(func() error { return k.exec(truncate) })
		}
	}
	if err := errors.Join(it.Close(), g.Wait()); err != nil || version == "" {
		return err
	}
	return k.exec("INSERT INTO %s.settings (name, value) VALUES ('schema_version', ?)", version)
}
