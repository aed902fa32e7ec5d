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

func TestCut(t *testing.T) {
	blob := func(n int) statement { return stmt("INSERT", make([]byte, n)) }
	per := sizes([]statement{blob(0)})
	for _, c := range []struct {
		name string
		rows []int // bytes
		want []int // rows of each batch
	}{
		{"nothing", nil, nil},
		{"one", []int{10}, []int{1}},
		{"exactly full", []int{maxBatchBytes/2 - per, maxBatchBytes/2 - per}, []int{2}},
		{"one byte more", []int{maxBatchBytes/2 - per, maxBatchBytes/2 - per + 1}, []int{1, 1}},
		{"one that is too big", []int{10 * maxBatchBytes}, []int{1}},
		{"too big, first", []int{10 * maxBatchBytes, 1, 1}, []int{1, 2}},
		{"too big, between others", []int{1, 1, 10 * maxBatchBytes, 1, 1}, []int{2, 1, 2}},
		{"all too big", []int{2 * maxBatchBytes, 2 * maxBatchBytes, 2 * maxBatchBytes}, []int{1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stmts []statement
			for _, n := range c.rows {
				stmts = append(stmts, blob(n))
			}
			var got []int
			for _, b := range cut(stmts) {
				got = append(got, len(b))
			}
			require.Equal(t, c.want, got)
		})
	}
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
