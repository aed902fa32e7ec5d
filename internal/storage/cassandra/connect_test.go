package cassandra

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// A node that has just started knows few of the others, or not their data centres. No number of copies follows from that.
func TestDefaultCopiesOfAClusterThatStarts(t *testing.T) {
	for _, c := range []struct {
		name  string
		hosts string
		nodes int
		byDC  map[string]int
		want  string // the copies, or a part of the refusal
	}{
		{"one node", "a", 1, map[string]int{"dc1": 1}, "dc1=1"},
		{"three nodes", "a", 3, map[string]int{"dc1": 3}, "dc1=3"},
		{"five nodes", "a", 5, map[string]int{"dc1": 5}, "dc1=3"},
		{"two data centres", "a,b", 3, map[string]int{"dc1": 2, "dc2": 1}, "dc1=2"},
		{"peers unknown", "a,b,c", 2, map[string]int{"dc1": 2}, "a node knows 2 of 3"},
		{"a peer without a data centre", "a", 3, map[string]int{"dc1": 2}, "--replication dc1=3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			found := cluster{localDC: "dc1", nodes: c.nodes, byDC: c.byDC}
			err := checkWhole(&Options{Hosts: strings.Split(c.hosts, ",")}, &found)
			if !strings.HasPrefix(c.want, "dc1=") {
				require.ErrorIs(t, err, storage.ErrSettings)
				require.ErrorContains(t, err, c.want)
				return
			}
			require.NoError(t, err)
			copies, err := copiesByDC("", &found)
			require.NoError(t, err)
			require.Equal(t, c.want, formatCopies(copies, "%s=%s"))
		})
	}
}
