package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/app/program/programtest"
)

func TestMain(m *testing.M) { os.Exit(programtest.Main(m)) }

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, []string{"quern serve --demo", "serve", "agent", "completion"}},
		{[]string{"--help"}, []string{"quern serve --demo", "serve", "agent", "completion"}},
		{[]string{"serve", "--help"}, []string{"Examples:", "quern serve --demo", "--rollups", "$QUERN_ROLLUPS", "SIGTERM"}},
		{[]string{"schema", "apply", "--help"}, []string{"Examples:", "quern schema apply --replication dc1=3,dc2=3", "--cassandra-hosts", "$QUERN_KEYSPACE"}},
		{[]string{"migrate", "--help"}, []string{"Examples:", "quern migrate --names names.csv", "--from-keyspace", "$QUERN_FROM_KEYSPACE", "--drop"}},
		{[]string{"agent", "-h"}, []string{"Examples:", "quern agent --url", "--spool-bytes", "$QUERN_SPOOL_BYTES"}},
		{[]string{"reaggregate", "--help"}, []string{"Examples:", "quern reaggregate --match", "--start", "$QUERN_MATCH"}},
		{[]string{"explain", "--help"}, []string{"Examples:", "quern explain --match", "--time", "--limit"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, err := programtest.Run(t, quern(), c.args...)
			require.NoError(t, err)
			for _, want := range c.want {
				assert.Contains(t, out, want)
			}
			if strings.Contains(out, "Examples:") {
				assert.NotContains(t, out, "\t   quern", "an example is written with spaces")
			}
		})
	}
}

func TestVersion(t *testing.T) {
	out, err := programtest.Run(t, quern(), "--version")
	require.NoError(t, err)
	assert.Regexp(t, `^quern version \S+ \(.*go1.*/.*\)\n$`, out)
}

// TestUsage: each case is exit code 2, with a hint on what to do.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args    string
		command string
		want    string
	}{
		{"grind", "quern", `unknown command "grind"`},
		{"help grind", "quern", `No help topic for 'grind'`},
		{"--bogus", "quern", `unknown flag --bogus`},
		{"--versio", "quern", `unknown flag --versio; did you mean --version?`},
		{"serve now", "quern serve", `unexpected argument "now"`},
		{"serve demo --listen :9095", "quern serve", `unexpected argument "demo"`},
		{"serve --lisen :9095", "quern serve", `unknown flag --lisen; did you mean --listen?`},
		{"serve --listen", "quern serve", `flag needs an argument: -listen`},
		{"serve --block-size many", "quern serve", `invalid value "many" for flag -block-size`},
		{"serve --config /does/not/exist", "quern serve", `--config: open /does/not/exist`},
		{"schema grind", "quern schema", `unknown command "grind"`},
		{"migrate --keyspace rhq", "quern migrate", `--from-keyspace rhq: must differ from --keyspace`},
		{"migrate --from-hosts :x", "quern migrate", `--from-hosts :x: must be HOST or HOST:PORT`},
		{"migrate --rate -1", "quern migrate", `--rate -1: must be between 0 and`},
		{"reaggregate", "quern reaggregate", `--match: name the series`},
		{"reaggregate --match cpu", "quern reaggregate", `--start: must not be empty`},
		{"reaggregate --match cpu --start -6h --end= ", "quern reaggregate", `--end: must not be empty`},
		{"explain", "quern explain", `--match: name the series`},
		{"explain --match cpu --limit 0", "quern explain", `--limit 0: must be between 1 and 100`},
		{"explain --match cpu --time= ", "quern explain", `--time: must not be empty`},
		{"completion bash zsh", "quern completion", `name one shell: bash, zsh or fish`},
	} {
		t.Run(c.args, func(t *testing.T) { programtest.Refused(t, quern(), c.args, c.command, c.want) })
	}
	t.Run("a variable of the environment", func(t *testing.T) {
		t.Setenv("QUERN_BLOCK_SIZE", "many")
		_, err := programtest.Run(t, quern(), "serve")
		var usage program.UsageError
		require.ErrorAs(t, err, &usage)
		assert.ErrorContains(t, err, "QUERN_BLOCK_SIZE")
	})
}

