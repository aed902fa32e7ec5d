package promquery

import (
	"math"
	"math/bits"
	"sync"

	"github.com/quern/quern/internal/treecheck/invariants"
)

// Points of a group that is dropped are used again, by this query or another: they are most of what a query allocates.

// spare has slices of points, by the class of their room. A series is given room of the class that it is expected to need, since
// all of it counts as held.
var spare [(bits.UintSize+1)/2 + 1]sync.Pool

// class is the same for numbers that differ by less than four times.
func class(n int) int { return bits.Len(uint(n)) / 2 }

// maxRecycled bounds the points that are kept of a series, for another.
const maxRecycled = 1 << 16

// recycled returns an empty slice, which may have room for about n points.
func recycled(n int) points {
	if p, ok := spare[class(min(n, maxRecycled))].Get().(*points); ok {
		return (*p)[:0]
	}
	return nil
}

// recycle lets others use these slices. Nobody may hold any of them.
func recycle(all []points) {
	for _, p := range all {
		if cap(p) == 0 || cap(p) > maxRecycled {
			continue
		}
		if invariants.Enabled { // whoever holds it anyway finds this
			for i := range p {
				p[i].F = math.Inf(-1)
			}
		}
		spare[class(cap(p))].Put(&p)
	}
}
