package config

import (
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
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
	return []string{"QUERN_" + strings.ToUpper(strings.NewReplacer("-", "_", ".", "_").Replace(name))}
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
			boolean(catServer, "host-metrics", true, "collect this host's own metrics"),
			str(catServer, "source", "", "source name of this host's metrics (default: the host's name)"),
			boolean(catServer, "demo", false, "fill an empty store with 26 hours of generated reports, then keep generating"),
			str(catStore, "store", Pebble, "store to use: pebble (embedded) or cassandra"),
			str(catStore, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store"),
			boolean(catStore, "accept-clock", false, "take this machine's clock for right at this start, although the embedded store has seen another time; give it once"),
		},
		cassandraFlags(), madeFlags(), []cli.Flag{servingRetentionFlag()}, blockSizeFlags(), ingestFlags(), timingFlags(), logFlags(),
	)
}

// IngestFlags returns the flags of `ingest`.
func IngestFlags() []cli.Flag {
	return slices.Concat(
		processFlags("127.0.0.1:9095"), sharedStoreFlags(),
		cassandraFlags(), madeFlags(), []cli.Flag{servingRetentionFlag()}, blockSizeFlags(), ingestFlags(), timingFlags(), logFlags(),
	)
}

// AggregatorFlags returns the flags of `aggregator`.
func AggregatorFlags() []cli.Flag {
	return slices.Concat(
		processFlags("127.0.0.1:9096"), sharedStoreFlags(),
		cassandraFlags(), madeFlags(), []cli.Flag{servingRetentionFlag()}, timingFlags(), logFlags(),
	)
}

// SchemaFlags returns the flags of `quern schema apply`.
func SchemaFlags() []cli.Flag {
	return slices.Concat(
		[]cli.Flag{
			configFlag(),
			integer(catStore, "group-size", 128, "number of schedules in one storage partition; fixed when the schema is created"),
			integer(catStore, "index-partitions", 16, "number of shards of the index, and so of aggregators that share the work; fixed when the schema is created"),
			str(catStore, "replication", "", "copies in each data centre, as `DC=COPIES,…` (default: 3 in the local one, or one per node if it has fewer nodes)"),
		},
		cassandraFlags(), madeFlags(), keptFlags(), blockSizeFlags(), timingFlags(), logFlags(),
	)
}

func configFlag() cli.Flag {
	return str(catServer, "config", "", "YAML `FILE` whose keys are the names of these flags")
}

// logFlags returns the flags of every command that logs.
func logFlags() []cli.Flag {
	return []cli.Flag{
		str(catServer, "log-level", "info", "lowest level to log: debug, info, warn or error"),
		str(catServer, "log-format", "text", "format of the log on standard error: text or json"),
	}
}

// processFlags returns the flags of every process that serves.
func processFlags(listen string) []cli.Flag {
	return []cli.Flag{
		configFlag(),
		str(catServer, "listen", listen, "`ADDRESS` to serve HTTP on"),
		str(catServer, "web.config.file", "", "`FILE` with TLS, client certificates and users, in the format of Prometheus' programs; with it, all clients must log in (default: none)"),
		boolean(catServer, "insecure", false, "serve without a login on addresses that other machines reach: all who reach them may read and write"),
		str(catServer, "proxies", "127.0.0.0/8,::1", "`ADDRESS,…` of proxies that forward for many clients and are exempt from the limits for one client"),
		str(catServer, "allowed-hosts", "", "`NAME,…` that requests may use for this server; other names are refused (default: localhost if --listen is a loopback address, else any)"),
		str(catServer, "cors-origin", "", "regular `EXPRESSION` for the whole origins whose web pages may read, such as https://tools\\.example"),
		span(catServer, "drain-delay", time.Second, "minimum time that a stopping process answers 503 before it closes its port"),
		span(catServer, "heartbeat-timeout", 30*time.Second, "time without a heartbeat after which other processes take this one's shards"),
	}
}

// sharedStoreFlags returns the flags of processes that share their store.
func sharedStoreFlags() []cli.Flag {
	return []cli.Flag{str(catStore, "store", Cassandra, "store to use: cassandra")}
}

