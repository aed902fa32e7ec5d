package promquery

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRecycledPointsFit: a series that needs few points is not given the room of one that had many, since all of it counts as
// held.
func TestRecycledPointsFit(t *testing.T) {
	for range 100 { // a pool may lose some
		recycle([]points{make(points, 10, maxRecycled), make(points, 3, 40)})
	}
	for range 100 {
		require.Less(t, cap(recycled(20)), 4*20)
		require.Less(t, cap(recycled(5000)), 4*5000)
	}
	require.GreaterOrEqual(t, class(maxRecycled), class(1))
	require.Less(t, class(maxRecycled), len(spare))
	require.NotPanics(t, func() { recycled(1 << 62) })
}

// TestLargePointsAreNotKept: the pool has no slices that one query in a thousand needs.
func TestLargePointsAreNotKept(t *testing.T) {
	recycle([]points{nil, make(points, 0, maxRecycled+1)})
	require.LessOrEqual(t, cap(recycled(maxRecycled+1)), maxRecycled)
}
