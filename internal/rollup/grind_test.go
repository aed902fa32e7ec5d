package rollup

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
)

const schedule = 7

func describe(r metric.Rollup, ok bool) string {
	if !ok {
		return "nothing\n"
	}
	return fmt.Sprintf("count=%d sum=%v min=%v max=%v first=%v last=%v increase=%v avg=%v\n",
		r.Count, r.Sum, r.Min, r.Max, r.First, r.Last, r.Increase, r.Avg())
}

func TestGrind(t *testing.T) {
	datadriven.RunTest(t, "testdata/grind", func(t *testing.T, d *datadriven.TestData) string {
		var g Grinder
		var rows []metric.RollupRow
		timeMs := int64(0)
		for line := range strings.Lines(d.Input + "\n") {
			var samples []metric.Sample
			for _, f := range strings.Fields(line) {
				v, err := strconv.ParseFloat(f, 64)
				require.NoError(t, err)
				samples = append(samples, metric.Sample{Schedule: schedule, TimeMs: timeMs, Value: v})
				timeMs += 1000
			}
			r, ok := g.Samples(samples)
			if d.Cmd == "samples" {
				return describe(r, ok)
			}
			if ok {
				rows = append(rows, metric.RollupRow{Schedule: schedule, TimeMs: timeMs, Rollup: r})
			}
		}
		r, ok, err := g.Rollups(rows)
		require.NoError(t, err)
		return describe(r, ok)
	})
}

// naive computes a roll-up without any method of the code under test: by sorting, by looking at
// every pair, and over whole numbers, whose sums are exact.
func naive(samples []metric.Sample) (r metric.Rollup, ok bool) {
	var values []float64
	var times []int64
	for _, s := range samples {
		if !math.IsNaN(s.Value) && !math.IsInf(s.Value, 0) {
			values, times = append(values, s.Value), append(times, s.TimeMs)
		} else if !slices.Contains(markers, math.Float64bits(s.Value)) {
			r.NonFinite = true
		}
	}
	if len(values) == 0 {
		return r, false
	}
	sum := int64(0)
	for _, v := range values {
		sum += int64(v)
	}
	sorted := slices.Sorted(slices.Values(values))
	r = metric.Rollup{
		Count: uint64(len(values)), Sum: float64(sum),
		Min: sorted[0], Max: sorted[len(sorted)-1],
		First: values[0], Last: values[len(values)-1],
		FirstMs: times[0], LastMs: times[len(times)-1], NonFinite: r.NonFinite,
	}
	for i := 1; i < len(values); i++ {
		if values[i] >= values[i-1] {
			r.Increase += values[i] - values[i-1]
		} else {
			r.Increase += values[i]
		}
	}
	var s sketch.Sketch
	for _, v := range sorted {
		s.Add(v)
	}
	r.Sketch = s.AppendEncoded(nil)
	return r, true
}

// markers are the bits of NaNs that measure nothing: Prometheus' stale marker, and a tombstone.
var markers = []uint64{0x7ff0000000000002, 0x7ff8000051554552}

func randomSamples(r *rand.Rand) []metric.Sample {
	samples, onlyMarkers := make([]metric.Sample, r.IntN(100)), r.IntN(50) == 0
	timeMs := int64(0)
	for i := range samples {
		timeMs += 1 + r.Int64N(3_600_000)
		v := float64(r.IntN(2000) - 500)
		switch r.IntN(20) {
		case 0:
			v = math.NaN()
		case 1:
			v = math.Inf(1 - 2*r.IntN(2))
		case 2:
			v = math.Float64frombits(markers[r.IntN(2)])
		}
		if onlyMarkers {
			v = math.Float64frombits(markers[i%2])
		}
		samples[i] = metric.Sample{Schedule: schedule, TimeMs: timeMs, Value: v}
	}
	return samples
}

// TestCascadeMatchesNaive: ground in one go, or level by level through any ladder, a slice's
// roll-up equals the naive computation over all its samples.
func TestCascadeMatchesNaive(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var g Grinder
	for range 2000 {
		g.Reset()
		samples := randomSamples(r)
		want, wantOK := naive(samples)
		got, ok := g.Samples(samples)
		require.Equal(t, wantOK, ok)
		require.Equal(t, want, got)

		width := int64(3_600_000) * (1 + r.Int64N(5))
		var rows []metric.RollupRow
		for rest := samples; len(rest) > 0; {
			n := 1
			for n < len(rest) && rest[n].TimeMs/width == rest[0].TimeMs/width {
				n++
			}
			if fine, ok := g.Samples(rest[:n]); ok || fine.NonFinite {
				rows = append(rows, metric.RollupRow{Schedule: schedule, TimeMs: rest[0].TimeMs / width * width, Rollup: fine})
			}
			rest = rest[n:]
		}
		for range 3 {
			width *= 2 + r.Int64N(4)
			var coarse []metric.RollupRow
			for rest := rows; len(rest) > 0; {
				n := 1
				for n < len(rest) && rest[n].TimeMs/width == rest[0].TimeMs/width {
					n++
				}
				merged, ok, err := g.Rollups(rest[:n])
				require.NoError(t, err)
				require.Equal(t, merged.Count > 0, ok)
				coarse = append(coarse, metric.RollupRow{Schedule: schedule, TimeMs: rest[0].TimeMs / width * width, Rollup: merged})
				rest = rest[n:]
			}
			rows = coarse
		}
		got, ok, err := g.Rollups(rows)
		require.NoError(t, err)
		require.Equal(t, wantOK, ok)
		require.Equal(t, want, got)
	}
}

