// Package config is what the operator can set: each option is a flag, an
// environment variable QUERN_… and a key of the YAML file given by --config, all of the same
// name. The flag wins over the variable, the variable over the file, the file over the default.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/metric"
)

// Config is the options, checked.
type Config struct {
	Store   string
	DataDir string
	Listen  string

	Ladder          metric.Ladder
	BlockSize       int
	GroupSize       int
	IndexPartitions int

	AggregationDelay time.Duration
	LateGrace        time.Duration
	AgeCap           time.Duration
	FutureLimit      time.Duration
	// Retention is how long the rows of each bucket are kept, by bucket, raw first.
	Retention []time.Duration

	GroupCommit        time.Duration
	MaxPendingSamples  int
	MaxSeries          int
	MaxSeriesPerSource int
	MaxBodyBytes       int64

	HostMetrics         bool
	HostMetricsInterval time.Duration
	Source              string
	Demo                bool

	LogLevel  slog.Level
	LogFormat string
}

// Categories under which --help lists the flags.
const (
	catStore       = "Store"
	catIngest      = "Ingest"
	catAggregation = "Aggregation"
	catServer      = "Server"
)

// env is the environment variable of a flag.
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
	return &cli.StringFlag{Name: name, Category: cat, Value: FormatSpan(value), Usage: usage, EnvVars: env(name)}
}

func boolean(cat, name string, value bool, usage string) cli.Flag {
	return &cli.BoolFlag{Name: name, Category: cat, Value: value, Usage: usage, EnvVars: env(name)}
}

const (
	defaultRetention = "raw=7d,1h=90d,6h=1y,24h=5y"
	day              = 24 * time.Hour
	year             = 365 * day
)

// LogFlags are those of every command that logs.
func LogFlags() []cli.Flag {
	return []cli.Flag{
		str(catServer, "log-level", "info", "what is logged: debug, info, warn or error"),
		str(catServer, "log-format", "text", "form of the log on standard error: text or json"),
	}
}

// ServeFlags are the flags of `quern serve`.
func ServeFlags() []cli.Flag {
	return append([]cli.Flag{
		str(catServer, "config", "", "YAML `FILE` whose keys are the names of these flags"),
		str(catServer, "listen", "127.0.0.1:9095", "`ADDRESS` that HTTP is served on"),
		boolean(catServer, "host-metrics", true, "take this host's own metrics"),
		span(catServer, "host-metrics-interval", 10*time.Second, "time between two collections of this host's metrics"),
		str(catServer, "source", "", "source of this host's metrics (default: the host's name)"),
		boolean(catServer, "demo", false, "fill an empty store with 26 hours of generated reports first, and go on generating"),

		str(catStore, "store", "pebble", "where data rests: pebble (embedded)"),
		str(catStore, "data-dir", "./quern-data", "`DIRECTORY` of the embedded store"),
		integer(catStore, "group-size", 128, "schedules in one storage partition; fixed when the store is created"),
		integer(catStore, "index-partitions", 16, "shards of the index; fixed when the store is created"),
		str(catStore, "retention", defaultRetention, "how long each level is kept: LEVEL=SPAN,…; 0 is for ever"),

		integer(catIngest, "block-size", 128, "schedules in one partition block; a change takes effect from the slice after the next"),
		span(catIngest, "age-cap", day, "how old a report may be, and how long its grinding is still made up for"),
		span(catIngest, "future-limit", 10*time.Minute, "how far ahead of the clock a report may be"),
		span(catIngest, "group-commit", 100*time.Millisecond, "how long a report waits for others to be made durable together with"),
		integer(catIngest, "max-pending-samples", 2<<20, "samples that may wait to be written before reports are answered 429"),
		integer(catIngest, "max-series", 0, "series that the store may hold; 0 is no limit"),
		integer(catIngest, "max-series-per-source", 0, "series that one source may have; 0 is no limit"),
		integer(catIngest, "max-body-bytes", 16<<20, "size of a compressed body before it is answered 413; uncompressed it may be four times that"),

		str(catAggregation, "rollups", "1h,6h,24h", "the ladder of roll-ups, each a multiple of the one before; fixed when the store is created"),
		span(catAggregation, "aggregation-delay", 2*time.Minute, "how long after its end a slice is ground"),
		span(catAggregation, "late-grace", time.Minute, "how long after its end data still enters a slice on time"),
	}, LogFlags()...)
}

