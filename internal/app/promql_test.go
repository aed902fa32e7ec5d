package app

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/admission"
)

// TestQueryMemory: all queries have a quarter of the memory, and one that is alone has what its samples may take.
func TestQueryMemory(t *testing.T) {
	const gb = 1 << 30
	client := admission.NewClients(nil).Of("192.0.2.1:1")
	for _, c := range []struct {
		memory     int64
		samples    int
		all, alone int64
	}{
		{8 * gb, 50_000_000, 2 * gb, gb},
		{4 * gb, 50_000_000, gb, 800_000_000},
		{gb, 50_000_000, gb / 4, gb / 4},
	} {
		budget := queryMemory(c.memory, c.samples)
		require.Equal(t, c.all, budget.Share(admission.Client{}))
		require.Equal(t, c.alone, budget.Share(client))
	}
	require.Nil(t, queryMemory(0, 50_000_000))
}
