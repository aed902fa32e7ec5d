package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/program/programtest"
)

func TestMain(m *testing.M) { os.Exit(programtest.Main(m)) }

func TestHelp(t *testing.T) {
	out, err := programtest.Run(t, agent(), "--help")
	require.NoError(t, err)
	for _, want := range []string{"Examples:", "   quern-agent --config", "--spool-bytes", "$QUERN_DATA_DIR", "check", "completion"} {
		assert.Contains(t, out, want)
	}
	programtest.Refused(t, agent(), "serve", "quern-agent", `unknown command "serve"`)
	programtest.Refused(t, agent(), "--store pebble", "quern-agent", `unknown flag --store`)
}

func TestCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent.yaml")
	require.NoError(t, os.WriteFile(file, []byte("adaptors: [{type: tail, path: /var/log/a, format: json}]\n"), 0o600))
	out, err := programtest.Run(t, agent(), "check", file)
	require.NoError(t, err)
	require.Equal(t, "tail /var/log/a\n", out)
}