// ApplyFile sets the flags that are named in the file of --config and given neither
// on the command line nor in the environment.
func ApplyFile(c *cli.Context) error {
	path := c.String("config")
	if path == "" {
		return nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	var keys map[string]yaml.Node
	if err := yaml.Unmarshal(text, &keys); err != nil {
		return fmt.Errorf("--config %s: %w", path, err)
	}
	known := make(map[string]bool)
	for _, f := range c.Command.Flags {
		known[f.Names()[0]] = true
	}
	for key, value := range keys {
		switch {
		case !known[key] || key == "config":
			return fmt.Errorf("--config %s, line %d: no option %q; the keys are the names of the flags, see --help", path, value.Line, key)
		case value.Kind != yaml.ScalarNode || value.Tag == "!!null":
			return fmt.Errorf("--config %s, line %d: %s must be a single value", path, value.Line, key)
		case c.IsSet(key):
			continue
		}
		if err := c.Set(key, value.Value); err != nil {
			return fmt.Errorf("--config %s, line %d: %s: %w", path, value.Line, key, err)
		}
	}
	return nil
}

// FromServe reads the flags of `quern serve`. All that is wrong is named at once.
func FromServe(c *cli.Context) (Config, error) {
	if err := ApplyFile(c); err != nil {
		return Config{}, err
	}
	p := parser{c: c}
	cfg := Config{
		Store:   c.String("store"),
		DataDir: p.required("data-dir"),
		Listen:  p.address("listen"),

		BlockSize:       p.within("block-size", 1, 4096),
		GroupSize:       p.within("group-size", 1, 4096),
		IndexPartitions: p.within("index-partitions", 1, 1024),

		AggregationDelay: p.span("aggregation-delay"),
		LateGrace:        p.span("late-grace"),
		AgeCap:           p.positive("age-cap"),
		FutureLimit:      p.positive("future-limit"),

		GroupCommit:        p.positive("group-commit"),
		MaxPendingSamples:  p.within("max-pending-samples", 1, 1<<30),
		MaxSeries:          p.within("max-series", 0, 1<<40),
		MaxSeriesPerSource: p.within("max-series-per-source", 0, 1<<40),
		MaxBodyBytes:       int64(p.within("max-body-bytes", 1, 1<<30)),

		HostMetrics:         c.Bool("host-metrics"),
		HostMetricsInterval: p.interval("host-metrics-interval"),
		Source:              c.String("source"),
		Demo:                c.Bool("demo"),
	}
	cfg.LogLevel, cfg.LogFormat = p.log()
	cfg.Ladder = p.ladder()
	if len(p.errs) == 0 {
		cfg.Retention = p.retention(cfg.Ladder)
		p.check(cfg)
	}
	if cfg.Demo && !c.IsSet("data-dir") {
		// Generated data must not end up among a user's own.
		cfg.DataDir = "./quern-data/demo"
	}
	return cfg, errors.Join(p.errs...)
}

// Agent is the options of `quern agent`, checked.
type Agent struct {
	URL        string
	Source     string
	Interval   time.Duration
	QueueLimit int
	LogLevel   slog.Level
	LogFormat  string
}

// AgentFlags are the flags of `quern agent`.
func AgentFlags() []cli.Flag {
	return append([]cli.Flag{
		str(catServer, "config", "", "YAML `FILE` whose keys are the names of these flags"),
		str(catServer, "url", "http://127.0.0.1:9095", "`URL` of the Quern server that takes the reports"),
		str(catServer, "source", "", "what this host is called (default: the host's name)"),
		span(catServer, "interval", 10*time.Second, "time between two collections"),
		integer(catServer, "queue-limit", 200_000, "measurements that wait while the server is away; beyond that the oldest are dropped"),
	}, LogFlags()...)
}

// FromAgent reads the flags of `quern agent`. All that is wrong is named at once.
func FromAgent(c *cli.Context) (Agent, error) {
	if err := ApplyFile(c); err != nil {
		return Agent{}, err
	}
	p := parser{c: c}
	a := Agent{
		URL:        c.String("url"),
		Source:     c.String("source"),
		Interval:   p.interval("interval"),
		QueueLimit: p.within("queue-limit", 1, 1<<30),
	}
	if u, err := url.Parse(a.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		p.fail("url", "must be like http://127.0.0.1:9095")
	}
	a.LogLevel, a.LogFormat = p.log()
	return a, errors.Join(p.errs...)
}

// parser reads flags and gathers what is wrong with them.
type parser struct {
	c    *cli.Context
	errs []error
}

func (p *parser) fail(flag, format string, args ...any) {
	p.errs = append(p.errs, fmt.Errorf("--%s %s: %s", flag, p.c.String(flag), fmt.Sprintf(format, args...)))
}

func (p *parser) within(flag string, low, high int) int {
	n := p.c.Int(flag)
	if n < low || n > high {
		p.errs = append(p.errs, fmt.Errorf("--%s %d: must be between %d and %d", flag, n, low, high))
	}
	return n
}

// required is a text that must not be empty: an empty variable of the environment must
// not put data, or open a port, where nobody said.
func (p *parser) required(flag string) string {
	text := p.c.String(flag)
	if text == "" {
		p.errs = append(p.errs, fmt.Errorf("--%s: must not be empty", flag))
	}
	return text
}

func (p *parser) address(flag string) string {
	text := p.required(flag)
	if text == "" {
		return text
	}
	if _, port, err := net.SplitHostPort(text); err != nil || port == "" {
		p.fail(flag, "must be HOST:PORT, such as 127.0.0.1:9095, or :9095 for all addresses")
	}
	return text
}

func (p *parser) span(flag string) time.Duration { return p.spanOf(flag, "", nil) }

func (p *parser) positive(flag string) time.Duration {
	return p.spanOf(flag, "must be more than 0", func(d time.Duration) bool { return d > 0 })
}

// interval is a span between times in Unix ms.
func (p *parser) interval(flag string) time.Duration {
	return p.spanOf(flag, "must be whole milliseconds, at least 1ms", func(d time.Duration) bool {
		return d >= time.Millisecond && d%time.Millisecond == 0
	})
}

// spanOf reads a span that must be valid, which it says when it is not.
func (p *parser) spanOf(flag, must string, valid func(time.Duration) bool) time.Duration {
	d, err := ParseSpan(p.c.String(flag))
	switch {
	case err != nil:
		p.fail(flag, "%s", err)
	case valid != nil && !valid(d):
		p.fail(flag, "%s", must)
	}
	return d
}

func (p *parser) ladder() metric.Ladder {
	l, err := metric.ParseLadder(p.c.String("rollups"))
	if err != nil {
		p.errs = append(p.errs, fmt.Errorf("--rollups: %w", err))
	}
	return l
}

func (p *parser) log() (slog.Level, string) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(p.c.String("log-level"))); err != nil {
		p.fail("log-level", "must be debug, info, warn or error")
	}
	format := p.c.String("log-format")
	if format != "text" && format != "json" {
		p.fail("log-format", "must be text or json")
	}
	return level, format
}

