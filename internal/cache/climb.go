package cache

import "github.com/quern/quern/internal/metric"

// RunAtMs is when the run of a slice of a bucket is begun.
func (t Timing) RunAtMs(s metric.Slice) int64 { return s.EndMs + t.Delay.Milliseconds() }

// Climb says when a row of level b+1, and by it those of the levels above it, is ground again for work of bucket b whose
// mark lies in the index of slice in: the times of the runs, finest level first. slice is the one whose data is
// ground. It is what Pass does, foretold: the marks go from a run into the next bucket's slice around it, or else into that
// bucket's current one.
func (c *Cache) Climb(b metric.Bucket, slice, in metric.Slice) []int64 {
	var out []int64
	for ; b < c.ladder.Top(); b++ {
		at := c.timing.RunAtMs(in)
		out = append(out, at)
		if b+1 == c.ladder.Top() {
			break
		}
		slice = c.ladder.SliceAt(b+1, slice.StartMs)
		if slice.Contains(in.StartMs) {
			in = slice
		} else {
			in = c.ladder.SliceAt(b+1, at)
		}
	}
	return out
}
