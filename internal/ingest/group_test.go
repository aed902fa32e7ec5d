package ingest

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
)

// TestGroup compares the groups of random commits, made one after the other in the same buffers,
// with a plain implementation.
func TestGroup(t *testing.T) {
	ladder := metric.DefaultLadder()
	epochs := blocks.Epochs{{FromMs: 0, BlockSize: 8}, {FromMs: 2 * time.Hour.Milliseconds(), BlockSize: 16}}
	r := rand.New(rand.NewPCG(1, 2))
	var g grouper
	for range 200 {
		samples := make([]metric.Sample, 1+r.IntN(300))
		for i := range samples {
			samples[i] = metric.Sample{
				Schedule: metric.ScheduleID(r.IntN(40)),
				TimeMs:   r.Int64N(12) * 20 * time.Minute.Milliseconds(),
				Value:    float64(i),
			}
		}
		want := plainGroups(ladder, epochs, samples)
		got := g.group(ladder, epochs, samples)
		require.Len(t, got, len(want))
		for _, group := range got {
			k := groupKey{group.Slice.StartMs, group.Block.Start}
			require.Equal(t, epochs.SizeAt(group.Slice.StartMs), group.Block.Len())
			require.Equal(t, want[k], group.Samples, "group %+v", k)
		}
	}
}

// TestGroupBuffersAreBounded is invariant 7: the buffers do not grow with the number of commits,
// however different these are.
func TestGroupBuffersAreBounded(t *testing.T) {
	const commits, large = 200, 1000
	epochs := blocks.Epochs{{BlockSize: 1}}
	var g grouper
	for i := range commits {
		var samples []metric.Sample
		for id := range i {
			samples = append(samples, metric.Sample{Schedule: metric.ScheduleID(id)})
		}
		for ms := range large {
			samples = append(samples, metric.Sample{Schedule: metric.ScheduleID(i), TimeMs: int64(ms)})
		}
		require.Len(t, g.group(metric.DefaultLadder(), epochs, samples), i+1)
		held := cap(g.spare)
		for _, group := range g.groups {
			held += cap(group.Samples)
		}
		require.LessOrEqual(t, held, 10*(commits+large))
	}
}

// plainGroups sorts samples into groups. Of samples with the same schedule and time the last one
// stays.
func plainGroups(ladder metric.Ladder, epochs blocks.Epochs, samples []metric.Sample) map[groupKey][]metric.Sample {
	last := map[metric.Sample]metric.Sample{}
	for _, s := range samples {
		last[metric.Sample{Schedule: s.Schedule, TimeMs: s.TimeMs}] = s
	}
	out := map[groupKey][]metric.Sample{}
	for _, s := range last {
		slice := ladder.SliceAt(metric.Raw, s.TimeMs)
		k := groupKey{slice.StartMs, epochs.BlockAt(s.Schedule, slice.StartMs).Start}
		out[k] = append(out[k], s)
	}
	for _, group := range out {
		slices.SortFunc(group, metric.CompareSamples)
	}
	return out
}

var grouped []cache.BlockSamples

func BenchmarkGroup(b *testing.B) {
	const schedules, rounds = 10_000, 13
	ladder, epochs := metric.DefaultLadder(), blocks.Epochs{{FromMs: 0, BlockSize: 128}}
	for _, order := range []string{"one report each", "report after report", "late and twice"} {
		b.Run(order, func(b *testing.B) {
			var samples []metric.Sample
			for round := range rounds {
				for id := range schedules {
					samples = append(samples, metric.Sample{Schedule: metric.ScheduleID(id), TimeMs: int64(round) * 10_000})
				}
			}
			switch order {
			case "one report each":
				samples = samples[:schedules]
			case "late and twice":
				r := rand.New(rand.NewPCG(1, 2))
				for range len(samples) / 100 {
					samples[r.IntN(len(samples))] = samples[r.IntN(len(samples))]
				}
			}
			var g grouper
			for b.Loop() {
				grouped = g.group(ladder, epochs, samples)
			}
			b.ReportMetric(float64(len(samples))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Msamples/s")
		})
	}
}
