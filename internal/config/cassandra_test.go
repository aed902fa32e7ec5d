package config

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

func ingest(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	return parse(t, IngestFlags(), FromIngest, args)
}

func aggregator(t *testing.T, args ...string) (Config, error) {
	t.Helper()
	return parse(t, AggregatorFlags(), FromAggregator, args)
}

func schema(t *testing.T, args ...string) (Schema, error) {
	t.Helper()
	return parse(t, SchemaFlags(), FromSchema, args)
}

func TestSharedDefaults(t *testing.T) {
	i, err := ingest(t)
	require.NoError(t, err)
	assert.Equal(t, Cassandra, i.Store)
	assert.Equal(t, "127.0.0.1:9095", i.Listen)
	assert.False(t, i.HostMetrics)
	a, err := aggregator(t)
	require.NoError(t, err)
	assert.Equal(t, Cassandra, a.Store)
	assert.Equal(t, "127.0.0.1:9096", a.Listen)
	assert.Equal(t, i.Cluster, a.Cluster)
	s, err := schema(t)
	require.NoError(t, err)
	assert.Equal(t, i.Cluster, s.Cluster)
	assert.Empty(t, s.Replication)
}

// TestSchemaRetention: the schema judges a retention by the same flags as processes do.
func TestSchemaRetention(t *testing.T) {
	policy := func(args ...string) (storage.Policy, error) {
		s, err := schema(t, append([]string{"--retention", "raw=3h"}, args...)...)
		require.NoError(t, err)
		return s.Policy.New(metric.DefaultLadder())
	}
	_, err := policy()
	require.ErrorContains(t, err, "--retention raw=3h: is too short: late data needs --age-cap")
	made, err := policy("--age-cap", "30m")
	require.NoError(t, err)
	assert.Equal(t, storage.Retention{3 * time.Hour, 90 * day, year, 5 * year}, made.Retention)
	_, err = policy("--age-cap", "30m", "--aggregation-delay", "40m")
	assert.ErrorContains(t, err, "plus their --aggregation-delay, 3h10m in all")
	_, err = policy("--age-cap", "30m", "--late-grace", "3m")
	assert.ErrorContains(t, err, "must be shorter than --aggregation-delay")
}

// TestRecorded: over a shared store only the given values count, wherever they are given.
func TestRecorded(t *testing.T) {
	for name, made := range map[string]func(args ...string) (Made, error){
		"serve": func(args ...string) (Made, error) {
			cfg, err := serve(t, append(args, "--store", "cassandra")...)
			return cfg.Made, err
		},
		"ingest": func(args ...string) (Made, error) { cfg, err := ingest(t, args...); return cfg.Made, err },
		"schema": func(args ...string) (Made, error) { s, err := schema(t, args...); return s.Made, err },
	} {
		t.Run(name, func(t *testing.T) {
			m, err := made()
			require.NoError(t, err)
			assert.Equal(t, Made{}, m)

			m, err = made("--block-size", "128", "--rollups", "1h,6h,24h")
			require.NoError(t, err)
			assert.Equal(t, "1h,6h,24h", m.Ladder.String())
			assert.Equal(t, Made{Ladder: m.Ladder, BlockSize: 128}, m)

			t.Setenv("QUERN_ROLLUPS", "1m")
			m, err = made("--config", file(t, "block-size: 64\n"))
			require.NoError(t, err)
			assert.Equal(t, Made{Ladder: m.Ladder, BlockSize: 64}, m)
			assert.Equal(t, "1m", m.Ladder.String())
		})
	}
	s, err := schema(t, "--group-size", "32", "--index-partitions", "4")
	require.NoError(t, err)
	assert.Equal(t, Made{GroupSize: 32, IndexPartitions: 4}, s.Made)
	_, err = schema(t, "--group-size", "0")
	assert.ErrorContains(t, err, "--group-size 0: must be between 1 and 4096")
}

// TestRetentionOfAnotherLadder: only the open store shows which levels exist.
func TestRetentionOfAnotherLadder(t *testing.T) {
	cfg, err := ingest(t, "--retention", "raw=9d,1m=4d")
	require.NoError(t, err)
	other, err := serve(t, "--rollups", "10s,1m,1h")
	require.NoError(t, err)
	got, err := cfg.Policy.New(other.Ladder)
	require.NoError(t, err)
	assert.Equal(t, storage.Retention{9 * day, 90 * day, 4 * day, 90 * day}, got.Retention)

	_, err = cfg.Policy.New(metric.DefaultLadder())
	assert.ErrorContains(t, err, `--retention 1m=4d: no bucket "1m": there are raw,1h,6h,24h`)
}

