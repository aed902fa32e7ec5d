package blocks

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/columns"
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
