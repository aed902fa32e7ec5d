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
	out, err := programtest.Run(t, ingest(), "--help")
	require.NoError(t, err)
	for _, want := range []string{"Examples:", "   ingest --listen", "--max-series", "$QUERN_CASSANDRA_HOSTS", "SIGTERM", "completion"} {
		assert.Contains(t, out, want)
	}
	programtest.Refused(t, ingest(), "serve", "ingest", `unknown command "serve"`)
	programtest.Refused(t, ingest(), "--data-dir x", "ingest", `unknown flag --data-dir`)
}