// TestSketchesStayUntilReset: roll-ups of a whole block are held at once. A later one must not
// overwrite the sketch of an earlier one, however the arena grows.
func TestSketchesStayUntilReset(t *testing.T) {
	var g Grinder
	r := rand.New(rand.NewPCG(3, 4))
	for range 3 {
		g.Reset()
		var got, want []metric.Rollup
		for range 500 {
			samples := randomSamples(r)
			if ground, ok := g.Samples(samples); ok {
				got = append(got, ground)
				w, _ := naive(samples)
				want = append(want, w)
			}
		}
		require.Equal(t, want, got)
		for _, g := range got {
			require.Equal(t, len(g.Sketch), cap(g.Sketch))
		}
	}
}

// TestPartialRows: a roll-up of rows is partial if one of them is, whatever its position.
func TestPartialRows(t *testing.T) {
	var g Grinder
	for i := range 8 {
		var rows []metric.RollupRow
		for j := range 3 {
			r, _ := g.Samples([]metric.Sample{{Schedule: schedule, TimeMs: int64(j), Value: 1}})
			require.False(t, r.Partial)
			r.Partial = i>>j&1 == 1
			rows = append(rows, metric.RollupRow{Schedule: schedule, TimeMs: int64(j), Rollup: r})
		}
		got, ok, err := g.Rollups(rows)
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, i > 0, got.Partial, "%03b", i)
		require.EqualValues(t, 3, got.Count)
	}
}

// TestRollupsWithADamagedSketch: if a row's sketch is damaged, the merged sketch lacks the row's
// samples. Nothing else is affected.
func TestRollupsWithADamagedSketch(t *testing.T) {
	var g Grinder
	good, _ := g.Samples([]metric.Sample{{Schedule: schedule, TimeMs: 1, Value: 2}, {Schedule: schedule, TimeMs: 2, Value: 7}})
	rows := make([]metric.RollupRow, 3)
	for _, bad := range [][]byte{nil, {99}, good.Sketch[:len(good.Sketch)-1]} {
		for damaged := range 8 {
			whole := uint64(0)
			for i := range rows {
				rows[i] = metric.RollupRow{Schedule: schedule, TimeMs: int64(i) * 3_600_000, Rollup: good}
				if damaged>>i&1 == 1 {
					rows[i].Sketch = bad
				} else {
					whole += 2
				}
			}
			got, ok, err := g.Rollups(rows)
			require.True(t, ok)
			for i := range rows {
				if name := fmt.Sprintf("schedule 7 at %d: ", rows[i].TimeMs); damaged>>i&1 == 1 {
					require.ErrorIs(t, err, sketch.ErrCorrupt)
					require.ErrorContains(t, err, name)
				} else if err != nil {
					require.NotContains(t, err.Error(), name)
				}
			}
			require.Equal(t, damaged > 0, got.Partial)
			var s sketch.Sketch
			require.NoError(t, s.Merge(got.Sketch))
			require.Equal(t, whole, s.Count())
			got.Sketch, got.Partial = nil, false
			require.Equal(t, metric.Rollup{Count: 6, Sum: 27, Min: 2, Max: 7, First: 2, Last: 7, FirstMs: 1, LastMs: 2, Increase: 19}, got)
		}
	}
}

func TestRowsWithoutSamplesDoNotCount(t *testing.T) {
	var g Grinder
	_, ok, err := g.Rollups([]metric.RollupRow{{Schedule: schedule}})
	require.NoError(t, err)
	assert.False(t, ok)
	_, ok, err = g.Rollups(nil)
	require.NoError(t, err)
	assert.False(t, ok)
}

func TestGrindingDoesNotAllocateInSteadyState(t *testing.T) {
	var g Grinder
	samples := randomSamples(rand.New(rand.NewPCG(5, 6)))
	rows := make([]metric.RollupRow, 6)
	run := func() {
		g.Reset()
		for i := range rows {
			rows[i].Rollup, _ = g.Samples(samples)
		}
		_, _, _ = g.Rollups(rows)
	}
	run()
	assert.Zero(t, testing.AllocsPerRun(10, run))
}
