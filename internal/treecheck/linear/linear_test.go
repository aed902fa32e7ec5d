package linear

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

var sink int

// bytesOf makes n bytes by repeating the letters a to h.
func bytesOf(n int) []byte { return slices.Repeat([]byte("abcdefgh"), n/8) }

func TestLinear(t *testing.T) {
	cost := Check(t, 32<<10, bytesOf, func(b []byte) {
		for _, c := range b {
			sink += int(c)
		}
		sink += len(slices.Clone(b))
	})
	require.GreaterOrEqual(t, cost.Bytes, int64(256<<10))
}

// Check finds code that is quadratic in time.
func TestQuadraticTime(t *testing.T) {
	_, why := check(400, true, bytesOf, func(b []byte) {
		for i := range b {
			for _, c := range b[:i] {
				sink += int(c)
			}
		}
	})
	if cpu() > 0 {
		require.Contains(t, why, "takes")
	}
}

// Check finds code that is quadratic in memory.
func TestQuadraticMemory(t *testing.T) {
	_, why := check(4000, false, bytesOf, func(b []byte) {
		for range len(b) / 100 {
			sink += len(slices.Clone(b))
		}
	})
	require.NotEmpty(t, why)
}
