package integration

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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

func TestSchemaWithoutCassandra(t *testing.T) {
	t.Parallel()
	hosts := nobody(t)
	p := start(t, "schema", "apply", "--cassandra-hosts", hosts)
	p.Wrote(`msg="no Cassandra node of ` + hosts + ` answers; trying again in 2s"`)
	p.Signal(syscall.SIGTERM)
	assert.Equal(t, 1, p.ExitCode())
	assert.Contains(t, p.Stderr.String(), "quern: stopped before the schema was complete: run the command again")
}
