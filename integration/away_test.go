package integration

import (
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// nobody returns an address at which no process listens.
func nobody(t *testing.T) string {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// TestNoCassandra: a process whose cluster is not there keeps running, says so, and retries.
func TestNoCassandra(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"quern serve": {binary, "serve", "--store", "cassandra", "--host-metrics=false"},
		"ingest":      {ingestBinary},
		"aggregator":  {aggregatorBinary},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			hosts := nobody(t)
			args := append(slices.Clone(command[1:]), "--listen", "127.0.0.1:0", "--cassandra-hosts", hosts,
				"--cassandra-username", "quern", "--cassandra-password", "hunter2")
			p := process.Start(t, exec.CommandContext(t.Context(), command[0], args...))
			p.URL = "http://" + p.Wrote(`msg=listening address=(\S+)`)[1]
			r, err := p.Get("/-/healthy", nil)
			require.NoError(t, err)
			assert.Equal(t, 200, r.Code)
			p.Wrote(`level=WARN msg="no Cassandra node of ` + hosts + ` answers; trying again in 1s"`)
			r, err = p.Get("/-/ready", nil)
			require.NoError(t, err)
			assert.Equal(t, 503, r.Code)
			assert.Contains(t, string(r.Body), hosts, "the reason")
			r, err = p.Post("/api/v1/reports", []byte(`{"source":"a","measurements":[{"metric":"x","value":1}]}`))
			require.NoError(t, err)
			assert.Equal(t, 503, r.Code)
			assert.NotEmpty(t, r.Header.Get("Retry-After"))
			assert.Equal(t, "application/json", r.Header.Get("Content-Type"))
			assert.Contains(t, string(r.Body), `"status":"error"`)
			r, err = p.Get("/api/v1/status/aggregation", nil)
			require.NoError(t, err)
			assert.Equal(t, 503, r.Code)
			p.Wrote(`answers; trying again in 2s"`)

			p.Stop()
			assert.NotContains(t, p.Stderr.String(), "hunter2")
			assert.NotContains(t, p.Stderr.String(), "msg=serving")
		})
	}
}

func TestSchemaWithoutCassandra(t *testing.T) {
	t.Parallel()
	hosts := nobody(t)
	p := start(t, "schema", "apply", "--cassandra-hosts", hosts)
	p.Wrote(`msg="no Cassandra node of ` + hosts + ` answers; trying again in 2s"`)
	p.Signal(syscall.SIGTERM)
	assert.Equal(t, 1, p.ExitCode())
	assert.Contains(t, p.Stderr.String(), "quern: stopped before the schema was complete: run the command again")
}

// TestPrograms tests what all programs have in common.
func TestPrograms(t *testing.T) {
	t.Parallel()
	bash := lookPath(t, "bash")
	for _, path := range []string{binary, ingestBinary, aggregatorBinary} {
		name := filepath.Base(path)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run := func(args ...string) *process.Process {
				return process.Start(t, exec.CommandContext(t.Context(), path, args...))
			}
			p := run("--help")
			assert.Equal(t, 0, p.ExitCode())
			assert.Contains(t, p.Stdout.String(), "completion")
			assert.Empty(t, p.Stderr.String())
			p = run("--version")
			assert.Equal(t, 0, p.ExitCode())
			assert.True(t, strings.HasPrefix(p.Stdout.String(), name+" version "), p.Stdout.String())
			p = run("--bogus")
			assert.Equal(t, 2, p.ExitCode())
			assert.Equal(t, name+": unknown flag --bogus\nSee '"+name+" --help'.\n", p.Stderr.String())

			script := `source <("$1" completion bash)
				COMP_WORDS=("$1" "$2"); COMP_CWORD=1; _` + name + `; echo "${COMPREPLY[*]}"`
			out, err := exec.CommandContext(t.Context(), bash, "-c", script, "bash", path, "comp").Output()
			require.NoError(t, err)
			assert.Equal(t, "completion\n", string(out))
			if path == binary {
				return
			}
			out, err = exec.CommandContext(t.Context(), bash, "-c", script, "bash", path, "--cassandra-h").Output()
			require.NoError(t, err)
			assert.Equal(t, "--cassandra-hosts\n", string(out))

			p = run("--help")
			assert.Equal(t, 0, p.ExitCode())
			assert.Contains(t, p.Stdout.String(), "Examples:")
			p = run("--store", "pebble")
			assert.Equal(t, 2, p.ExitCode())
			assert.Equal(t, name+": --store pebble: only one process can open the embedded store: use `quern serve`\n"+
				"See '"+name+" --help'.\n", p.Stderr.String())
		})
	}
}
