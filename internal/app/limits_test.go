package app

import (
	"math"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDefaultMaxSamples: all queries together may hold a quarter of the memory in samples.
func TestDefaultMaxSamples(t *testing.T) {
	const gb = 1 << 30
	for _, c := range []struct {
		limit         int64
		queries, want int
	}{
		{0, 20, 50_000_000}, {64 * gb, 20, 50_000_000}, {8 * gb, 20, 6_710_886}, {gb, 20, 838_860}, {gb, 1, 16_777_216}, {1, 20, 1}, {gb, 0, 16_777_216},
	} {
		require.Equal(t, c.want, defaultMaxSamples(c.limit, c.queries), "%+v", c)
	}
}

// TestLimitMemory: GOMEMLIMIT wins over what the machine has, and a number of samples that is set stays.
func TestLimitMemory(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "set") // what the runtime has read at its start
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(1 << 30))
	s := testServer(t)
	s.cfg.Query.MaxSamples, s.cfg.Query.Concurrency = 0, 20
	require.NoError(t, s.limitMemory())
	require.EqualValues(t, 1<<30, s.memoryLimit)
	require.Equal(t, 838_860, s.cfg.Query.MaxSamples)
	debug.SetMemoryLimit(math.MaxInt64)
	s = testServer(t)
	s.cfg.Query.MaxSamples = 7
	require.NoError(t, s.limitMemory())
	require.Zero(t, s.memoryLimit, "off")
	require.Equal(t, 7, s.cfg.Query.MaxSamples)
	machine, err := machineMemory()
	require.NoError(t, err)
	require.Positive(t, machine)
}