// retention reads --retention for the ladder's buckets. What it does not name keeps
// a default that suits the width.
func (p *parser) retention(l metric.Ladder) []time.Duration {
	out := make([]time.Duration, l.Top()+1)
	for b := range out {
		switch w := time.Duration(l.WidthMs(metric.Bucket(b))) * time.Millisecond; {
		case b == 0:
			out[b] = 7 * day
		case w <= time.Hour:
			out[b] = 90 * day
		case w <= 6*time.Hour:
			out[b] = year
		default:
			out[b] = 5 * year
		}
	}
	if !p.c.IsSet("retention") {
		return out
	}
	for part := range strings.SplitSeq(p.c.String("retention"), ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			p.fail("retention", "%q is not of the form LEVEL=SPAN", part)
			continue
		}
		b, err := l.Bucket(name)
		if err != nil {
			p.fail("retention", "%s", err)
			continue
		}
		if out[b], err = ParseSpan(value); err != nil {
			p.fail("retention", "%s", err)
		}
		if out[b] < 0 {
			p.fail("retention", "%s of %s: must not be negative; 0 is for ever", value, name)
		}
	}
	return out
}

// check holds the options against each other.
func (p *parser) check(cfg Config) {
	if cfg.Store != "pebble" {
		p.fail("store", "must be pebble")
	}
	if cfg.LateGrace < 0 || cfg.LateGrace >= cfg.AggregationDelay {
		p.fail("late-grace", "must be shorter than --aggregation-delay, which is %s: a slice may be ground only when nothing enters it any more",
			FormatSpan(cfg.AggregationDelay))
	}
	// The youngest data that is still taken late has to climb from level to level, and
	// waits on each for the end of a slice and its run.
	least := cfg.AgeCap
	for _, b := range cfg.Ladder.Ground() {
		width := time.Duration(cfg.Ladder.WidthMs(b+1)) * time.Millisecond
		least += width + cfg.AggregationDelay
		if keep := cfg.Retention[b]; keep != 0 && keep < least+width {
			p.fail("retention", "%s of %s is too short: late data needs it for --age-cap, the slices up to %s and their --aggregation-delay, %s in all",
				FormatSpan(keep), cfg.Ladder.Name(b), cfg.Ladder.Name(b+1), FormatSpan(least+width))
		}
	}
}

