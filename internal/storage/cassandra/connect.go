package cassandra

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gocql/gocql"
	"github.com/scylladb/gocqlx/v2"

	"github.com/quern/quern/internal/storage"
)

const (
	cqlLocal = `SELECT data_center, release_version FROM system.local`
	cqlPeers = `SELECT data_center FROM system.peers`
)

// connect inspects the cluster and then makes a session in a keyspace, "" for none.
func connect(ctx context.Context, o *Options, keyspace string) (*driver, cluster, error) {
	config, err := clusterConfig(o)
	if err != nil {
		return nil, cluster{}, err
	}
	// The first session, with one connection, only looks around: where requests go best is not
	// known yet.
	first := *config
	first.NumConns, first.DisableInitialHostLookup = 1, true
	first.PoolConfig.HostSelectionPolicy = gocql.RoundRobinHostPolicy()
	probe, err := createSession(ctx, o, &first)
	if err != nil {
		return nil, cluster{}, err
	}
	c, err := look(ctx, o, probe)
	if err == nil && keyspace != "" {
		var copies map[string]string
		if copies, err = keyspaceCopies(ctx, probe, keyspace); err == nil && copies == nil {
			err = noSchema(o)
		}
	}
	probe.close()
	if err != nil {
		return nil, c, err
	}
	config.Keyspace = keyspace
	n := newNodes(inDC(c.localDC), o.Clock, o.Logger)
	if o.DirectHosts {
		n = newNodes(gocql.RoundRobinHostPolicy(), o.Clock, o.Logger)
	}
	d, err := createWatched(ctx, o, config, n)
	if err != nil {
		return nil, c, err
	}
	return d, c, nil
}

// inDC asks the nodes of one data centre in turn.
func inDC(dc string) gocql.HostSelectionPolicy { return localOnly{gocql.DCAwareRoundRobinPolicy(dc)} }

// localOnly keeps out the nodes of other data centres, to which gocql's policy falls back. Such a
// node would take LOCAL_QUORUM and LOCAL_SERIAL to mean its own data centre: ids and leases would
// be decided twice.
type localOnly struct{ gocql.HostSelectionPolicy }

// AddHost implements gocql.HostStateNotifier.
func (p localOnly) AddHost(h *gocql.HostInfo) {
	if p.IsLocal(h) {
		p.HostSelectionPolicy.AddHost(h)
	}
}

// HostUp implements gocql.HostStateNotifier.
func (p localOnly) HostUp(h *gocql.HostInfo) { p.AddHost(h) }

// createWatched makes a session in which n chooses the node of each request.
func createWatched(ctx context.Context, o *Options, config *gocql.ClusterConfig, n *nodes) (*driver, error) {
	config.PoolConfig.HostSelectionPolicy = n
	config.QueryObserver, config.BatchObserver = n, n
	d, err := createSession(ctx, o, config)
	if err != nil {
		return nil, err
	}
	d.nodes = n
	return d, nil
}

