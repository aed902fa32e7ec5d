package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/program/programtest"
)

func TestMain(m *testing.M) { os.Exit(programtest.Main(m)) }

func TestHelp(t *testing.T) {
	for _, arg := range []string{"--help", "-h", "help"} {
		out, err := programtest.Run(t, aggregator(), arg)
		require.NoError(t, err)
		for _, want := range []string{"Examples:", "   aggregator --listen", "--retention", "$QUERN_CASSANDRA_HOSTS", "SIGTERM", "completion"} {
			assert.Contains(t, out, want)
		}
	}
	out, err := programtest.Run(t, aggregator(), "--version")
	require.NoError(t, err)
	assert.Regexp(t, `^aggregator version \S+\n$`, out)
}

// TestUsage: each case is exit code 2, with a hint on what to do.
func TestUsage(t *testing.T) {
	for _, c := range []struct{ args, command, want string }{
		{"serve", "aggregator", `unknown command "serve"`},
		{"--store pebble", "aggregator", "use `quern serve`"},
		{"--lisen :1", "aggregator", `unknown flag --lisen; did you mean --listen?`},
		{"--data-dir x", "aggregator", `unknown flag --data-dir`},
		{"--cassandra-hosts :", "aggregator", `--cassandra-hosts :: must be HOST or HOST:PORT`},
		{"--config /does/not/exist", "aggregator", `--config: open /does/not/exist`},
		{"completion tcsh", "aggregator completion", `name one shell: bash, zsh or fish`},
	} {
		t.Run(c.args, func(t *testing.T) { programtest.Refused(t, aggregator(), c.args, c.command, c.want) })
	}
}