func cassandraFlags() []cli.Flag {
	return []cli.Flag{
		str(catStore, "cassandra-hosts", "127.0.0.1:9042", "`HOST:PORT,…` of the first nodes to contact; the others are found through them"),
		str(catStore, "keyspace", "quern", "keyspace that holds the tables"),
		str(catStore, "consistency", "LOCAL_QUORUM", "how many copies must answer a read or a write: "+strings.Join(consistencies, ", ")),
		str(catStore, "local-dc", "", "data centre to read from and write to (default: the cluster's only one)"),
		str(catStore, "cassandra-username", "", "Cassandra user to log in as"),
		str(catStore, "cassandra-password-file", "", "`FILE` that holds the Cassandra user's password"),
		boolean(catStore, "cassandra-tls", false, "encrypt connections; implied by --cassandra-ca, --cassandra-cert and --cassandra-key"),
		str(catStore, "cassandra-ca", "", "PEM `FILE` of trusted certificate authorities (default: those of this system)"),
		str(catStore, "cassandra-cert", "", "PEM `FILE` of the client certificate"),
		str(catStore, "cassandra-key", "", "PEM `FILE` of the client certificate's key"),
		span(catStore, "cassandra-timeout", 5*time.Second, "maximum time to wait for the answer to one request"),
		boolean(catStore, "cassandra-direct", false, "connect only to the named hosts, for example through published ports"),
	}
}

// madeFlags returns the flags for what a store is made with for good.
func madeFlags() []cli.Flag {
	return []cli.Flag{
		str(catAggregation, "rollups", "1h,6h,24h", "widths of the roll-ups, each a multiple of the one before; fixed when the store is created"),
	}
}

// servingRetentionFlag is --retention of a process that serves.
func servingRetentionFlag() cli.Flag {
	return str(catStore, "retention", "raw=7d,1h=90d,6h=1y,24h=5y,annotations=5y", "retention of each level, and of annotations after they were last written, as LEVEL=SPAN,…; 0 is for ever")
}

func keptFlags() []cli.Flag {
	return []cli.Flag{
		str(catStore, "retention", "raw=7d,1h=90d,6h=1y,24h=5y", "retention of each level, as LEVEL=SPAN,…; 0 keeps a level for ever"),
	}
}

func blockSizeFlags() []cli.Flag {
	return []cli.Flag{
		integer(catIngest, "block-size", 128, "number of schedules in one block; a change takes effect from the slice after the next"),
	}
}

func ingestFlags() []cli.Flag {
	return []cli.Flag{
		boolean(catServer, "enable-admin-api", false, "allow clients to delete series through Prometheus' administrative API and to take back rows without raw samples"),
		str(catServer, "dashboards", "", "`DIRECTORY` whose files *.json are dashboards; they are read again when they change, and cannot be changed in the page (default: none)"),
		futureLimitFlag(),
		sourceLabelsFlag(),
		str(catIngest, "influx-bucket-label", "", "`LABEL` that stores the InfluxDB 2 bucket or InfluxDB 1 retention policy of a series (default: none, so that equal series of several buckets overwrite each other)"),
		str(catIngest, "otlp-promote-resource-attributes", "host.name,k8s.cluster.name,k8s.namespace.name,k8s.node.name,k8s.pod.name,k8s.container.name", "`ATTRIBUTE,…` of an OTLP resource that become labels of all its series"),
		str(catIngest, "graphite-listen", "", "`ADDRESS` to accept Graphite's plaintext protocol on over TCP, such as :2003 (default: none)"),
		integer(catIngest, "max-series", 0, "maximum number of series in the store; 0 is no limit"),
		integer(catIngest, "max-series-per-source", 0, "maximum number of series of one source; 0 is no limit"),
		integer(catIngest, "max-body-bytes", 16<<20, "maximum size of a compressed body, and four times that decompressed; larger ones are answered 413"),
		span(catQuery, "query-timeout", 2*time.Minute, "maximum duration of a PromQL query"),
		integer(catQuery, "query-max-samples", 0, "maximum number of samples that a PromQL query may hold at once; 0 is as many as fit into a quarter of the memory at 16 bytes each, if --query-concurrency queries hold as many, and 50000000 at most"),
		integer(catQuery, "query-concurrency", 20, "maximum number of queries answered at once; others wait"),
		span(catQuery, "query-lookback", 5*time.Minute, "maximum age of the sample that represents a series at a given time"),
	}
}

func futureLimitFlag() cli.Flag {
	return span(catIngest, "future-limit", defaultFutureLimit, "maximum time that a sample may be ahead of the clock")
}

func sourceLabelsFlag() cli.Flag {
	return str(catIngest, storage.SourceLabelsFlag, strings.Join(defaultSourceLabels, ","),
		"`LABEL,…` that may name the source of a series without a label source, in order of preference; the same for all protocols, and fixed by the first process that opens the store")
}

// timingFlags returns the flags for when data enters a slice and when the slice is ground. They are
// stored with the store, as are the retention, the future limit and the source labels, so that
// all its processes agree.
func timingFlags() []cli.Flag {
	return []cli.Flag{
		span(catAggregation, "age-cap", defaultAgeCap, "maximum age of a sample"),
		span(catAggregation, "aggregation-delay", defaultDelay, "time between the end of a slice and its run"),
		span(catAggregation, "late-grace", defaultGrace, "time after the end of a slice during which data still enters it on time"),
	}
}
