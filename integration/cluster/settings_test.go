package cluster

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/cassandra"
)

// TestSettings: all processes of a keyspace follow its stored settings. A process that is started
// with others is refused. A process under which they change takes no part. A command changes them
// when no process runs.
func TestSettings(t *testing.T) {
	t.Parallel()
	pl := sharedPlace(t)
	pl.apply(t, "--rollups", "4s,8s,16s")
	settings := func(args ...string) *process.Process { return pl.quern(t, append([]string{"settings"}, args...)...) }
	shown := func() string {
		t.Helper()
		p := settings()
		require.Equal(t, 0, p.ExitCode(), p.Stderr.String())
		return p.Stdout.String()
	}
	assert.Contains(t, shown(), "set by the first process that opens the store")

	first := pl.ingest(t, append(slices.Clone(aliveFor), "--late-grace", "1s", "--aggregation-delay", "2s", "--retention", "raw=2d")...)
	first.Ready()
	assert.Regexp(t, `(?m)^--late-grace +1s *$`, shown())
	assert.Regexp(t, `(?m)^--retention +raw=2d,4s=90d,8s=90d,16s=90d *$`, shown())

	// Settings that are not given come from the store. A different setting is refused with both
	// values.
	second := pl.aggregator(t, aliveFor...)
	second.Ready()
	for flag, c := range map[string]struct{ has, asked, set string }{
		"late-grace":        {"1s", "500ms", "500ms"},
		"aggregation-delay": {"2s", "3s", "3s"},
		"age-cap":           {"24h", "12h", "12h"},
		"retention":         {"raw=2d,4s=90d,8s=90d,16s=90d", "raw=3d", "raw=3d,4s=90d,8s=90d,16s=90d"},
	} {
		refused(t, pl.run(t, aggregatorCmd, "--"+flag, c.asked), fmt.Sprintf(
			"keyspace %q has --%s %s (%s requested): leave the options out, or stop all processes and change them for all with `quern settings set --keyspace %s --%s %s`",
			pl.keyspace, flag, c.has, c.set, pl.keyspace, flag, c.set))
	}
	refused(t, pl.run(t, ingestCommand, "--future-limit", "1h"), fmt.Sprintf("keyspace %q has --future-limit 10m (1h requested): ", pl.keyspace))

	// Nothing is changed while processes are alive.
	change := []string{"set", "--late-grace", "500ms", "--retention", "raw=5d"}
	p := settings(change...)
	require.Equal(t, 1, p.ExitCode())
	assert.Regexp(t, `these processes are running: \S+ on host \S+, last heartbeat at \S+; \S+ on host .*: stop them first`, p.Stderr.String())
	assert.Regexp(t, `(?m)^--late-grace +1s *$`, shown())
	second.Stop()
	first.Stop()
	process.Eventually(t, "the settings to change", func() error {
		if p := settings(change...); p.ExitCode() != 0 {
			return fmt.Errorf("%s", p.Stderr.String())
		}
		return nil
	})
	assert.Regexp(t, `(?m)^--late-grace +500ms *$`, shown())
	assert.Regexp(t, `(?m)^--retention +raw=5d,`, shown())

	// A process that does not learn of the change otherwise learns of it by its heartbeat.
	stale := pl.ingest(t, aliveFor...)
	stale.Ready()
	st, err := cassandra.Open(t.Context(), cassandra.Options{Hosts: pl.hosts, DirectHosts: pl.direct, Keyspace: pl.keyspace, Timeout: time.Minute})
	require.NoError(t, err)
	policy := st.Settings().Policy
	policy.Grace = 700 * time.Millisecond
	require.NoError(t, st.SetPolicy(t.Context(), policy))
	other := policy
	other.Grace = 0
	require.NoError(t, st.SetPolicy(t.Context(), other), "of two changes by one process the later counts")
	require.NoError(t, st.SetPolicy(t.Context(), policy))
	require.NoError(t, st.Close())
	why := regexp.MustCompile(`the settings of the store were changed while this process ran, --late-grace from 500ms to 700ms: restart the process`)
	process.Eventually(t, "reports to be refused", func() error {
		r, err := stale.Report(t.Context(), []process.Sample{{Source: "a", Metric: "it", Ms: time.Now().UnixMilli(), Value: 1}})
		if r.Code == http.StatusServiceUnavailable && why.Match(r.Body) {
			return nil
		}
		return fmt.Errorf("%d %s: %w", r.Code, strings.TrimSpace(string(r.Body)), err)
	})
	stale.Stop()
	again := pl.ingest(t, aliveFor...)
	again.Ready()
	_, err = again.Report(t.Context(), []process.Sample{{Source: "a", Metric: "it", Ms: time.Now().UnixMilli(), Value: 1}})
	require.NoError(t, err)

	// Of two concurrent changes one is refused.
	a, err := cassandra.Open(t.Context(), cassandra.Options{Hosts: pl.hosts, DirectHosts: pl.direct, Keyspace: pl.keyspace, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, a.Close()) }()
	b, err := cassandra.Open(t.Context(), cassandra.Options{Hosts: pl.hosts, DirectHosts: pl.direct, Keyspace: pl.keyspace, Timeout: time.Minute})
	require.NoError(t, err)
	defer func() { require.NoError(t, b.Close()) }()
	require.NoError(t, a.SetPolicy(t.Context(), other))
	require.ErrorIs(t, b.SetPolicy(t.Context(), policy), storage.ErrConflict)
}