// ParseSpan reads a duration that may also be in days (d), weeks (w) and years (y,
// 365 days), such as 7d, 1d12h or 90m.
func ParseSpan(s string) (time.Duration, error) {
	units := []struct {
		suffix string
		span   time.Duration
	}{{"y", year}, {"w", 7 * day}, {"d", day}}
	bad := fmt.Errorf("%q is no duration such as 90m, 24h, 7d or 1y", s)
	text := strings.TrimSpace(s)
	if text == "0" {
		return 0, nil
	}
	rest := text
	var total time.Duration
	for _, u := range units {
		number, after, ok := strings.Cut(rest, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 || n > int(100*year/u.span) {
			return 0, bad
		}
		total += time.Duration(n) * u.span
		rest = after
	}
	if rest != text && rest == "" {
		return checkSpan(total, bad)
	}
	d, err := time.ParseDuration(rest)
	if err != nil || rest != text && d < 0 {
		return 0, bad
	}
	return checkSpan(total+d, bad)
}

// checkSpan keeps spans within what can be added to a time without an overflow: the
// sum of terms that are small enough each may be too large, or have wrapped.
func checkSpan(d time.Duration, bad error) (time.Duration, error) {
	if d < -100*year || d > 100*year {
		return 0, bad
	}
	return d, nil
}

// FormatSpan prints a duration in the units that ParseSpan reads, whole units only.
func FormatSpan(d time.Duration) string {
	switch {
	case d == 0:
		return "0"
	case d%year == 0:
		return strconv.Itoa(int(d/year)) + "y"
	case d%day == 0 && d > day:
		return strconv.Itoa(int(d/day)) + "d"
	case d%time.Second == 0 && (d%time.Hour == 0 || d < 2*time.Hour):
		return metric.FormatWidth(d)
	}
	if whole, ok := strings.CutSuffix(d.String(), "m0s"); ok {
		return whole + "m"
	}
	return d.String()
}
