package ingest

import (
	"math"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// grouper sorts a commit's samples into blocks. It reuses its buffers for the next commit.
type grouper struct {
	byKey  map[groupKey]int
	groups []cache.BlockSamples
	// held is the total capacity of the groups' buffers, in samples. most is the size of the
	// largest commit.
	held, most int

	// overwritten lists samples of the last commit that another sample of the same series and
	// millisecond replaces with another value. It holds at most maxOverwritten samples.
	overwritten []metric.Sample

	// ends and spare are scratch of inChunkOrder.
	ends  []int
	spare []metric.Sample
}

// maxHeld bounds the buffers, as a multiple of the largest commit. Otherwise each buffer could grow
// to the size of a whole commit, if each commit has another large group.
const maxHeld = 4

// maxOverwritten bounds the list of overwritten samples per commit. Counting stops there too.
const maxOverwritten = 1 << 10

type groupKey struct {
	sliceMs int64
	start   metric.ScheduleID
}

// keyOf returns the block and slice that a sample belongs to.
func keyOf(s *storage.Settings, sample metric.Sample) groupKey {
	slice := s.Ladder.SliceAt(metric.Raw, sample.TimeMs)
	return groupKey{slice.StartMs, s.Epochs.BlockAt(sample.Schedule, slice.StartMs).Start}
}

// group sorts the samples into groups by (slice, block), each in the order of a chunk. Of samples
// with the same schedule and time the last one stays. The result is valid until the next call.
func (g *grouper) group(ladder metric.Ladder, epochs blocks.Epochs, samples []metric.Sample) []cache.BlockSamples {
	if g.byKey == nil {
		g.byKey = make(map[groupKey]int)
	}
	clear(g.byKey)
	g.overwritten = nil
	g.most = max(g.most, len(samples))
	if g.held > maxHeld*g.most {
		clear(g.groups)
		g.held = 0
	}
	n := 0
	at := -1 // the group of the previous sample, which neighbours mostly share
	for _, s := range samples {
		if at < 0 || !g.groups[at].Slice.Contains(s.TimeMs) || !g.groups[at].Block.Contains(s.Schedule) {
			slice := ladder.SliceAt(metric.Raw, s.TimeMs)
			block := epochs.BlockAt(s.Schedule, slice.StartMs)
			k := groupKey{slice.StartMs, block.Start}
			i, ok := g.byKey[k]
			if !ok {
				i = n
				n++
				if i == len(g.groups) {
					g.groups = append(g.groups, cache.BlockSamples{})
				}
				g.byKey[k] = i
				g.groups[i].Slice, g.groups[i].Block = slice, block
				g.held -= cap(g.groups[i].Samples)
				g.groups[i].Samples = g.groups[i].Samples[:0]
			}
			at = i
		}
		g.groups[at].Samples = append(g.groups[at].Samples, s)
	}
	groups := g.groups[:n]
	for i := range groups {
		groups[i].Samples = g.inChunkOrder(groups[i].Block, groups[i].Samples)
		g.held += cap(groups[i].Samples)
	}
	return groups
}

// inChunkOrder sorts a group's samples by schedule, then time. Of samples with the same schedule
// and time the last one stays. Samples arrive report by report, so it first deals them out to their
// schedules, which keeps each schedule's order. Then it sorts only the schedules with samples out
// of order.
func (g *grouper) inChunkOrder(block blocks.Range, samples []metric.Sample) []metric.Sample {
	if ascends(samples) {
		return samples
	}
	g.ends = slices.Grow(g.ends[:0], block.Len())[:block.Len()]
	clear(g.ends)
	for i := range samples {
		g.ends[samples[i].Schedule-block.Start]++
	}
	sum := 0
	for i, n := range g.ends {
		g.ends[i] = sum
		sum += n
	}
	dealt := slices.Grow(g.spare[:0], len(samples))[:len(samples)]
	for i := range samples {
		at := &g.ends[samples[i].Schedule-block.Start]
		dealt[*at] = samples[i]
		*at++
	}
	g.spare = samples

	n, start := 0, 0
	for _, end := range g.ends {
		one := dealt[start:end]
		start = end
		if !ascends(one) {
			one = g.lastOfEach(one)
		}
		n += copy(dealt[n:], one)
	}
	return dealt[:n]
}

func ascends(samples []metric.Sample) bool {
	for i := 1; i < len(samples); i++ {
		if metric.CompareSamples(samples[i-1], samples[i]) >= 0 {
			return false
		}
	}
	return true
}

// lastOfEach sorts the samples of one schedule and keeps the last of those with the same time. It
// lists the dropped samples whose value differs from the one that stays, so a sample that was sent
// twice is not listed.
func (g *grouper) lastOfEach(samples []metric.Sample) []metric.Sample {
	slices.SortStableFunc(samples, metric.CompareSamples)
	out := samples[:0]
	for i, s := range samples {
		if i+1 == len(samples) || metric.CompareSamples(s, samples[i+1]) != 0 {
			out = append(out, s)
		} else if len(g.overwritten) < maxOverwritten && math.Float64bits(s.Value) != math.Float64bits(samples[i+1].Value) {
			g.overwritten = append(g.overwritten, s)
		}
	}
	return out
}
