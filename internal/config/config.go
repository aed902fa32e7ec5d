// Package config holds what the operator can set. Each option is a flag, an environment variable
// QUERN_… and a key of the YAML file given by --config, all of the same name. A flag wins over a
// variable, a variable over the file, and the file over the default.
//
// The name, default and help of an option stand in one row: those of the servers in config.go, store.go, cassandra.go,
// policy.go and log.go, those of the other commands in the file of their topic. options.go makes flags of the rows.
package config

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/access"
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
	// BackupDest is where backups go, empty for nowhere.
	BackupDest string
	Cluster    Cluster
	Listen     string
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

	// Texts are the values of all flags, by name.
	Texts map[string]string
	// Again reads all again, with the file of --config as it is now.
	Again func() (Config, error)
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

// ServeFlags and FromServe are of `quern serve`.
var ServeFlags, FromServe = process(func(o *options, cfg *Config) {
	cfg.addProcess(o, "127.0.0.1:9095")
	o.server().boolean(&cfg.HostMetrics, "host-metrics", true, "collect this host's own metrics")
	o.server().text(&cfg.Source, "source", "", "source name of this host's metrics (default: the host's name)")
	o.server().boolean(&cfg.Demo, "demo", false, "fill an empty store with 26 hours of generated reports, then keep generating")
	o.store().oneOf(&cfg.Store, "store", Pebble, "store to use: pebble (embedded) or cassandra", Pebble, Cassandra)
	o.store().required(&cfg.DataDir, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store")
	o.store().boolean(&cfg.AcceptClock, "accept-clock", false, "take this machine's clock for right at this start, although the embedded store has seen another time; give it once")
	o.store().text(&cfg.BackupDest, "backup-dest", "", "`DIRECTORY` or s3://BUCKET/PREFIX for the backups of the embedded store that 'quern backup create' asks for (default: none)")
	o.check(func(c *cli.Context) error {
		switch {
		case cfg.BackupDest != "" && cfg.Store != Pebble:
			return errors.New("--backup-dest: needs --store pebble: docs/backup.md says how to back up a cluster")
		case cfg.AcceptClock && cfg.Store != Pebble:
			return errors.New("--accept-clock: needs --store pebble: a cluster has clocks of its own, so set the clock that differs (NTP)")
		case cfg.Demo && cfg.Store != Pebble:
			return errors.New("--demo: needs --store pebble: the demo's history is generated on a simulated clock, and a cluster has a clock of its own")
		case cfg.Demo && !c.IsSet("data-dir"):
			// Generated data must not mix with a user's own.
			cfg.DataDir = "./quern-data/demo"
		}
		return nil
	})
	cfg.Cluster.addRows(o)
	cfg.addLadder(o)
	cfg.addServingRetention(o)
	cfg.addBlockSize(o)
	cfg.addIngest(o)
	cfg.addTiming(o)
	cfg.Log.addRows(o)
})

// IngestFlags and FromIngest are of `ingest`.
var IngestFlags, FromIngest = process(func(o *options, cfg *Config) {
	cfg.addProcess(o, "127.0.0.1:9095")
	cfg.addSharedStore(o)
	cfg.addLadder(o)
	cfg.addServingRetention(o)
	cfg.addBlockSize(o)
	cfg.addIngest(o)
	cfg.addTiming(o)
	cfg.Log.addRows(o)
})

// AggregatorFlags and FromAggregator are of `aggregator`.
var AggregatorFlags, FromAggregator = process(func(o *options, cfg *Config) {
	cfg.addProcess(o, "127.0.0.1:9096")
	cfg.addSharedStore(o)
	cfg.addLadder(o)
	cfg.addServingRetention(o)
	cfg.addTiming(o)
	cfg.Log.addRows(o)
})

func (o *options) configFile() {
	o.server().text(new(string), "config", "", "YAML `FILE` whose keys are the names of these flags")
}

// addProcess adds the rows of every process that serves.
func (cfg *Config) addProcess(o *options, listen string) {
	server := o.server()
	o.configFile()
	parsed(server, &cfg.Listen, "listen", listen, "`ADDRESS` to serve HTTP on", parseAddress)
	server.text(&cfg.WebConfig, "web.config.file", "", "`FILE` with TLS, client certificates and users, in the format of Prometheus' programs; with it, all clients must log in (default: none)")
	server.boolean(&cfg.Insecure, "insecure", false, "serve without a login on addresses that other machines reach: all who reach them may read and write")
	parsed(server, &cfg.Proxies, "proxies", "127.0.0.0/8,::1", "`ADDRESS,…` of proxies that forward for many clients and are exempt from the limits for one client", parsePrefixes)
	server.list(&cfg.AllowedHosts, "allowed-hosts", "", "`NAME,…` that requests may use for this server; other names are refused (default: localhost if --listen is a loopback address, else any)")
	parsed(server, &cfg.CORSOrigin, "cors-origin", "", "regular `EXPRESSION` for the whole origins whose web pages may read, such as https://tools\\.example", parseExpression)
	server.span(&cfg.DrainDelay, "drain-delay", time.Second, notNegative, "minimum time that a stopping process answers 503 before it closes its port")
	// Cassandra counts TTLs in seconds, and there must be time for several heartbeats.
	lasting := spanCheck{func(d time.Duration) bool { return d >= 3*time.Second }, "must be 3s or more"}
	server.span(&cfg.HeartbeatTimeout, "heartbeat-timeout", 30*time.Second, lasting, "time without a heartbeat after which other processes take this one's shards")
	o.check(func(*cli.Context) error {
		if cfg.Insecure && cfg.WebConfig != "" {
			return errors.New("--insecure: conflicts with --web.config.file: give only one of them")
		}
		return cfg.locked("listen", cfg.Listen)
	})
}

// addSharedStore adds the rows of a process that shares its store with others.
func (cfg *Config) addSharedStore(o *options) {
	parsed(o.store(), &cfg.Store, "store", Cassandra, "store to use: cassandra", func(s string) (string, error) {
		switch strings.ToLower(s) {
		case Cassandra:
			return Cassandra, nil
		case Pebble:
			return "", errors.New("only one process can open the embedded store: use `quern serve`")
		}
		return "", errors.New("must be pebble or cassandra")
	})
	cfg.Cluster.addRows(o)
}

// addIngest adds the rows of a process that takes reports and answers queries.
func (cfg *Config) addIngest(o *options) {
	server, ingest, query := o.server(), o.ingest(), o.group("Query")
	server.boolean(&cfg.EnableAdminAPI, "enable-admin-api", false, "allow clients to delete series through Prometheus' administrative API and to take back rows without raw samples")
	server.text(&cfg.Dashboards, "dashboards", "", "`DIRECTORY` whose files *.json are dashboards; they are read again when they change, and cannot be changed in the page (default: none)")
	cfg.addAgreed(o)
	parsed(ingest, &cfg.InfluxBucketLabel, "influx-bucket-label", "", "`LABEL` that stores the InfluxDB 2 bucket or InfluxDB 1 retention policy of a series (default: none, so that equal series of several buckets overwrite each other)", func(s string) (string, error) {
		if s == "db" {
			return "", errors.New("must not be db: that label holds the database")
		}
		return s, nil
	})
	ingest.list(&cfg.OTLPPromote, "otlp-promote-resource-attributes", metric.ResourceAttributes, "`ATTRIBUTE,…` of an OTLP resource that become labels of all its series")
	parsed(ingest, &cfg.GraphiteListen, "graphite-listen", "", "`ADDRESS` to accept Graphite's plaintext protocol on over TCP, such as :2003 (default: none)", parseOptional)
	o.check(func(*cli.Context) error { return cfg.locked("graphite-listen", cfg.GraphiteListen) })
	number(ingest, &cfg.MaxSeries, "max-series", 0, 0, 1<<40, "maximum number of series in the store; 0 is no limit")
	number(ingest, &cfg.MaxSeriesPerSource, "max-series-per-source", 0, 0, 1<<40, "maximum number of series of one source; 0 is no limit")
	number(ingest, &cfg.MaxBodyBytes, "max-body-bytes", 16<<20, 1, 1<<30, "maximum size of a compressed body, and four times that decompressed; larger ones are answered 413")
	query.span(&cfg.Query.Timeout, "query-timeout", 2*time.Minute, positive, "maximum duration of a PromQL query")
	number(query, &cfg.Query.MaxSamples, "query-max-samples", 0, 0, 1<<40, "maximum number of samples that a PromQL query may hold at once; 0 is as many as fit into a quarter of the memory at 16 bytes each, if --query-concurrency queries hold as many, and 50000000 at most")
	number(query, &cfg.Query.Concurrency, "query-concurrency", 20, 1, 1<<20, "maximum number of queries answered at once; others wait")
	query.span(&cfg.Query.Lookback, "query-lookback", 5*time.Minute, interval, "maximum age of the sample that represents a series at a given time")
}

// locked rejects an address that other machines reach, if nobody would have to log in there.
func (cfg *Config) locked(flag, address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil || cfg.WebConfig != "" || cfg.Insecure || access.Loopback(address) {
		return nil //nolint:nilerr // whoever listens says what is wrong with the address
	}
	return Exposed(flag, address)
}

// Exposed is the error for an address on which strangers would be let in.
func Exposed(flag, address string) error {
	return fmt.Errorf("--%s %s: other machines reach this address, and nobody would have to log in: "+
		"give --web.config.file FILE with TLS and users (docs/security.md), listen on 127.0.0.1, or let everybody in with --insecure", flag, address)
}

// parseOptional is parseAddress for a listener that need not be there.
func parseOptional(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	return parseAddress(text)
}

func parseAddress(text string) (string, error) {
	if text == "" {
		return "", errEmpty
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		return "", errors.New("must be HOST:PORT, such as 127.0.0.1:9095, or :9095 for all addresses")
	}
	return text, nil
}

// prefixes parses IP addresses and networks between commas.
func parsePrefixes(text string) (out []netip.Prefix, err error) {
	for _, word := range splitWords(text) {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			var addr netip.Addr
			if addr, err = netip.ParseAddr(word); err != nil {
				return nil, errors.New("must be addresses such as 192.0.2.1 or 192.0.2.0/24, separated by commas")
			}
			prefix = netip.PrefixFrom(addr, addr.BitLen())
		}
		out = append(out, prefix)
	}
	return out, nil
}