// createSession returns when ctx is done, which gocql does not check, and after a time in which gocql has asked several nodes:
// a session that cannot be made is closed by gocql, which may not return from it; see closeWithin. A session that gocql still
// makes is closed.
func createSession(ctx context.Context, o *Options, config *gocql.ClusterConfig) (*driver, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, max(time.Minute, 10*o.Timeout), fmt.Errorf("%w: no session can be made", storage.ErrUnavailable))
	defer cancel()
	type made struct {
		session *gocql.Session
		err     error
	}
	result := make(chan made, 1)
	go func() {
		s, err := config.CreateSession()
		result <- made{s, err}
	}()
	select {
	case m := <-result:
		if m.err != nil {
			return nil, connectError(ctx, o, m.err)
		}
		return &driver{Session: gocqlx.NewSession(m.session), retry: retries{}}, nil
	case <-ctx.Done():
		go func() {
			if m := <-result; m.err == nil {
				m.session.Close()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

func clusterConfig(o *Options) (*gocql.ClusterConfig, error) {
	config := gocql.NewCluster(o.Hosts...)
	consistency, err := gocql.ParseConsistencyWrapper(o.Consistency)
	if err != nil {
		return nil, fmt.Errorf("--consistency %s: %w", o.Consistency, err)
	}
	config.Consistency = consistency
	config.SerialConsistency = gocql.LocalSerial
	config.ProtoVersion = 4
	config.Timeout, config.ConnectTimeout, config.WriteTimeout = o.Timeout, o.Timeout, o.Timeout
	config.MaxWaitSchemaAgreement = 0 // see driver.agree
	config.NumConns = connsPerNode
	config.ReconnectInterval = time.Second
	config.ReconnectionPolicy = &gocql.ConstantReconnectionPolicy{MaxRetries: 1, Interval: 100 * time.Millisecond}
	config.DisableInitialHostLookup = o.DirectHosts
	config.MaxPreparedStmts = 1000
	config.Logger = discardLogger{}
	if o.Username != "" {
		config.Authenticator = gocql.PasswordAuthenticator{Username: o.Username, Password: o.Password}
	}
	if t := o.TLS; t.enabled() {
		if err := t.check(); err != nil {
			return nil, err
		}
		config.SslOpts = &gocql.SslOptions{
			CaPath: t.CAFile, CertPath: t.CertFile, KeyPath: t.KeyFile, EnableHostVerification: true,
		}
	}
	return config, nil
}

// check reads the files before the driver does. The driver's error for a bad file could be mistaken
// for that of an unavailable server.
func (t *TLS) check() error {
	if t.CAFile != "" {
		text, err := os.ReadFile(t.CAFile)
		if err != nil {
			return fmt.Errorf("--cassandra-ca: %w", err)
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return fmt.Errorf("--cassandra-ca %s: the file contains no certificate", t.CAFile)
		}
	}
	if t.CertFile != "" || t.KeyFile != "" {
		if _, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile); err != nil {
			return fmt.Errorf("--cassandra-cert %s, --cassandra-key %s: %w", t.CertFile, t.KeyFile, err)
		}
	}
	return nil
}

// discardLogger drops the driver's log: what matters comes back as errors.
type discardLogger struct{}

func (discardLogger) Print(...any)          {}
func (discardLogger) Printf(string, ...any) {}
func (discardLogger) Println(...any)        {}

// cluster is what look finds out about the cluster.
type cluster struct {
	localDC string
	nodes   int
	// byDC is the number of nodes in each data centre. A node that has just met another one may not
	// know yet in which one it is.
	byDC map[string]int
}

// known is how many nodes have a known data centre.
func (c *cluster) known() int {
	n := 0
	for _, nodes := range c.byDC {
		n += nodes
	}
	return n
}

func (c *cluster) dataCentres() string {
	return strings.Join(slices.Sorted(maps.Keys(c.byDC)), ", ")
}

// oldest is the oldest major version of Cassandra that has what the schema needs.
const oldest = 5

func look(ctx context.Context, o *Options, s session) (cluster, error) {
	type local struct {
		DataCenter string `db:"data_center"`
		Version    string `db:"release_version"`
	}
	found, err := all[local](ctx, s, stmt(cqlLocal))
	if err != nil {
		return cluster{}, err
	}
	if len(found) != 1 {
		return cluster{}, fmt.Errorf("%w: a node of %s returned no information about itself", storage.ErrUnavailable, strings.Join(o.Hosts, ", "))
	}
	if major, _, _ := strings.Cut(found[0].Version, "."); major != "" {
		if n, err := strconv.Atoi(major); err == nil && n < oldest {
			return cluster{}, refuse("the servers run Cassandra %s, but %d.0 or newer is required", found[0].Version, oldest)
		}
	}
	type peer struct {
		DataCenter string `db:"data_center"`
	}
	peers, err := all[peer](ctx, s, stmt(cqlPeers))
	if err != nil {
		return cluster{}, err
	}
	nodes := map[string]int{found[0].DataCenter: 1}
	for _, p := range peers {
		if p.DataCenter != "" {
			nodes[p.DataCenter]++
		}
	}
	c := cluster{localDC: o.LocalDC, nodes: 1 + len(peers), byDC: nodes}
	switch {
	case o.LocalDC == "" && len(nodes) > 1:
		return c, refuse("the cluster has the data centres %s: name the one of this process with --local-dc",
			c.dataCentres())
	case o.LocalDC == "":
		c.localDC = found[0].DataCenter
	case nodes[o.LocalDC] == 0:
		return c, refuse("the cluster has no data centre %q, only %s: check --local-dc", o.LocalDC, c.dataCentres())
	case o.DirectHosts && o.LocalDC != found[0].DataCenter:
		return c, refuse("the nodes of --cassandra-hosts are in data centre %s, and with --cassandra-direct no others are contacted: check --local-dc %s",
			found[0].DataCenter, o.LocalDC)
	}
	return c, nil
}

// retries sends a failed request to the next node. Only idempotent requests use it.
type retries struct{}

const maxAttempts = 3

// Attempt implements gocql.RetryPolicy.
func (retries) Attempt(q gocql.RetryableQuery) bool { return q.Attempts() < maxAttempts }

// GetRetryType implements gocql.RetryPolicy. An error in the request itself would recur on every
// node, and an overloaded server must not get more work: neither is retried.
func (retries) GetRetryType(err error) gocql.RetryType {
	var frame gocql.RequestError
	if !errors.As(err, &frame) {
		return gocql.RetryNextHost
	}
	if manyTombstones(err) {
		return gocql.Rethrow // every node would meet them
	}
	switch frame.Code() {
	case gocql.ErrCodeWriteTimeout, gocql.ErrCodeReadTimeout, gocql.ErrCodeUnavailable, gocql.ErrCodeBootstrapping,
		gocql.ErrCodeWriteFailure, gocql.ErrCodeReadFailure, gocql.ErrCodeCASWriteUnknown, gocql.ErrCodeServer:
		return gocql.RetryNextHost
	}
	return gocql.Rethrow
}

// isMissingTable says whether a statement was refused because it names a table or column that does
// not exist.
func isMissingTable(err error) bool {
	var frame gocql.RequestError
	return errors.As(err, &frame) && frame.Code() == gocql.ErrCodeInvalid
}
