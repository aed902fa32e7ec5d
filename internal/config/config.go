// Package config holds what the operator can set. Each option is a flag, an environment variable
// QUERN_… and a key of the YAML file given by --config, all of the same name. A flag wins over a
// variable, a variable over the file, and the file over the default.
package config

import (
	"errors"
	"log/slog"
	"net/netip"
	"regexp"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
)

// The values of --store.
const (
	Pebble    = "pebble"
	Cassandra = "cassandra"
)

// Config holds the validated options of a process that serves. Options that its program does not
// have are zero.
type Config struct {
	Store   string
	DataDir string
	// AcceptClock takes the clock for right although the embedded store has seen another time.
	AcceptClock bool
	Cluster     Cluster
	Listen      string
	// WebConfig is the web config file, empty for none.
	WebConfig string
	// Dashboards is a directory of dashboards, empty for none.
	Dashboards string
	// Insecure lets the process serve on other addresses than loopback without a web config file.
	Insecure bool
	// Proxies are the addresses that stand for many clients.
	Proxies []netip.Prefix
	// AllowedHosts are the host names that requests may use. If empty, they depend on Listen.
	AllowedHosts []string
	// CORSOrigin matches the origins whose web pages may read; nil for none.
	CORSOrigin *regexp.Regexp
	// DrainDelay is the minimum time for which a process that ends still answers before it closes
	// its port.
	DrainDelay time.Duration
	// HeartbeatTimeout is how long the process may be silent before others take its shards.
	HeartbeatTimeout time.Duration

	// Made and Policy are stored with the store. The zero value, for a flag that is not given,
	// means the stored value: a default of this process must not change it.
	Made
	Policy

	// AnnotationRetention is how long an annotation is kept after it was last written; 0 is for ever.
	AnnotationRetention time.Duration
	// EnableAdminAPI lets clients delete, and take rows back.
	EnableAdminAPI bool

	// GraphiteListen is the address for Graphite's plaintext protocol, empty for none.
	GraphiteListen string
	// OTLPPromote are the OTLP resource attributes that become labels.
	OTLPPromote []string
	// InfluxBucketLabel is the label that holds the bucket of line protocol, empty for none.
	InfluxBucketLabel string

	MaxSeries          int
	MaxSeriesPerSource int
	MaxBodyBytes       int64

	Query Query

	HostMetrics bool
	Source      string
	Demo        bool

	Log
}

// Made holds what a store is made with. All but the block size is fixed then. Only `quern schema apply` has flags for
// the group size and the index partitions.
type Made struct {
	Ladder          metric.Ladder
	BlockSize       int
	GroupSize       int
	IndexPartitions int
}

// Query limits queries.
type Query struct {
	Timeout time.Duration
	// MaxSamples is the number of samples that a query may hold, 0 for what the memory has room for.
	MaxSamples  int
	Concurrency int
	// Lookback is the maximum age of the sample that stands for a series at a time.
	Lookback time.Duration
}

// Log says what is logged, and how.
type Log struct {
	LogLevel  slog.Level
	LogFormat string
}

// minHeartbeatTimeout leaves time for several heartbeats: Cassandra counts TTLs in seconds.
const minHeartbeatTimeout = 3 * time.Second

// FromServe reads the flags of `quern serve`. The error names all mistakes at once.
func FromServe(c *cli.Context) (Config, error) {
	return read(c, func(p *parser, cfg *Config) {
		cfg.Store = p.oneOf("store", Pebble, Cassandra)
		cfg.DataDir = p.required("data-dir")
		if cfg.AcceptClock = c.Bool("accept-clock"); cfg.AcceptClock && cfg.Store != Pebble {
			p.add(errors.New("--accept-clock: needs --store pebble: a cluster has clocks of its own, so set the clock that differs (NTP)"))
		}
		p.process(cfg)
		cfg.BlockSize = p.made("block-size", 4096)
		p.ingest(cfg)
		cfg.HostMetrics = c.Bool("host-metrics")
		cfg.Source = c.String("source")
		if cfg.Demo = c.Bool("demo"); !cfg.Demo {
			return
		}
		if cfg.Store != Pebble {
			p.add(errors.New("--demo: needs --store pebble: the demo's history is generated on a simulated clock, and a cluster has a clock of its own"))
		}
		if !c.IsSet("data-dir") {
			// Generated data must not mix with a user's own.
			cfg.DataDir = "./quern-data/demo"
		}
	})
}

// FromIngest reads the flags of `ingest`. The error names all mistakes at once.
func FromIngest(c *cli.Context) (Config, error) {
	return read(c, func(p *parser, cfg *Config) {
		p.sharedStore(cfg)
		p.process(cfg)
		cfg.BlockSize = p.made("block-size", 4096)
		p.ingest(cfg)
	})
}