// expression parses a regular expression for a whole text, nil for none.
func parseExpression(text string) (*regexp.Regexp, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // there need not be one
	}
	return regexp.Compile("^(?s:" + text + ")$")
}

// addServingRetention adds --retention of a process that serves. Annotations are no level of the store: their retention is
// that of the process.
func (cfg *Config) addServingRetention(o *options) {
	given(o.store(), &cfg.Retention, "retention", "raw=7d,1h=90d,6h=1y,24h=5y,annotations=5y", "retention of each level, and of annotations after they were last written, as LEVEL=SPAN,…; 0 is for ever", parseRetention)
	o.check(func(*cli.Context) error {
		cfg.AnnotationRetention = 5 * year
		if keep, ok := cfg.Retention["annotations"]; ok {
			cfg.AnnotationRetention = keep
			delete(cfg.Retention, "annotations")
		}
		return nil
	})
}

// addBlockSize adds --block-size.
func (m *Made) addBlockSize(o *options) {
	givenNumber(o.ingest(), &m.BlockSize, "block-size", 128, 4096, "number of schedules in one block; a change takes effect from the slice after the next")
}

// addLadder adds --rollups.
func (m *Made) addLadder(o *options) {
	given(o.aggregation(), &m.Ladder, "rollups", "1h,6h,24h", "widths of the roll-ups, each a multiple of the one before; fixed when the store is created", func(s string) (metric.Ladder, error) {
		l, err := metric.ParseLadder(s)
		if err != nil {
			err = wholeError{err}
		}
		return l, err
	})
}