func TestCluster(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte("hunter2\n"), 0o600))
	cfg, err := serve(t, "--store", "Cassandra", "--cassandra-hosts", "10.0.0.1, db:9043,[::1]:9042,fe80::1", "--keyspace", "trial",
		"--consistency", "quorum", "--local-dc", "dc1", "--cassandra-username", "quern", "--cassandra-password-file", secret,
		"--cassandra-ca", "ca.pem", "--cassandra-cert", "cert.pem", "--cassandra-key", "key.pem", "--cassandra-tls",
		"--cassandra-timeout", "2s", "--cassandra-direct")
	require.NoError(t, err)
	assert.Equal(t, Cassandra, cfg.Store)
	assert.Equal(t, Cluster{
		Hosts: []string{"10.0.0.1", "db:9043", "[::1]:9042", "fe80::1"}, Keyspace: "trial", Consistency: "QUORUM", LocalDC: "dc1",
		Username: "quern", Password: "hunter2", TLS: true, CA: "ca.pem", Cert: "cert.pem", Key: "key.pem",
		Timeout: 2 * time.Second, Direct: true,
	}, cfg.Cluster)
}

// TestPasswordIsNotShown: the password appears in no printed configuration.
func TestPasswordIsNotShown(t *testing.T) {
	const password = "hunter2"
	secret := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(secret, []byte(password), 0o600))
	cfg, err := ingest(t, "--cassandra-username", "quern", "--cassandra-password-file", secret)
	require.NoError(t, err)
	require.Equal(t, Secret(password), cfg.Cluster.Password)
	var shown bytes.Buffer
	for _, format := range []string{"%v", "%+v", "%#v", "%s"} {
		fmt.Fprintf(&shown, format, cfg)
		fmt.Fprintf(&shown, format, cfg.Cluster.Password)
	}
	slog.New(slog.NewTextHandler(&shown, nil)).Info("config", "password", cfg.Cluster.Password, "all", cfg)
	slog.New(slog.NewJSONHandler(&shown, nil)).Info("config", "password", cfg.Cluster.Password, "all", cfg)
	_, err = ingest(t, "--cassandra-password-file", "x", "--consistency", "never", "--cassandra-hosts", ":")
	require.Error(t, err)
	fmt.Fprintln(&shown, err)
	assert.NotContains(t, shown.String(), password)
}

func TestWrongCluster(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--store", "pebble"}, "--store pebble: only one process can open the embedded store: use `quern serve`"},
		{[]string{"--store", "files"}, "--store files: must be pebble or cassandra"},
		{[]string{"--cassandra-hosts", ""}, "--cassandra-hosts: must not be empty"},
		{[]string{"--cassandra-hosts", "a,,b"}, "--cassandra-hosts a,,b: must be HOST or HOST:PORT"},
		{[]string{"--cassandra-hosts", "a:port"}, "--cassandra-hosts a:port: must be HOST or HOST:PORT"},
		{[]string{"--cassandra-hosts", "a:0"}, "--cassandra-hosts a:0: must be HOST or HOST:PORT"},
		{[]string{"--cassandra-hosts", "a:b:1"}, "--cassandra-hosts a:b:1: must be HOST or HOST:PORT"},
		{[]string{"--keyspace", ""}, "--keyspace: must not be empty"},
		{[]string{"--consistency", "ANY"}, "--consistency ANY: must be ONE, TWO, THREE, QUORUM, ALL, LOCAL_ONE, LOCAL_QUORUM or EACH_QUORUM"},
		{[]string{"--cassandra-timeout", "0"}, "--cassandra-timeout 0: must be more than 0"},
		{[]string{"--cassandra-password-file", none}, "--cassandra-username: must not be empty when a password is given"},
		{[]string{"--cassandra-username", "u", "--cassandra-password-file", none}, "--cassandra-password-file " + none + ": open " + none},
		{[]string{"--cassandra-cert", "c.pem"}, "--cassandra-cert c.pem: must be given together with --cassandra-key"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			_, err := ingest(t, c.args...)
			require.ErrorContains(t, err, c.want)
			_, err = aggregator(t, c.args...)
			require.ErrorContains(t, err, c.want)
		})
	}
	_, err := serve(t, "--store", "cassandra", "--demo")
	require.ErrorContains(t, err, "--demo: needs --store pebble")
	_, err = serve(t, "--store", "cassandra", "--accept-clock")
	require.ErrorContains(t, err, "--accept-clock: needs --store pebble")
	for _, text := range []string{"3", "dc1", "dc1=", "=3", "dc1=0", "dc1=3,,dc2=3", "dc1=many"} {
		_, err := schema(t, "--replication", text)
		assert.ErrorContains(t, err, "--replication "+text+": must be DC=COPIES, such as dc1=3,dc2=3")
	}
	s, err := schema(t, "--replication", "dc1=3,dc2=2")
	require.NoError(t, err)
	assert.Equal(t, "dc1=3,dc2=2", s.Replication)
}
