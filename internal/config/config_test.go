package config

import (
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

func TestMain(m *testing.M) {
	// The tester's own environment must not affect any test.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "QUERN_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

// parse runs a command with the flags as the program does, and returns what from reads.
func parse[T any](t *testing.T, flags []cli.Flag, from func(*cli.Context) (T, error), args []string) (T, error) {
	t.Helper()
	var out T
	app := &cli.App{
		Writer: io.Discard, ErrWriter: io.Discard,
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{{
			Name: "it", Flags: flags,
			OnUsageError: func(_ *cli.Context, err error, _ bool) error { return err },
			Action: func(c *cli.Context) (err error) {
				out, err = from(c)
				return err
			},
		}},
	}
	err := app.RunContext(t.Context(), append([]string{"quern", "it"}, args...))
	return out, err
}

func serve(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	return parse(t, ServeFlags(), FromServe, args)
}

// retention returns the retention of a configuration on its own ladder.
func retention(t *testing.T, cfg Config) storage.Retention {
	t.Helper()
	out, err := cfg.Policy.New(storage.Settings{Ladder: cfg.Ladder}.OrNew().Ladder)
	require.NoError(t, err)
	return out.Retention
}

func agent(t *testing.T, args ...string) (Agent, error) {
	t.Helper()
	return parse(t, AgentFlags(), FromAgent, args)
}

func TestDefaults(t *testing.T) {
	cfg, err := serve(t)
	require.NoError(t, err)
	assert.Zero(t, cfg.Made, "as the store has it")
	assert.Zero(t, cfg.Policy)
	assert.Equal(t, "info", cfg.Texts["log-level"])
	cfg.Texts, cfg.Again = nil, nil
	policy, err := cfg.Policy.New(metric.DefaultLadder())
	require.NoError(t, err)
	assert.Equal(t, storage.Policy{
		Grace: time.Minute, Delay: 2 * time.Minute, AgeCap: day, FutureLimit: 10 * time.Minute,
		Retention:    storage.Retention{7 * day, 90 * day, year, 5 * year},
		SourceLabels: metric.SourceLabels{"host", "instance", "hostname", "host_name", "node", "k8s_node_name", "pod", "server", "job"},
	}, policy)
	assert.Equal(t, Config{
		Store: "pebble", DataDir: "./quern-data", Listen: "127.0.0.1:9095",
		Cluster: Cluster{
			Hosts: []string{"127.0.0.1:9042"}, Keyspace: "quern", Consistency: "LOCAL_QUORUM",
			Timeout: 5 * time.Second,
		},
		DrainDelay:          time.Second,
		Proxies:             []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
		AnnotationRetention: 5 * year,
		HeartbeatTimeout:    30 * time.Second,
		OTLPPromote: []string{
			"host.name", "k8s.cluster.name", "k8s.namespace.name", "k8s.node.name", "k8s.pod.name", "k8s.container.name",
		},
		MaxBodyBytes: 16 << 20,
		Query:        Query{Timeout: 2 * time.Minute, Concurrency: 20, Lookback: 5 * time.Minute},
		HostMetrics:  true,
		Log:          Log{LogLevel: new(slog.LevelVar), LogFormat: "text"},
	}, cfg)

	a, err := agent(t)
	require.NoError(t, err)
	assert.Equal(t, Agent{
		Connection: Connection{URL: "http://127.0.0.1:9095"}, Interval: 10 * time.Second,
		DataDir: "./quern-agent-data", SpoolBytes: 1 << 30, SpoolAge: 24 * time.Hour,
		Log: Log{LogLevel: new(slog.LevelVar), LogFormat: "text"},
	}, a)
}

// TestWhoMayAsk tests the lists of names, addresses and origins.
func TestWhoMayAsk(t *testing.T) {
	cfg, err := serve(t, "--proxies", "", "--allowed-hosts", "a.example, b.example", "--cors-origin", "https://a|https://b")
	require.NoError(t, err)
	assert.Empty(t, cfg.Proxies)
	assert.Equal(t, []string{"a.example", "b.example"}, cfg.AllowedHosts)
	for origin, want := range map[string]bool{"https://a": true, "https://b": true, "https://ab": false, "xhttps://b": false, "https://a\n": false} {
		assert.Equal(t, want, cfg.CORSOrigin.MatchString(origin), "%q", origin)
	}
	cfg, err = serve(t, "--proxies", "192.0.2.1,2001:db8::/32")
	require.NoError(t, err)
	assert.Equal(t, []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/32")}, cfg.Proxies)
}

func TestRetention(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		want storage.Retention
	}{
		{"all of it", []string{"--retention", "raw=8d,1h=30d,6h=2y,24h=0"}, storage.Retention{8 * day, 30 * day, 2 * year, 0}},
		{"what is not named keeps its default", []string{"--retention", "raw=3d"}, storage.Retention{3 * day, 90 * day, year, 5 * year}},
		{"spaces", []string{"--retention", " raw=3d , 24h=10y"}, storage.Retention{3 * day, 90 * day, year, 10 * year}},
		{"raw for ever", []string{"--retention", "raw=0"}, storage.Retention{0, 90 * day, year, 5 * year}},
		{
			"another ladder has defaults by width",
			[]string{"--rollups", "30m,2h,12h,48h"},
			storage.Retention{7 * day, 90 * day, year, 5 * year, 5 * year},
		},
		{
			"another ladder's names",
			[]string{"--rollups", "10s,1m,1h", "--retention", "1m=2d,1h=3d"},
			storage.Retention{7 * day, 90 * day, 2 * day, 3 * day},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cfg, err := serve(t, c.args...)
			require.NoError(t, err)
			assert.Equal(t, c.want, retention(t, cfg))
		})
	}
}

// TestAnnotationRetention: annotations are no level of the store, so only processes that serve know their retention.
func TestAnnotationRetention(t *testing.T) {
	cfg, err := serve(t, "--retention", "annotations=1y,raw=3d")
	require.NoError(t, err)
	assert.Equal(t, year, cfg.AnnotationRetention)
	assert.Equal(t, storage.Retention{3 * day, 90 * day, year, 5 * year}, retention(t, cfg))
	cfg, err = serve(t, "--retention", "annotations=0")
	require.NoError(t, err)
	assert.Zero(t, cfg.AnnotationRetention)
	set, err := parse(t, SetSettingsFlags(), FromSetSettings, []string{"--retention", "annotations=1y"})
	require.NoError(t, err)
	_, err = set.Policy.New(metric.DefaultLadder())
	assert.ErrorContains(t, err, `no bucket "annotations"`)
}

// TestRetentionLeast: the minimum that the message names is enough, and less is not.
func TestRetentionLeast(t *testing.T) {
	for _, level := range []string{"raw", "1h", "6h"} {
		least := func(args ...string) error {
			cfg, err := serve(t, args...)
			require.NoError(t, err)
			_, err = cfg.Policy.New(metric.DefaultLadder())
			return err
		}
		err := least("--retention", level+"=1h")
		require.ErrorContains(t, err, level+"=1h: is too short")
		named := regexp.MustCompile(`, (\S+) in all`).FindStringSubmatch(err.Error())
		require.NotNil(t, named, err)
		assert.NoError(t, least("--retention", level+"="+named[1]))
		span, err := metric.ParseSpan(named[1])
		require.NoError(t, err)
		assert.ErrorContains(t, least("--retention", level+"="+metric.FormatSpan(span-time.Minute)), "is too short")
	}
}

// TestWrong: each message names the flag, the value, and what would be right.
func TestWrong(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--store", "scylla"}, `--store scylla: must be pebble or cassandra`},
		{[]string{"--data-dir", ""}, `--data-dir: must not be empty`},
		{[]string{"--listen", ""}, `--listen: must not be empty`},
		{[]string{"--listen", "9095"}, `--listen 9095: must be HOST:PORT`},
		{[]string{"--listen", "localhost:"}, `--listen localhost:: must be HOST:PORT`},
		{[]string{"--block-size", "0"}, `--block-size 0: must be between 1 and 4096`},
		{[]string{"--block-size", "4097"}, `--block-size 4097: must be between 1 and 4096`},
		{[]string{"--block-size", "many"}, `invalid value "many" for flag -block-size`},
		{[]string{"--graphite-listen", "2003"}, `--graphite-listen 2003: must be HOST:PORT`},
		{[]string{"--listen", ":9095"}, `--listen :9095: other machines reach this address, and nobody would have to log in: give --web.config.file`},
		{[]string{"--listen", "0.0.0.0:9095"}, `--listen 0.0.0.0:9095: other machines reach`},
		{[]string{"--listen", "[::]:9095"}, `--listen [::]:9095: other machines reach`},
		{[]string{"--listen", "192.0.2.1:9095"}, `let everybody in with --insecure`},
		{[]string{"--listen", "quern.example:9095"}, `--listen quern.example:9095: other machines reach`},
		{[]string{"--graphite-listen", ":2003"}, `--graphite-listen :2003: other machines reach`},
		{[]string{"--insecure", "--web.config.file", "web.yaml"}, `--insecure: conflicts with --web.config.file`},
		{[]string{"--max-series", "-1"}, `--max-series -1: must be between 0 and`},
		{[]string{"--max-body-bytes", "0"}, `--max-body-bytes 0: must be between 1 and`},
		{[]string{"--query-timeout", "0s"}, `--query-timeout 0s: must be more than 0`},
		{[]string{"--query-max-samples", "-1"}, `--query-max-samples -1: must be between 0 and`},
		{[]string{"--query-concurrency", "0"}, `--query-concurrency 0: must be between 1 and`},
		{[]string{"--drain-delay", "-1s"}, `--drain-delay -1s: must not be negative`},
		{[]string{"--proxies", "proxy.example"}, `--proxies proxy.example: must be addresses such as`},
		{[]string{"--cors-origin", "https://(a"}, "--cors-origin https://(a: error parsing regexp"},
		{[]string{"--query-lookback", "1us"}, `--query-lookback 1us: must be`},
		{[]string{"--age-cap", "tomorrow"}, `--age-cap tomorrow: "tomorrow" is not a duration such as`},
		{[]string{"--age-cap", "0"}, `--age-cap 0: must be more than 0`},
		{[]string{"--future-limit", "-1m"}, `--future-limit -1m: must be more than 0`},
		{[]string{"--log-level", "loud"}, `--log-level loud: must be debug, info, warn or error`},
		{[]string{"--log-format", "xml"}, `--log-format xml: must be text or json`},
		{[]string{"--rollups", "1h,90m"}, `--rollups: roll-ups "1h,90m": roll-up width 90m: must be a multiple of the one before it, 1h`},
		{[]string{"--rollups", ""}, `--rollups: roll-ups ""`},
		{[]string{"--rollups", "500ms,1s"}, `roll-up width 500ms: must be whole seconds`},
		{[]string{"--late-grace", "2m"}, `--late-grace 2m: must be shorter than --aggregation-delay, which is 2m`},
		{[]string{"--late-grace", "5m"}, `--late-grace 5m: must be shorter than --aggregation-delay, which is 2m`},
		{[]string{"--late-grace", "-1s"}, `--late-grace -1s: must be 0 or more`},
		{[]string{"--aggregation-delay", "30s"}, `--late-grace 1m: must be shorter than --aggregation-delay, which is 30s`},
		{[]string{"--aggregation-delay", "0", "--late-grace", "0"}, `--aggregation-delay 0: must be more than 0`},
		{[]string{"--retention", "raw"}, `--retention raw: "raw" is not of the form LEVEL=SPAN`},
		{[]string{"--retention", "raw=long"}, `--retention raw=long: "long" is not a duration`},
		{[]string{"--retention", "24h=-1h"}, `-1h of 24h: must not be negative`},
		{[]string{"--retention", "12h=2d"}, `--retention 12h=2d: no bucket "12h": there are raw,1h,6h,24h`},
		{[]string{"--source-labels", ""}, `--source-labels : must name at least one label`},
		{[]string{"--source-labels", "host, rack,host"}, `--source-labels host, rack,host: must not name host twice`},
		{[]string{"--source-labels", "source"}, `--source-labels source: must not name source: it is no label that may stand for the source`},
		{[]string{"--retention", "raw=1d"}, `--retention raw=24h: is too short: `},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			cfg, err := serve(t, c.args...)
			if err == nil { // conflicts between values show once the store is known
				_, err = cfg.Policy.New(storage.Settings{Ladder: cfg.Ladder}.OrNew().Ladder)
			}
			require.ErrorContains(t, err, c.want)
		})
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--url", "metrics.example:9095"}, `--url metrics.example:9095: must be like http://127.0.0.1:9095`},
		{[]string{"--url", "ftp://x"}, `--url ftp://x: must be like`},
		{[]string{"--interval", "0"}, `--interval 0: must be whole milliseconds, at least 1ms`},
		{[]string{"--spool-bytes", "0"}, `--spool-bytes 0: must be between 16777216 and`},
	} {
		t.Run("agent "+strings.Join(c.args, " "), func(t *testing.T) {
			_, err := agent(t, c.args...)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestAllThatIsWrongIsNamedAtOnceAndOnce(t *testing.T) {
	_, err := serve(t, "--block-size", "0", "--age-cap", "x", "--log-level", "loud")
	require.Error(t, err)
	lines := strings.Split(err.Error(), "\n")
	require.Len(t, lines, 3)
	for _, flag := range []string{"--block-size", "--age-cap", "--log-level"} {
		assert.Equal(t, 1, strings.Count(err.Error(), flag), flag)
	}
}

// TestSeconds: a ladder of seconds works, so that hours can be tried in a minute.
func TestSeconds(t *testing.T) {
	cfg, err := serve(t, "--rollups", "1s,2s,4s", "--aggregation-delay", "300ms", "--late-grace", "100ms")
	require.NoError(t, err)
	assert.Equal(t, "1s,2s,4s", cfg.Ladder.String())
	assert.Equal(t, 300*time.Millisecond, *cfg.AggregationDelay)
	assert.Equal(t, 100*time.Millisecond, *cfg.LateGrace)
}

// TestDemoDirectory: generated data does not mix with a user's own unless requested.
func TestDemoDirectory(t *testing.T) {
	cfg, err := serve(t, "--demo")
	require.NoError(t, err)
	assert.Equal(t, "./quern-data/demo", cfg.DataDir)

	cfg, err = serve(t, "--demo", "--data-dir", "./quern-data")
	require.NoError(t, err)
	assert.Equal(t, "./quern-data", cfg.DataDir)

	t.Setenv("QUERN_DATA_DIR", "/elsewhere")
	cfg, err = serve(t, "--demo")
	require.NoError(t, err)
	assert.Equal(t, "/elsewhere", cfg.DataDir)
}

func TestEnvironment(t *testing.T) {
	t.Setenv("QUERN_BLOCK_SIZE", "64")
	t.Setenv("QUERN_HOST_METRICS", "false")
	t.Setenv("QUERN_RETENTION", "raw=9d")
	t.Setenv("QUERN_SOURCE", "db-7")
	t.Setenv("QUERN_SOURCE_LABELS", "rack, host")
	cfg, err := serve(t)
	require.NoError(t, err)
	assert.Equal(t, metric.SourceLabels{"rack", "host"}, cfg.SourceLabels)
	assert.Equal(t, 64, cfg.BlockSize)
	assert.False(t, cfg.HostMetrics)
	assert.Equal(t, 9*day, retention(t, cfg)[0])
	assert.Equal(t, "db-7", cfg.Source)

	t.Setenv("QUERN_BLOCK_SIZE", "many")
	_, err = serve(t)
	require.ErrorContains(t, err, `"many"`)
	require.ErrorContains(t, err, "QUERN_BLOCK_SIZE")

	t.Setenv("QUERN_BLOCK_SIZE", "")
	t.Setenv("QUERN_LISTEN", "")
	_, err = serve(t)
	require.ErrorContains(t, err, "--listen: must not be empty")
}

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "quern.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestFile(t *testing.T) {
	path := file(t, `
# comments are fine
listen: ":9095"
web.config.file: /etc/quern/web.yaml
block-size: 64
local-dc: dc1
log-format: json
demo: true
data-dir: /var/lib/quern
host-metrics: false
age-cap: 12h
retention: raw=9d
`)
	t.Run("over the default", func(t *testing.T) {
		cfg, err := serve(t, "--config", path)
		require.NoError(t, err)
		assert.Equal(t, ":9095", cfg.Listen)
		assert.Equal(t, "/etc/quern/web.yaml", cfg.WebConfig)
		assert.Equal(t, 64, cfg.BlockSize)
		assert.Equal(t, "/var/lib/quern", cfg.DataDir, "also with demo, which has a directory of its own otherwise")
		assert.True(t, cfg.Demo)
		assert.False(t, cfg.HostMetrics)
		assert.Equal(t, 12*time.Hour, *cfg.AgeCap)
		assert.Equal(t, 9*day, retention(t, cfg)[0])
	})
	t.Run("flag over variable over file over default", func(t *testing.T) {
		t.Setenv("QUERN_BLOCK_SIZE", "32")
		t.Setenv("QUERN_LOCAL_DC", "dc2")
		t.Setenv("QUERN_DEMO", "false")
		cfg, err := serve(t, "--config", path, "--block-size", "16")
		require.NoError(t, err)
		assert.Equal(t, 16, cfg.BlockSize, "flag")
		assert.Equal(t, "dc2", cfg.Cluster.LocalDC, "variable")
		assert.False(t, cfg.Demo, "variable")
		assert.Equal(t, "json", cfg.LogFormat, "file")
		assert.Nil(t, cfg.LateGrace, "as the store has it")
	})
	t.Run("named by a variable", func(t *testing.T) {
		t.Setenv("QUERN_CONFIG", path)
		cfg, err := serve(t)
		require.NoError(t, err)
		assert.Equal(t, 64, cfg.BlockSize)
	})
	t.Run("of the agent", func(t *testing.T) {
		a, err := agent(t, "--config", file(t, "url: http://metrics.example:9095\ninterval: 30s\n"))
		require.NoError(t, err)
		assert.Equal(t, "http://metrics.example:9095", a.URL)
		assert.Equal(t, 30*time.Second, a.Interval)
	})
	t.Run("empty", func(t *testing.T) {
		_, err := serve(t, "--config", file(t, "# nothing yet\n"))
		require.NoError(t, err)
	})
	for name, c := range map[string]struct{ text, want string }{
		"unknown key":       {"listen: :9095\n\nblock_size: 64\n", `line 3: unknown option "block_size"; the keys are the names of the flags`},
		"config in itself":  {"config: other.yaml\n", `line 1: unknown option "config"`},
		"a list":            {"block-size: 64\nretention:\n  - raw=7d\n", `line 3: retention must be a single value`},
		"a mapping":         {"retention: {raw: 7d}\n", `line 1: retention must be a single value`},
		"nothing":           {"data-dir:\n", `line 1: data-dir must be a single value`},
		"not a number":      {"block-size: many\n", `line 1: block-size many: must be a whole number`},
		"not a truth value": {"demo: perhaps\n", `line 1: demo perhaps: must be true or false`},
		"out of bounds":     {"block-size: 0\n", `quern.yaml, line 1: --block-size 0: must be between 1 and 4096`},
		"no level":          {"demo: true\nlog-level: loud\n", `quern.yaml, line 2: --log-level loud: must be debug`},
		"not YAML":          {"listen: [\n", `quern.yaml: yaml: `},
		"no mapping":        {"- listen\n", `quern.yaml: yaml: `},
		"twice":             {"demo: true\ndemo: false\n", `already defined at line 1`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, "--config", file(t, c.text))
			require.ErrorContains(t, err, c.want)
		})
	}
	t.Run("missing", func(t *testing.T) {
		_, err := serve(t, "--config", filepath.Join(t.TempDir(), "none.yaml"))
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, "--config: open ")
	})
}