// TestFailure: an error that is no mistake on the command line is no usage error.
func TestFailure(t *testing.T) {
	occupied := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(occupied, nil, 0o600))
	_, err := programtest.Run(t, quern(), "serve", "--listen", "127.0.0.1:0", "--data-dir", occupied)
	require.ErrorContains(t, err, occupied)
	assert.NotErrorAs(t, err, new(program.UsageError))
}

// TestRefusedByTheServer: a mistake that only the server can find is a usage error too. A selector
// keeps its commas.
func TestRefusedByTheServer(t *testing.T) {
	var asked []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.FormValue("match[]"))
		w.WriteHeader(http.StatusBadRequest)
		_, _ = fmt.Fprint(w, `{"status":"error","error":"selector: no"}`)
	}))
	defer server.Close()
	programtest.Refused(t, quern(), `reaggregate --match cpu{core="0",source="a"} --start -6h --url `+server.URL, "quern reaggregate", "selector: no")
	programtest.Refused(t, quern(), `explain --match cpu{core="0",source="a"} --url `+server.URL, "quern explain", "selector: no")
	assert.Equal(t, []string{`cpu{core="0",source="a"}`, `cpu{core="0",source="a"}`}, asked)
}

// complete asks the program as the scripts do. The library looks for the completed argument in
// os.Args.
func complete(t *testing.T, args ...string) []string {
	t.Helper()
	args = append(args, "--generate-bash-completion")
	before := os.Args
	os.Args = append([]string{"quern"}, args...)
	defer func() { os.Args = before }()
	out, err := programtest.Run(t, quern(), args...)
	require.NoError(t, err)
	return strings.Fields(out)
}

func TestCompletion(t *testing.T) {
	assert.Subset(t, complete(t), []string{"serve", "agent", "completion", "help"})
	assert.Subset(t, complete(t, "serve", "-"), []string{"--listen", "--data-dir", "--demo", "--config", "--help"})
	assert.Subset(t, complete(t, "agent", "-"), []string{"--url", "--interval"})
	assert.Equal(t, []string{"--listen", "--local-dc", "--late-grace", "--log-level", "--log-format"}, complete(t, "serve", "--l"))
	assert.Equal(t, []string{"--version"}, complete(t, "--ver"))
	assert.Equal(t, []string{"--match"}, complete(t, "explain", "--m"))
	assert.Subset(t, complete(t), []string{"reaggregate", "explain"})
	assert.Subset(t, complete(t, "schema"), []string{"apply"})
	assert.Equal(t, []string{"--replication", "--retention", "--rollups"}, slices.Sorted(slices.Values(complete(t, "schema", "apply", "--r"))))
	assert.Empty(t, complete(t, "serve"), "it takes no arguments")
	assert.Equal(t, []string{"bash", "zsh", "fish"}, complete(t, "completion"))
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := programtest.Run(t, quern(), "completion", shell)
		require.NoError(t, err)
		assert.Contains(t, script, "--generate-bash-completion")
	}
}

// TestCompletionSyntax runs each script through its shell, if that is installed.
func TestCompletionSyntax(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if err != nil {
				t.Skipf("no %s on this machine", shell)
			}
			script, err := programtest.Run(t, quern(), "completion", shell)
			require.NoError(t, err)
			cmd := exec.CommandContext(t.Context(), path, "-n", "/dev/stdin")
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
		})
	}
}

// TestCommandAndGroup: a command with subcommands may take an argument of its own.
func TestCommandAndGroup(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asked struct{ Text string }
		assert.NoError(t, json.NewDecoder(r.Body).Decode(&asked))
		assert.Equal(t, "Release 1.4", asked.Text)
		_, _ = fmt.Fprint(w, `{"accepted":[{"id":"id-1"}]}`)
	}))
	defer server.Close()
	_, err := programtest.Run(t, quern(), "annotate", "--url", server.URL, "Release 1.4")
	require.NoError(t, err)
	programtest.Refused(t, quern(), "dashboard lst", "quern dashboard", `unknown command "lst"`)
}
