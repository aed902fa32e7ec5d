package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/program"
)

func TestMain(m *testing.M) {
	// What the tester's own shell has set is no part of any test.
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "QUERN_") {
			if err := os.Unsetenv(name); err != nil {
				panic(err)
			}
		}
	}
	os.Exit(m.Run())
}

func run(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	err = program.Run(t.Context(), ingest(), append([]string{"ingest"}, args...), &out, &errs)
	assert.Empty(t, errs.String(), "main prints what went wrong, and nothing else does")
	return out.String(), err
}

func TestHelp(t *testing.T) {
	for _, arg := range []string{"--help", "-h", "help"} {
		out, err := run(t, arg)
		require.NoError(t, err)
		for _, want := range []string{"Examples:", "   ingest --listen", "--max-series", "$QUERN_CASSANDRA_HOSTS", "SIGTERM", "completion"} {
			assert.Contains(t, out, want)
		}
	}
	out, err := run(t, "--version")
	require.NoError(t, err)
	assert.Regexp(t, `^ingest version \S+\n$`, out)
}

// TestUsage: each is exit code 2, with a word on what to do.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"serve":                    `there is no command "serve"`,
		"--store pebble":           "use `quern serve`",
		"--lisen :1":               `there is no flag --lisen; did you mean --listen?`,
		"--data-dir x":             `there is no flag --data-dir`,
		"--cassandra-hosts :":      `--cassandra-hosts :: must be HOST or HOST:PORT`,
		"--config /does/not/exist": `--config: open /does/not/exist`,
		"completion tcsh":          `name one shell: bash, zsh or fish`,
	} {
		t.Run(args, func(t *testing.T) {
			out, err := run(t, strings.Fields(args)...)
			var usage program.UsageError
			require.ErrorAs(t, err, &usage)
			assert.ErrorContains(t, err, want)
			assert.True(t, strings.HasPrefix(usage.Command, "ingest"), usage.Command)
			assert.Empty(t, out)
		})
	}
}