// TestAgain: the file is read again as at a start. What is given elsewhere stays, and what is gone from the file has its default.
func TestAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "quern.yaml")
	write := func(text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o600)) }
	t.Setenv("QUERN_MAX_BODY_BYTES", "7")
	write("max-series: 5\nmax-body-bytes: 8\nblock-size: 64\nhost-metrics: false\n")
	cfg, err := serve(t, "--config", path, "--max-series-per-source", "3", "--log-level", "warn")
	require.NoError(t, err)
	write("max-series: 6\nmax-series-per-source: 9\nlog-level: debug\nmax-body-bytes: 9\n")
	for range 2 {
		next, err := cfg.Again()
		require.NoError(t, err)
		require.Equal(t, []any{6, 3, int64(7), slog.LevelWarn, true}, []any{next.MaxSeries, next.MaxSeriesPerSource, next.MaxBodyBytes, next.LogLevel.Level(), next.HostMetrics})
		require.Zero(t, next.BlockSize, "as the store has it")
		var differ []string
		for name, text := range next.Texts {
			if text != cfg.Texts[name] {
				differ = append(differ, name)
			}
		}
		require.ElementsMatch(t, []string{"max-series", "block-size", "host-metrics"}, differ)
	}
	write("\nmax-series: -1\n")
	_, err = cfg.Again()
	require.ErrorContains(t, err, path+", line 2: --max-series -1: must be between")
}

// TestLocked: addresses that only this machine reaches need no login, and others say whether they have one.
func TestLocked(t *testing.T) {
	for _, args := range [][]string{
		{"--listen", "localhost:9095"},
		{"--listen", "127.0.0.2:9095"},
		{"--listen", "[::1]:9095"},
		{"--listen", "[::ffff:127.0.0.1]:9095", "--graphite-listen", "127.0.0.1:2003"},
		{"--listen", ":9095", "--graphite-listen", ":2003", "--insecure"},
		{"--listen", ":9095", "--graphite-listen", ":2003", "--web.config.file", "web.yaml"},
	} {
		cfg, err := serve(t, args...)
		require.NoError(t, err, args)
		require.Equal(t, slices.Contains(args, "--insecure"), cfg.Insecure)
	}
	t.Setenv("QUERN_WEB_CONFIG_FILE", "by-variable.yaml")
	cfg, err := serve(t, "--listen", ":9095")
	require.NoError(t, err)
	require.Equal(t, "by-variable.yaml", cfg.WebConfig)
}
