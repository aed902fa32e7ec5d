package cassandra

import (
	"context"
	"iter"

	"github.com/gocql/gocql"
)

// Session reads keyspaces that are not Quern's. Their servers may be older than those that Quern's own tables need.
type Session struct{ driver *driver }

// Connect connects to the cluster in opts. The session has no keyspace: for a missing one gocql reports that no server
// answers. So statements name theirs.
func Connect(ctx context.Context, opts Options) (*Session, error) {
	opts.ensureDefaults()
	opts.Timeout = max(opts.Timeout, ddlTimeout) // Exec needs it, and nobody waits for a read
	config, err := clusterConfig(&opts)
	if err != nil {
		return nil, err
	}
	config.ProtoVersion = 0 // the newest that the servers know
	balance := gocql.RoundRobinHostPolicy()
	if opts.LocalDC != "" {
		balance = inDC(opts.LocalDC)
	}
	config.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(balance)
	d, err := createSession(ctx, &opts, config)
	if err != nil {
		return nil, err
	}
	return &Session{d}, nil
}

// Close closes the connections.
func (s *Session) Close() { s.driver.close() }

// Exec runs a statement that changes the schema. It does not wait until all nodes have the change.
func (s *Session) Exec(ctx context.Context, cql string) error {
	return convert(ctx, s.driver.ContextQuery(ctx, cql, nil).ExecRelease())
}

// Select yields what a query finds, row by row, from pages of up to pageRows. R is a struct with db tags. No request is
// open while the loop's body runs. The error of a table or a column that does not exist is a storage.ErrRefused.
func Select[R any](ctx context.Context, s *Session, pageRows int, cql string, args ...any) iter.Seq2[R, error] {
	return rows[R](ctx, s.driver, pageRows, stmt(cql, args...))
}
