package blocks

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/treecheck/linear"
)

type seriesKey struct {
	schedule metric.ScheduleID
	timeMs   int64
}

// randomChunk returns the samples of one flush: sorted, unique, with schedules in and around the
// block.
func randomChunk(r *rand.Rand, ids Range, lateness int) []metric.Sample {
	seen := map[seriesKey]bool{}
	var out []metric.Sample
	for range 1 + r.IntN(200) {
		s := metric.Sample{
			Schedule: max(0, ids.Start-3+metric.ScheduleID(r.IntN(ids.Len()+6))),
			TimeMs:   int64(r.IntN(lateness)),
			Value:    float64(r.IntN(1000)),
		}
		if k := (seriesKey{s.Schedule, s.TimeMs}); !seen[k] {
			seen[k] = true
			out = append(out, s)
		}
	}
	slices.SortFunc(out, metric.CompareSamples)
	return out
}

// A sender may repeat itself without end. The set's memory grows with what differs, and the last
// one added wins wherever duplicates were dropped in between.
func TestSampleSetMemoryOfDuplicates(t *testing.T) {
	const distinct = 20_000
	samples := make([]metric.Sample, distinct)
	held := func(repetitions int) (bytes uint64) {
		before := linear.Heap()
		var set SampleSet
		set.Reset(Range{0, 128})
		var chunk []byte
		for n := range repetitions {
			for i := range samples {
				samples[i] = metric.Sample{Schedule: 4, TimeMs: int64(i), Value: float64(n)}
			}
			// Some come in parts, and out of order.
			cut := n % 3 * 5_000
			for _, part := range [][]metric.Sample{samples[cut:], samples[:cut]} {
				chunk = AppendSamples(chunk[:0], part)
				if len(part) > 0 {
					require.NoError(t, set.Add(chunk))
				}
			}
		}
		require.Equal(t, repetitions*distinct, set.Added())
		require.LessOrEqual(t, set.Distinct(), distinct)
		n := 0
		for id, got := range set.Series() {
			require.Equal(t, metric.ScheduleID(4), id)
			for i, s := range got {
				if s != (metric.Sample{Schedule: 4, TimeMs: int64(i), Value: float64(repetitions - 1)}) {
					t.Fatalf("sample %d is %v", i, s)
				}
				n++
			}
		}
		require.Equal(t, distinct, n)
		bytes = linear.Heap() - before
		runtime.KeepAlive(&set)
		runtime.KeepAlive(chunk)
		return bytes
	}
	few, many := held(5), held(100)
	t.Logf("5 times %d bytes, 100 times %d bytes", few, many)
	assert.Less(t, many, 2*few)
}

// TestSampleSetMatchesMap compares the set with a map in which a later chunk overwrites an earlier one, after few chunks
// and after so many that duplicates are dropped: of data of all kinds, in order, late, twice, damaged.
func TestSampleSetMatchesMap(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	var set SampleSet
	for round := range 60 { // used again, it is as good as new
		ids := Range{Start: metric.ScheduleID(r.IntN(500))}
		ids.End = ids.Start + metric.ScheduleID(1+r.IntN(130))
		set.Reset(ids)
		most := r.IntN(1000)
		if round < 2 {
			ids, most = Range{Start: 256, End: 384}, 4*minCompact
			set.Reset(ids)
		}
		want := map[seriesKey]float64{}
		added := 0
		for added < most {
			chunk := randomChunk(r, ids, 200)
			for range 1 + r.IntN(20) {
				for i := range chunk {
					chunk[i].Value = float64(r.IntN(1000))
				}
				data := AppendSamples(nil, chunk)
				require.NoError(t, set.Add(data))
				for _, s := range chunk {
					if ids.Contains(s.Schedule) {
						want[seriesKey{s.Schedule, s.TimeMs}] = s.Value
						added++
					}
				}
				data[len(data)-1]++
				require.ErrorIs(t, set.Add(data), ErrCorrupt)
			}
			require.LessOrEqual(t, set.Distinct(), len(want))
			require.Less(t, set.Len(), max(minCompact, 2*len(want)))
		}
		require.Equal(t, round < 2, set.Distinct() > 0)
		require.Equal(t, added, set.Added())
		for range 2 { // reading does not change the set
			got := map[seriesKey]float64{}
			last := metric.ScheduleID(-1)
			for id, samples := range set.Series() {
				require.Greater(t, id, last)
				last = id
				for i, s := range samples {
					require.Equal(t, id, s.Schedule)
					require.True(t, i == 0 || samples[i-1].TimeMs < s.TimeMs)
					got[seriesKey{id, s.TimeMs}] = s.Value
				}
			}
			require.Equal(t, want, got)
		}
	}
}

