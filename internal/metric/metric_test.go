package metric

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestCompareSamples(t *testing.T) {
	sorted := []Sample{{1, -5, 0}, {1, 3, 0}, {2, -9, 0}, {2, 0, 0}, {10, 0, 0}}
	for i, a := range sorted {
		for j, b := range sorted {
			got := CompareSamples(a, b)
			assert.Equal(t, i < j, got < 0, "%v and %v", a, b)
			assert.Equal(t, i == j, got == 0, "%v and %v", a, b)
		}
	}
	// The value does not matter: of two samples with the same time, the order of adding decides.
	same := []Sample{{1, 1, 9}, {1, 1, 2}}
	slices.SortStableFunc(same, CompareSamples)
	assert.Equal(t, []Sample{{1, 1, 9}, {1, 1, 2}}, same)
}

func TestAvg(t *testing.T) {
	r := Rollup{Count: 7, Sum: 117}
	assert.InDelta(t, 16.714285714, r.Avg(), 1e-9)
	assert.True(t, math.IsNaN((&Rollup{}).Avg()))
}

// A tombstone is a NaN with bits that nothing else produces.
func TestTombstone(t *testing.T) {
	assert.True(t, math.IsNaN(Tombstone()))
	assert.True(t, IsTombstone(Tombstone()))
	for _, v := range []float64{0, 1, math.Inf(1), math.NaN(), math.Float64frombits(0x7ff8000000000000), math.Float64frombits(0x7ff0000000000002)} {
		assert.False(t, IsTombstone(v), "%x", math.Float64bits(v))
	}
}
