package cassandratest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gocql/gocql"
	"golang.org/x/sync/errgroup"
)

// keyspaceLimit is how long a statement that makes or empties a table may take.
const keyspaceLimit = 5 * time.Minute

// keyspaces are those of the shared server. To create the tables of one takes the server several
// seconds, and to empty them one second. So a keyspace is emptied after a test, and used again.
var keyspaces struct {
	sync.Mutex
	session *gocql.Session // nil before the first keyspace
	made    int
	ready   []*Keyspace
}

// Keyspace is a keyspace of the shared server, for Quern's tables. It has no commit log, which no
// test on that server needs: data that is only in memory is emptied without being written to disk
// first.
type Keyspace struct {
	Name string

	session *gocql.Session
	// alone: the server is a single node, so that it counts all writes.
	alone bool
	// ladders are those for whose levels there are tables.
	ladders map[string]bool
	// written is the number of writes to each table when it was last emptied.
	written map[string]int64
}

// SharedKeyspace returns a keyspace of the Shared server whose tables are empty, if it has any. The
// test has it for itself, must apply the schema with this ladder of roll-ups, and must not change
// the tables otherwise. The keyspace keeps its tables, with the version of its schema, for tests
// that follow: to apply the schema again takes longer than most tests.
func SharedKeyspace(t testing.TB, ladder string) *Keyspace {
	t.Helper()
	server := Shared(t)
	ks := &keyspaces
	ks.Lock()
	defer ks.Unlock()
	k, err := takeKeyspace(server, ladder)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Empty(); err != nil {
			t.Errorf("empty a keyspace: %v", err)
			return // nobody gets it any more
		}
		ks.Lock()
		defer ks.Unlock()
		ks.ready = append(ks.ready, k)
	})
	return k
}

// takeKeyspace returns a keyspace that is ready, one with tables for the ladder before others, or a
// new one. The caller has locked keyspaces.
func takeKeyspace(server *Server, ladder string) (*Keyspace, error) {
	ks := &keyspaces
	if ks.session == nil {
		s, err := openSession(server)
		if err != nil {
			return nil, fmt.Errorf("connect to make keyspaces: %w", err)
		}
		ks.session = s
	}
	if len(ks.ready) == 0 {
		k := &Keyspace{
			Name: keyspaceName(os.Args[0], ks.made+1), session: ks.session,
			alone: server.Way() != WayHosts, ladders: map[string]bool{ladder: true}, written: map[string]int64{},
		}
		ks.made++
		return k, k.create()
	}
	i := max(0, slices.IndexFunc(ks.ready, func(k *Keyspace) bool { return k.ladders[ladder] }))
	k := ks.ready[i]
	ks.ready = slices.Delete(ks.ready, i, i+1)
	if k.ladders[ladder] {
		return k, nil
	}
	k.ladders[ladder] = true
	// Without a version of the schema, applying it makes all tables that are missing.
	return k, k.exec("DELETE FROM %s.settings WHERE name = 'schema_version'")
}

// keyspaceName returns a name for the n-th keyspace of a test program. It has the name of the
// package, since the tests of several packages may run on one server at once.
func keyspaceName(program string, n int) string {
	name, _, _ := strings.Cut(filepath.Base(program), ".")
	return fmt.Sprintf("quern_test_%s_%d", notInNames.ReplaceAllString(strings.ToLower(name), "_"), n)
}

var notInNames = regexp.MustCompile(`[^a-z0-9_]`)

func openSession(server *Server) (*gocql.Session, error) {
	config := gocql.NewCluster(server.Hosts()...)
	config.DisableInitialHostLookup = server.Way() == WayDocker
	config.Consistency = gocql.One
	config.ConnectTimeout, config.Timeout = keyspaceLimit, keyspaceLimit
	return config.CreateSession()
}

// exec executes a statement with the name of the keyspace in it.
func (k *Keyspace) exec(cql string, values ...any) error {
	return k.session.Query(fmt.Sprintf(cql, k.Name), values...).Exec()
}

func (k *Keyspace) create() error {
	if err := k.exec("DROP KEYSPACE IF EXISTS %s"); err != nil {
		return err
	}
	return k.exec("CREATE KEYSPACE %s WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1} AND durable_writes = false")
}

// Empty empties the tables, except some that the test does not read, and leaves the version of the
// schema.
func (k *Keyspace) Empty(except ...string) error {
	var version string
	err := k.session.Query("SELECT value FROM " + k.Name + ".settings WHERE name = 'schema_version'").Scan(&version)
	if err != nil && !errors.Is(err, gocql.ErrNotFound) {
		return err
	}
	tables, err := k.dirty(except)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(4)
	for _, table := range tables {
		g.Go(func() error { return k.exec("TRUNCATE %s." + table) })
	}
	if err := g.Wait(); err != nil || version == "" {
		return err
	}
	return k.exec("INSERT INTO %s.settings (name, value) VALUES ('schema_version', ?)", version)
}

// dirty returns the tables to empty. To empty a table takes the server as much as hundreds of
// writes, even if there is nothing in it. So these are the tables that were written to since they
// were last emptied, if the server counts that.
func (k *Keyspace) dirty(except []string) ([]string, error) {
	var dirty []string
	if !k.alone {
		it := k.session.Query("SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?", k.Name).Iter()
		for table := ""; it.Scan(&table); {
			if !slices.Contains(except, table) {
				dirty = append(dirty, table)
			}
		}
		return dirty, it.Close()
	}
	it := k.session.Query("SELECT keyspace_name, table_name, count FROM system_views.local_write_latency").Iter()
	var keyspace, table string
	for count := int64(0); it.Scan(&keyspace, &table, &count); {
		if keyspace == k.Name && count != k.written[table] && !slices.Contains(except, table) {
			k.written[table] = count
			dirty = append(dirty, table)
		}
	}
	return dirty, it.Close()
}

// closeKeyspaces forgets all keyspaces.
func closeKeyspaces() {
	ks := &keyspaces
	ks.Lock()
	defer ks.Unlock()
	if ks.session != nil {
		ks.session.Close()
	}
	ks.session, ks.made, ks.ready = nil, 0, nil
}