func TestSetsAreUnchangedByDamage(t *testing.T) {
	samples := []metric.Sample{{Schedule: 4, TimeMs: 7, Value: 1}}
	rows := []metric.RollupRow{{Schedule: 4, TimeMs: 7, Rollup: metric.Rollup{Count: 1}}}
	var ss SampleSet
	var rs RollupSet
	ss.Reset(Range{0, 10})
	rs.Reset(Range{0, 10})
	require.NoError(t, ss.Add(AppendSamples(nil, samples)))
	require.NoError(t, rs.Add(AppendRollups(nil, rows)))

	// These chunks decode up to their last byte. Nothing of them may stay in the sets.
	many := make([]metric.Sample, 40)
	more := make([]metric.RollupRow, 40)
	for i := range many {
		many[i] = metric.Sample{Schedule: 5, TimeMs: int64(i)}
		more[i] = metric.RollupRow{Schedule: 5, TimeMs: int64(i)}
	}
	bad := append(AppendSamples(nil, many), 0)
	sealChunk(bad, formatSamples)
	require.ErrorIs(t, ss.Add(bad), ErrCorrupt)
	bad = append(AppendRollups(nil, more), 0)
	sealChunk(bad, formatRollups)
	require.ErrorIs(t, rs.Add(bad), ErrCorrupt)

	n := 0
	for id, got := range ss.Series() {
		n++
		assert.Equal(t, metric.ScheduleID(4), id)
		assert.Equal(t, samples, got)
	}
	for id, got := range rs.Series() {
		n++
		assert.Equal(t, metric.ScheduleID(4), id)
		assert.Equal(t, rows, got)
	}
	assert.Equal(t, 2, n)
}

func TestRollupSetMergesChunksAndRows(t *testing.T) {
	row := func(id metric.ScheduleID, timeMs int64, count uint64) metric.RollupRow {
		return metric.RollupRow{Schedule: id, TimeMs: timeMs, Rollup: metric.Rollup{Count: count, Sketch: []byte{byte(count)}}}
	}
	var set RollupSet
	for range 2 { // a reused set behaves like a new one
		set.Reset(Range{10, 20})
		require.NoError(t, set.Add(AppendRollups(nil, []metric.RollupRow{row(9, 0, 1), row(10, 100, 2), row(19, 100, 3), row(20, 0, 4)})))
		set.AddRows([]metric.RollupRow{row(19, 0, 5), row(9, 0, 6), row(10, 100, 7)})
		require.NoError(t, set.Add(AppendRollups(nil, []metric.RollupRow{row(10, 200, 8), row(19, 0, 9)})))
		assert.Equal(t, 6, set.Len())

		got := map[metric.ScheduleID][]metric.RollupRow{}
		for id, rows := range set.Series() {
			got[id] = slices.Clone(rows)
		}
		assert.Equal(t, map[metric.ScheduleID][]metric.RollupRow{
			10: {row(10, 100, 7), row(10, 200, 8)},
			19: {row(19, 0, 9), row(19, 100, 3)},
		}, got)
	}
	set.Reset(Range{10, 20})
	for range set.Series() {
		t.Fatal("an empty set has no series")
	}
}

func TestSeriesStopsWhenAsked(t *testing.T) {
	var set SampleSet
	set.Reset(Range{1280, 1408})
	require.NoError(t, set.Add(AppendSamples(nil, shapes()[0].samples)))
	n := 0
	for range set.Series() {
		if n++; n == 3 {
			break
		}
	}
	assert.Equal(t, 3, n)
}

func TestSetsDoNotAllocateInSteadyState(t *testing.T) {
	ids := Range{128, 600}
	r := rand.New(rand.NewPCG(11, 12))
	var chunks [][]byte
	for range 10 {
		chunks = append(chunks, AppendSamples(nil, randomChunk(r, ids, 100)))
	}
	rows := AppendRollups(nil, exampleRollups())
	var ss SampleSet
	var rs RollupSet
	n := 0
	run := func() {
		ss.Reset(ids)
		rs.Reset(ids)
		for _, c := range chunks {
			_ = ss.Add(c)
		}
		_ = rs.Add(rows)
		for _, samples := range ss.Series() {
			n += len(samples)
		}
		for _, rows := range rs.Series() {
			n += len(rows)
		}
	}
	run()
	require.Positive(t, n)
	assert.Zero(t, testing.AllocsPerRun(10, run))
}
