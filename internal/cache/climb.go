package cache

import "github.com/quern/quern/internal/metric"

// RunAtMs returns the time at which the run of a slice begins, in Unix ms.
func (t Timing) RunAtMs(s metric.Slice) int64 { return s.EndMs + t.Delay.Milliseconds() }

// Climb predicts when marked work reaches the roll-up rows. slice is the slice of bucket b whose
// data is ground; its mark lies in the index of slice in. Climb returns the times of the runs, in
// Unix ms: first the run that grinds the row of level b+1, then those of the levels above. It
// follows the rule of Pass: each run puts its marks into the next bucket's slice around it, or else
// into that bucket's current slice.
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
