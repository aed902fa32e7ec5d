package config

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// The categories that --help lists the flags under.
const (
	catStore       = "Store"
	catIngest      = "Ingest"
	catAggregation = "Aggregation"
	catServer      = "Server"
	catQuery       = "Query"
	catRequest     = "Request"
)

// env returns the environment variable of a flag.
func env(name string) []string {
	return []string{"QUERN_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_"))}
}

func str(cat, name, value, usage string) cli.Flag {
	return &cli.StringFlag{Name: name, Category: cat, Value: value, Usage: usage, EnvVars: env(name)}
}

func integer(cat, name string, value int, usage string) cli.Flag {
	return &cli.IntFlag{Name: name, Category: cat, Value: value, Usage: usage, EnvVars: env(name)}
}

func span(cat, name string, value time.Duration, usage string) cli.Flag {
	return &cli.StringFlag{Name: name, Category: cat, Value: metric.FormatSpan(value), Usage: usage, EnvVars: env(name)}
}

func boolean(cat, name string, value bool, usage string) cli.Flag {
	return &cli.BoolFlag{Name: name, Category: cat, Value: value, Usage: usage, EnvVars: env(name)}
}

// ServeFlags returns the flags of `quern serve`.
func ServeFlags() []cli.Flag {
	return slices.Concat(
		processFlags("127.0.0.1:9095"),
		[]cli.Flag{
			boolean(catServer, "host-metrics", true, "take this host's own metrics"),
			span(catServer, "host-metrics-interval", 10*time.Second, "time between two collections of this host's metrics"),
			str(catServer, "source", "", "source of this host's metrics (default: the host's name)"),
			boolean(catServer, "demo", false, "fill an empty store with 26 hours of generated reports first, and go on generating"),
			str(catStore, "store", Pebble, "where data rests: pebble (embedded) or cassandra"),
			str(catStore, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store"),
		},
		cassandraFlags(), madeFlags(), keptFlags(), blockSizeFlags(), ingestFlags(), timingFlags(), LogFlags(),
	)
}

// IngestFlags returns the flags of `ingest`.
func IngestFlags() []cli.Flag {
	return slices.Concat(
		processFlags("127.0.0.1:9095"), sharedStoreFlags(),
		cassandraFlags(), madeFlags(), keptFlags(), blockSizeFlags(), ingestFlags(), timingFlags(), LogFlags(),
	)
}

// AggregatorFlags returns the flags of `aggregator`.
func AggregatorFlags() []cli.Flag {
	return slices.Concat(
		processFlags("127.0.0.1:9096"), sharedStoreFlags(),
		cassandraFlags(), madeFlags(), keptFlags(), timingFlags(), LogFlags(),
	)
}

// SchemaFlags returns the flags of `quern schema apply`.
func SchemaFlags() []cli.Flag {
	return slices.Concat(
		[]cli.Flag{
			configFlag(),
			str(catStore, "replication", "", "copies in each data centre: `DC=COPIES,…` (default: 3 in the local one, fewer where it has fewer nodes)"),
		},
		cassandraFlags(), madeFlags(), keptFlags(), blockSizeFlags(), LogFlags(),
	)
}

func configFlag() cli.Flag {
	return str(catServer, "config", "", "YAML `FILE` whose keys are the names of these flags")
}

// LogFlags returns the flags of every command that logs.
func LogFlags() []cli.Flag {
	return []cli.Flag{
		str(catServer, "log-level", "info", "what is logged: debug, info, warn or error"),
		str(catServer, "log-format", "text", "form of the log on standard error: text or json"),
	}
}

// processFlags returns the flags of every process that serves.
func processFlags(listen string) []cli.Flag {
	return []cli.Flag{
		configFlag(),
		str(catServer, "listen", listen, "`ADDRESS` that HTTP is served on"),
		str(catServer, "worker-id", "", "`NAME` of this process among those that share a store (default: the host's and a random number)"),
		boolean(catServer, "pprof", false, "serve profiles of this process at /debug/pprof/"),
		span(catServer, "stall-timeout", 30*time.Second, "how long a client may take to send, or to read, 64 KiB"),
		integer(catServer, "max-connections", 8192, "connections of HTTP that are open at once; one client has up to half of them"),
		str(catServer, "proxies", "127.0.0.0/8,::1", "`ADDRESS,…` that stand for many clients, so that what one client may hold does not bound them"),
		str(catServer, "allowed-hosts", "", "`NAME,…` under which this server is asked; others are refused (default: localhost where --listen is on it, else any)"),
		str(catServer, "cors-origin", "", "regular `EXPRESSION` for whole origins, such as https://tools\\.example, whose web pages may read"),
		span(catServer, "drain-delay", time.Second, "how long at least a process that ends answers 503 before it closes its port"),
		span(catServer, "heartbeat-timeout", 30*time.Second, "how long this process may be silent before others take its shards"),
	}
}

// sharedStoreFlags returns the flags of processes that share their store.
func sharedStoreFlags() []cli.Flag {
	return []cli.Flag{str(catStore, "store", Cassandra, "where data rests: cassandra")}
}

func cassandraFlags() []cli.Flag {
	return []cli.Flag{
		str(catStore, "cassandra-hosts", "127.0.0.1:9042", "`HOST:PORT,…` of the first nodes to ask; the others are found through them"),
		str(catStore, "keyspace", "quern", "keyspace that holds the tables"),
		str(catStore, "consistency", "LOCAL_QUORUM", "how many copies answer a read or a write: "+strings.Join(consistencies, ", ")),
		str(catStore, "local-dc", "", "data centre that is read from and written to (default: the cluster's only one)"),
		str(catStore, "cassandra-username", "", "user to log in as"),
		str(catStore, "cassandra-password", "", "password of that user"),
		str(catStore, "cassandra-password-file", "", "`FILE` that holds the password"),
		boolean(catStore, "cassandra-tls", false, "encrypt connections; implied by the files below"),
		str(catStore, "cassandra-ca", "", "PEM `FILE` of whom to trust (default: whom this system trusts)"),
		str(catStore, "cassandra-cert", "", "PEM `FILE` of the certificate to show"),
		str(catStore, "cassandra-key", "", "PEM `FILE` of that certificate's key"),
		boolean(catStore, "cassandra-tls-skip-verify", false, "take any certificate from a server"),
		span(catStore, "cassandra-timeout", 5*time.Second, "how long the answer to one request may take"),
		integer(catStore, "cassandra-max-in-flight", 128, "requests that wait for an answer at once"),
		boolean(catStore, "cassandra-direct", false, "connect to the named hosts only, as through published ports"),
	}
}

// madeFlags returns the flags for what a store is made with for good.
func madeFlags() []cli.Flag {
	return []cli.Flag{
		str(catAggregation, "rollups", "1h,6h,24h", "the ladder of roll-ups, each a multiple of the one before; fixed when the store is created"),
		integer(catStore, "group-size", 128, "schedules in one storage partition; fixed when the store is created"),
		integer(catStore, "index-partitions", 16, "shards of the index; fixed when the store is created"),
	}
}

func keptFlags() []cli.Flag {
	return []cli.Flag{
		str(catStore, "retention", "raw=7d,1h=90d,6h=1y,24h=5y", "how long each level is kept: LEVEL=SPAN,…; 0 is for ever"),
	}
}

func blockSizeFlags() []cli.Flag {
	return []cli.Flag{
		integer(catIngest, "block-size", 128, "schedules in one partition block; a change takes effect from the slice after the next"),
	}
}

func ingestFlags() []cli.Flag {
	return []cli.Flag{
		boolean(catServer, "enable-import", true, "let clients import history, which overwrites samples as old as they are kept"),
		boolean(catServer, "enable-reaggregate", true, "let clients have roll-ups computed again"),
		boolean(catServer, "enable-admin-api", false, "let clients delete series, by Prometheus' administrative API, take back rows that have no raw samples, and confirm the clock from other machines"),
		futureLimitFlag(),
		str(catIngest, "group-commit", "", "how long a report waits for others to be made durable together with (default: 100ms over Cassandra, else 0)"),
		str(catIngest, "prometheus-source", "instance,host,node,pod,job", "`LABEL,…` of remote write and import that name a series' source, best first"),
		str(catIngest, "influx-source", "host,hostname,instance,server", "`TAG,…` of line protocol that name a series' source, best first"),
		str(catIngest, "influx-bucket-label", "", "`LABEL` that has the bucket of a series written as to InfluxDB 2, or its retention policy as in InfluxDB 1 (default: none, and equal series of several buckets overwrite each other)"),
		str(catIngest, "otlp-source", "instance,host_name,k8s_node_name,job", "`LABEL,…` of OTLP, as they are stored, that name a series' source, best first"),
		str(catIngest, "otlp-promote-resource-attributes", "host.name,k8s.cluster.name,k8s.namespace.name,k8s.node.name,k8s.pod.name,k8s.container.name", "`ATTRIBUTE,…` of an OTLP resource that become labels of all its series"),
		str(catIngest, "graphite-listen", "", "`ADDRESS` that Graphite's plaintext protocol is taken on over TCP, such as :2003 (default: none)"),
		str(catIngest, "graphite-source", "host,hostname,instance,server", "`TAG,…` of Graphite that name a series' source, best first"),
		integer(catIngest, "max-pending-samples", 2<<20, "samples that may wait to be written before reports are answered 429"),
		integer(catIngest, "max-series", 0, "series that the store may hold; 0 is no limit"),
		integer(catIngest, "max-series-per-source", 0, "series that one source may have; 0 is no limit"),
		integer(catIngest, "max-body-bytes", 16<<20, "size of a compressed body before it is answered 413; uncompressed it may be four times that"),
		span(catQuery, "query-timeout", 2*time.Minute, "how long a PromQL query may take"),
		integer(catQuery, "query-max-samples", 50_000_000, "samples that a PromQL query may hold at a time"),
		integer(catQuery, "query-concurrency", 20, "queries that are answered at the same time; others wait"),
		integer(catQuery, "export-concurrency", 8, "exports and reads of roll-up rows that are answered at the same time; others wait"),
		span(catQuery, "query-lookback", 5*time.Minute, "how old the sample may be that stands for a series at a time"),
	}
}

func futureLimitFlag() cli.Flag {
	return span(catIngest, "future-limit", defaultFutureLimit, "how far ahead of the clock a report may be")
}

// timingFlags returns the flags for when data enters a slice and when the slice is ground. They are
// stored with the store, as are the retention and the future limit, so that all its processes
// agree.
func timingFlags() []cli.Flag {
	return []cli.Flag{
		span(catAggregation, "age-cap", defaultAgeCap, "how old a report may be"),
		span(catAggregation, "aggregation-delay", defaultDelay, "how long after its end a slice is ground"),
		span(catAggregation, "late-grace", defaultGrace, "how long after its end data still enters a slice on time"),
	}
}
