package cassandra

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func sizes(stmts []statement) (sum int) {
	for i := range stmts {
		sum += sizeOf(&stmts[i])
	}
	return sum
}

// For any rows: none is left out or moved, and no batch above the bound could be split.
func TestCutAtRandom(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		var stmts []statement
		for i := range rng.IntN(100) {
			n := rng.IntN(300)
			if rng.IntN(20) == 0 {
				n *= 50
			}
			stmts = append(stmts, stmt("INSERT", i, make([]byte, n), "text", map[string]string{"name": "value"}))
		}
		var joined []statement
		for i, b := range cut(stmts) {
			require.NotEmpty(t, b)
			if len(b) > 1 {
				require.LessOrEqual(t, sizes(b), maxBatchBytes)
			}
			if i > 0 {
				require.Greater(t, sizes(joined)+sizes(b[:1]), maxBatchBytes, "it would have fitted")
			}
			joined = append(joined, b...)
		}
		require.Equal(t, stmts, joined)
	}
}

func TestSizeOf(t *testing.T) {
	size := func(args ...any) int {
		st := stmt("INSERT", args...)
		return sizeOf(&st)
	}
	cell := size(1)
	require.Positive(t, cell, "a number, its timestamp and its TTL")
	require.Equal(t, 3*cell, size(1, int64(2), 3.0))
	require.Equal(t, cell+100, size(make([]byte, 100)))
	require.Equal(t, cell+5, size("héy."))
	require.GreaterOrEqual(t, size(map[string]string{"name": "value", "a": "b"}), cell+len("namevalueab"))
}
