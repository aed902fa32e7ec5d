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
	out, err := programtest.Run(t, aggregator(), "--help")
	require.NoError(t, err)
	for _, want := range []string{"Examples:", "   aggregator --listen", "--retention", "$QUERN_CASSANDRA_HOSTS", "SIGTERM", "completion"} {
		assert.Contains(t, out, want)
	}
	programtest.Refused(t, aggregator(), "serve", "aggregator", `unknown command "serve"`)
	programtest.Refused(t, aggregator(), "--data-dir x", "aggregator", `unknown flag --data-dir`)
}
