package blocks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks/columns"
	"github.com/quern/quern/internal/metric"
)

// TestScratch: what decoding takes is known before, also where each series has times of its own and few samples are wanted; a
// reader that has grown large is not kept.
func TestScratch(t *testing.T) {
	const n, series = 20_000, 16
	var all []columns.Series
	var ids []metric.ScheduleID
	for id := range metric.ScheduleID(series) {
		s := columns.Series{Schedule: id}
		for i := range int64(n) {
			s.Times, s.Values = append(s.Times, 100*i+int64(id)+i%int64(id+2)), append(s.Values, float64(i*i%1009))
		}
		all, ids = append(all, s), append(ids, id)
	}
	chunk := new(columns.Encoder).Append(nil, all)
	var set SampleSet
	set.Reset(Range{Start: 0, End: series})
	set.Only(ids, 5000, 5200)
	in := set.Open(chunk)
	scratch, r := in.Scratch(), in.reader
	needs := in.Needs()
	require.Less(t, needs-scratch, 100_000, "few samples are wanted")
	require.NoError(t, in.Add())
	require.NotZero(t, set.Len())
	require.GreaterOrEqual(t, scratch+scratch/4, r.Bytes()+8*cap(r.values))
	require.Greater(t, r.Bytes(), 8*n*series, "each series has its own times")
	require.Greater(t, r.Bytes(), maxKept)
	for range 100 {
		require.NotSame(t, r, columnReaders.Get())
	}
}

// TestOneLongSeries: of 128 series one has thousands of times as many samples as the others. Those are read without decoding its column,
// and what is longer than a column may be stays in its own chunks.
func TestOneLongSeries(t *testing.T) {
	group := Range{Start: 0, End: 128}
	var set SampleSet
	var packer Packer
	for _, n := range []int{maxColumn, maxColumn + 1} {
		var all []metric.Sample
		for id := range group.End {
			count, phaseMs := 10, int64(0)
			if id == 77 {
				count, phaseMs = n, 7
			}
			for i := range count {
				all = append(all, metric.Sample{Schedule: id, TimeMs: int64(i)*1000 + phaseMs, Value: float64(i * i % 1009)})
			}
		}
		set.Reset(group)
		require.NoError(t, set.Add(AppendSamples(nil, all)))
		chunk, err := packer.Pack(&set, group, 1<<20)
		require.NoError(t, err)
		if n > maxColumn {
			require.Nil(t, chunk)
			continue
		}
		set = SampleSet{}
		set.Reset(group)
		set.Only([]metric.ScheduleID{76, 78}, 0, 1<<40)
		in := set.Open(chunk)
		require.Less(t, in.Needs(), 20_000)
		require.NoError(t, in.Add())
		require.Equal(t, 20, set.Len())
		set.Reset(group)
		require.NoError(t, set.Add(chunk))
		var got []metric.Sample
		for _, samples := range set.Series() {
			got = append(got, samples...)
		}
		require.Equal(t, all, got)
	}
}
