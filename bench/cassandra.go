package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/gocql/gocql"

	"github.com/quern/quern/integration/cassandratest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

// blocksInFlight is the number of blocks that an aggregator over Cassandra grinds at once.
const blocksInFlight = 32

// cluster is the Cassandra to measure, and where a step works in it.
type cluster struct {
	hosts    []string
	direct   bool // whether to connect only to hosts
	keyspace string
	about    string // a description for the report
	// nodetool operates a server that this program started; nil otherwise, and in the processes of steps.
	nodetool func(ctx context.Context, args ...string) (string, error)
}

func cassandraMeasurements() []measurement {
	return append([]measurement{
		warmUpMeasurement(),
		warmUpRunMeasurement(),
		insertMeasurement(),
		newSeriesOfClusterMeasurement(),
		cassandraHourMeasurement(),
		cassandraMillionMeasurement(),
		packedMeasurement(),
	}, blockSizeMeasurements()...)
}

// startServer starts the Cassandra to measure, unless one was named.
func startServer(ctx context.Context, opts *options, stderr io.Writer) (stop func(), err error) {
	stop = func() {}
	how := "as named by -hosts"
	if len(opts.cluster.hosts) == 0 {
		fmt.Fprintf(stderr, "starting Cassandra\n")
		server, err := cassandratest.Start(ctx, cassandratest.Options{OnDisk: true, Logf: func(format string, args ...any) {
			fmt.Fprintf(stderr, format+"\n", args...)
		}})
		if err != nil {
			return nil, err
		}
		stop = server.Stop
		opts.cluster.nodetool = server.Nodetool
		opts.cluster.hosts, opts.cluster.direct = server.Hosts(), server.Way() == cassandratest.WayDocker
		how = map[cassandratest.Way]string{
			cassandratest.WayDocker: "in a container on this machine",
			cassandratest.WayJVM:    "as a process on this machine, 1 GiB of heap, trie memtables, BTI tables",
		}[server.Way()]
	}
	if opts.cluster.about, err = about(ctx, opts.cluster, how); err != nil {
		stop()
		return nil, err
	}
	return stop, nil
}

// about returns what the servers report about themselves.
func about(ctx context.Context, c cluster, how string) (string, error) {
	s, err := connect(c, "")
	if err != nil {
		return "", err
	}
	defer s.Close()
	version, commitLog := "", ""
	if err := s.Query(`SELECT release_version FROM system.local`).WithContext(ctx).Scan(&version); err != nil {
		return "", err
	}
	if err := s.Query(`SELECT value FROM system_views.settings WHERE name = 'commitlog_sync'`).WithContext(ctx).Scan(&commitLog); err != nil {
		return "", err
	}
	peers := 0
	if err := s.Query(`SELECT count(*) FROM system.peers`).WithContext(ctx).Scan(&peers); err != nil {
		return "", err
	}
	return fmt.Sprintf("Cassandra %s %s; nodes: %d; commit log: %s", version, how, 1+peers, commitLog), nil
}

// newKeyspace names a new keyspace for a measurement, and sets it in opts. The first step creates it, and may create others
// whose names begin with this one.
func newKeyspace(ctx context.Context, opts *options) (args []string, remove func() error) {
	name := fmt.Sprintf("quern_bench_%08x", rand.Uint32())
	opts.cluster.keyspace = name
	args = []string{"-store", storeCassandra, "-hosts", strings.Join(opts.cluster.hosts, ","), "-keyspace", name}
	if opts.cluster.direct {
		args = append(args, "-direct")
	}
	return args, func() error {
		s, err := connect(opts.cluster, "")
		if err != nil {
			return err
		}
		defer s.Close()
		for _, side := range sides {
			err = errors.Join(err, s.Query("DROP KEYSPACE IF EXISTS "+name+side.suffix).WithContext(context.WithoutCancel(ctx)).Exec())
		}
		return err
	}
}

// connect opens a session with the store's settings.
func connect(c cluster, keyspace string) (*gocql.Session, error) {
	config := gocql.NewCluster(c.hosts...)
	config.Keyspace, config.DisableInitialHostLookup = keyspace, c.direct
	config.Consistency = gocql.LocalQuorum
	config.NumConns = 2
	config.Timeout, config.ConnectTimeout, config.WriteTimeout = 20*time.Second, 20*time.Second, 20*time.Second
	config.PoolConfig.HostSelectionPolicy = gocql.TokenAwareHostPolicy(gocql.RoundRobinHostPolicy())
	return config.CreateSession()
}

func cassandraOptions(b *bench) cassandra.Options {
	return cassandra.Options{
		Hosts: b.cluster.hosts, Keyspace: b.cluster.keyspace, DirectHosts: b.cluster.direct,
		Policy: storage.Policy{Retention: retention}.Always,
	}
}

// applySchema creates Quern's tables, with the given block size.
func applySchema(ctx context.Context, b *bench, blockSize int) error {
	opts := cassandraOptions(b)
	opts.Settings = settings(blockSize)
	return cassandra.ApplySchema(ctx, opts, "", func(int, int, string) {})
}

func openCassandra(ctx context.Context, b *bench, clk clock.Clock, log *slog.Logger) (storage.Store, error) {
	opts := cassandraOptions(b)
	opts.Clock, opts.Logger = clk, log
	st, err := cassandra.Open(ctx, opts)
	if err != nil {
		return nil, err // not st, which would make an interface that holds a nil *Store
	}
	return st, nil
}