// FromAggregator reads the flags of `aggregator`. The error names all mistakes at once.
func FromAggregator(c *cli.Context) (Config, error) {
	return read(c, func(p *parser, cfg *Config) {
		p.sharedStore(cfg)
		p.process(cfg)
	})
}

// Schema holds the validated options of `quern schema apply`.
type Schema struct {
	Cluster Cluster
	// Made is stored when the schema is made. The zero value, for a flag that is not given, means
	// the stored value, or the default if nothing is stored.
	Made
	// Policy has the retention, and the timing that decides how short it may be. The first process that opens the store
	// stores the full policy.
	Policy Policy
	// Replication is the number of copies in each data centre, such as "dc1=3,dc2=3".
	Replication string
	Log
}

// FromSchema reads the flags of `quern schema apply`. The error names all mistakes at once.
func FromSchema(c *cli.Context) (Schema, error) {
	return read(c, func(p *parser, s *Schema) {
		s.Cluster = p.cluster()
		s.Made = Made{
			Ladder: p.ladder(), BlockSize: p.made("block-size", 4096),
			GroupSize: p.made("group-size", 4096), IndexPartitions: p.made("index-partitions", 1024),
		}
		s.Policy = p.policy()
		s.Replication = p.replication()
		s.Log = p.log()
	})
}

// read reads the flags of a command: first the file of --config, then flags.
func read[T any](c *cli.Context, flags func(*parser, *T)) (out T, err error) {
	if err := applyFile(c); err != nil {
		return out, err
	}
	p := parser{c: c}
	flags(&p, &out)
	return out, errors.Join(p.errs...)
}

// process reads the flags of every process that serves.
func (p *parser) process(cfg *Config) {
	cfg.Listen = p.address("listen")
	cfg.WebConfig = p.c.String("web.config.file")
	if cfg.Insecure = p.c.Bool("insecure"); cfg.Insecure && cfg.WebConfig != "" {
		p.add(errors.New("--insecure: conflicts with --web.config.file: give only one of them"))
	}
	p.locked(cfg, "listen", cfg.Listen)
	cfg.Proxies = p.addresses("proxies")
	cfg.AllowedHosts = p.list("allowed-hosts")
	cfg.CORSOrigin = p.expression("cors-origin")
	cfg.DrainDelay = p.notNegative("drain-delay")
	if cfg.HeartbeatTimeout = p.span("heartbeat-timeout"); cfg.HeartbeatTimeout < minHeartbeatTimeout {
		p.fail("heartbeat-timeout", "must be %s or more", metric.FormatSpan(minHeartbeatTimeout))
	}
	p.store(cfg)
	cfg.AnnotationRetention = 5 * year
	if keep, ok := cfg.Retention["annotations"]; ok {
		cfg.AnnotationRetention = keep
		delete(cfg.Retention, "annotations")
	}
}

// store reads the flags of every process that opens a store.
func (p *parser) store(cfg *Config) {
	cfg.Log = p.log()
	cfg.Cluster = p.cluster()
	cfg.Ladder = p.ladder()
	cfg.Policy = p.policy()
}

// sharedStore rejects a store that only one process can use.
func (p *parser) sharedStore(cfg *Config) {
	if cfg.Store = p.oneOf("store", Pebble, Cassandra); cfg.Store == Pebble {
		p.fail("store", "only one process can open the embedded store: use `quern serve`")
	}
}

func (p *parser) ingest(cfg *Config) {
	cfg.SourceLabels = p.sourceLabels()
	if p.c.String("graphite-listen") != "" {
		cfg.GraphiteListen = p.address("graphite-listen")
		p.locked(cfg, "graphite-listen", cfg.GraphiteListen)
	}
	cfg.Dashboards = p.c.String("dashboards")
	cfg.OTLPPromote = p.list("otlp-promote-resource-attributes")
	if cfg.InfluxBucketLabel = p.c.String("influx-bucket-label"); cfg.InfluxBucketLabel == "db" {
		p.fail("influx-bucket-label", "must not be db: that label holds the database")
	}
	cfg.EnableAdminAPI = p.c.Bool("enable-admin-api")
	cfg.FutureLimit = p.given("future-limit", positive)
	cfg.MaxSeries = p.within("max-series", 0, 1<<40)
	cfg.MaxSeriesPerSource = p.within("max-series-per-source", 0, 1<<40)
	cfg.MaxBodyBytes = int64(p.within("max-body-bytes", 1, 1<<30))
	cfg.Query = Query{
		Timeout: p.positive("query-timeout"), MaxSamples: p.within("query-max-samples", 0, 1<<40),
		Concurrency: p.within("query-concurrency", 1, 1<<20), Lookback: p.interval("query-lookback"),
	}
}
