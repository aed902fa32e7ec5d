package verify

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
)

func ladderOf(t testing.TB, text string) metric.Ladder {
	t.Helper()
	l, err := metric.ParseLadder(text)
	require.NoError(t, err)
	return l
}

func series(t testing.TB, name string) metric.Labels {
	t.Helper()
	ls, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: name})
	require.NoError(t, err)
	return ls
}

type sample struct {
	ms int64
	v  float64
}

type atRow struct {
	level metric.Bucket
	ms    int64
	Row
}

// timed returns rows with the times of their first and last samples, where they have none.
func timed(l metric.Ladder, rows []atRow, samples []sample) []atRow {
	rows = slices.Clone(rows)
	for i := range rows {
		r := &rows[i]
		known, begun := r.FirstMs != 0 || r.LastMs != 0, false
		for _, s := range samples {
			if known || math.IsNaN(s.v) || math.IsInf(s.v, 0) || l.SliceAt(r.level-1, s.ms).StartMs != r.ms {
				continue
			}
			if !begun {
				r.FirstMs, begun = s.ms, true
			}
			r.LastMs = s.ms
		}
	}
	return rows
}

// checked returns what a checker says about rows and samples.
func checked(t testing.TB, l metric.Ladder, rows []atRow, samples []sample) []string {
	t.Helper()
	c := NewChecker(l)
	s := c.Series(series(t, "x"))
	for _, r := range timed(l, rows, samples) {
		s.Row(r.level, r.ms, r.Row)
	}
	for _, p := range samples {
		require.NoError(t, s.Sample(p.ms, p.v))
	}
	out := []string{}
	c.Results(nil, func(r Result) { out = append(out, Lines(r.Difference(l))...) })
	return out
}

var (
	nan = math.NaN()
	inf = math.Inf(1)
)

// flat returns the row of n samples that all have the value v.
func flat(n uint64, v float64) Row {
	return Row{Count: n, Sum: float64(n) * v, Min: v, Max: v, Avg: v, First: v, Last: v, P50: v, P90: v, P99: v}
}

// TestByHand has rows that were computed on paper.
func TestByHand(t *testing.T) {
	l := ladderOf(t, "2s,4s")
	// A counter that restarts, with samples on both sides of each boundary: 0, 1999 | 2000, 3999 |
	// 4000.
	samples := []sample{{0, 1}, {500, nan}, {1999, 4}, {2000, 7}, {2500, inf}, {3000, 2}, {3999, 5}, {4000, 9}}
	right := []atRow{
		{1, 0, Row{Count: 2, Sum: 5, Min: 1, Max: 4, Avg: 2.5, First: 1, Last: 4, Increase: 3, P50: 2.5, P90: 3.7, P99: 3.97}},
		// The counter went from 7 down to 2, which it has grown from 0, and then grew by 3.
		{1, 2000, Row{Count: 3, Sum: 14, Min: 2, Max: 7, Avg: 14. / 3, First: 7, Last: 5, Increase: 5, P50: 5, P90: 6.6, P99: 6.96}},
		{1, 4000, flat(1, 9)},
		// The step from 4 to 7 is in the coarser row only.
		{2, 0, Row{Count: 5, Sum: 19, Min: 1, Max: 7, Avg: 3.8, First: 1, Last: 5, Increase: 11, P50: 4, P90: 6.2, P99: 6.92}},
		{2, 4000, flat(1, 9)},
	}
	right = timed(l, right, samples)
	require.Empty(t, checked(t, l, right, samples))

	for _, c := range []struct {
		name   string
		change func([]atRow) []atRow
		want   []string
	}{
		{"count", func(r []atRow) []atRow { r[0].Count = 3; return r }, []string{"x{} 2s 1970-01-01T00:00:00Z wrong count: the row says 3, the samples say 2"}},
		{"sum", func(r []atRow) []atRow { r[1].Sum = math.Nextafter(14, 15); return r }, []string{"x{} 2s 1970-01-01T00:00:02Z wrong sum: the row says 14.000000000000002, the samples say 14"}},
		{"several", func(r []atRow) []atRow { r[3].Min, r[3].Increase = 2, 8; return r }, []string{
			"x{} 4s 1970-01-01T00:00:00Z wrong min: the row says 2, the samples say 1",
			"x{} 4s 1970-01-01T00:00:00Z wrong increase: the row says 8, the samples say 11",
		}},
		{"no number", func(r []atRow) []atRow { r[2].P90 = nan; return r }, []string{"x{} 2s 1970-01-01T00:00:04Z wrong p90: the row says no number, the samples say between 9 and 9"}},
		{"percentile", func(r []atRow) []atRow { r[1].P50 = 2; return r }, []string{"x{} 2s 1970-01-01T00:00:02Z wrong p50: the row says 2, the samples say near sample 2 of 3 by size: 0 are smaller, 2 greater"}},
		{"the lower of two ranks", func(r []atRow) []atRow { r[0].P90 = 1; return r }, []string{"x{} 2s 1970-01-01T00:00:00Z wrong p90: the row says 1, the samples say near 3.7"}},
		{"far from its ranks", func(r []atRow) []atRow { r[3].P90 = 1.5; return r }, []string{"x{} 4s 1970-01-01T00:00:00Z wrong p90: the row says 1.5, the samples say near sample 4.6 of 5 by size: 1 are smaller, 4 greater"}},
		{"missing", func(r []atRow) []atRow { return slices.Delete(r, 2, 3) }, []string{"x{} 2s 1970-01-01T00:00:04Z missing: there is no row, the samples say count 1"}},
		{"surplus", func(r []atRow) []atRow { return append(r, atRow{2, 8000, flat(3, 1)}) }, []string{"x{} 4s 1970-01-01T00:00:08Z surplus: the row says count 3, there are no samples"}},
		{"not aligned", func(r []atRow) []atRow { return append(r, atRow{1, 2001, flat(3, 1)}) }, []string{"x{} 2s 1970-01-01T00:00:02Z surplus: the row says count 3, there are no samples"}},
		{"doubled", func(r []atRow) []atRow { return append(r, r[4]) }, []string{"x{} 4s 1970-01-01T00:00:04Z doubled: there are several rows"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.want, checked(t, l, c.change(slices.Clone(right)), samples))
		})
	}
	for i := range right {
		for _, spoil := range []func(*Row){
			func(r *Row) { r.Count++ }, func(r *Row) { r.Sum++ }, func(r *Row) { r.Min-- }, func(r *Row) { r.Max++ },
			func(r *Row) { r.Avg++ }, func(r *Row) { r.First++ }, func(r *Row) { r.Last++ }, func(r *Row) { r.Increase++ },
			func(r *Row) { r.FirstMs++ }, func(r *Row) { r.LastMs++ },
			func(r *Row) { r.P50 = r.Max + 1 }, func(r *Row) { r.P90 = nan }, func(r *Row) { r.P99 = r.Min - 1 },
		} {
			wrong := slices.Clone(right)
			spoil(&wrong[i].Row)
			require.Len(t, checked(t, l, wrong, samples), 1, "%+v", wrong[i])
		}
	}
}

// TestNothingFinite: a slice without finite samples has no row.
func TestNothingFinite(t *testing.T) {
	l := ladderOf(t, "1s")
	samples := []sample{{0, nan}, {1, inf}, {2, math.Inf(-1)}}
	assert.Empty(t, checked(t, l, nil, samples))
	assert.Equal(t, []string{"x{} 1s 1970-01-01T00:00:00Z surplus: the row says count 1, there are no samples"},
		checked(t, l, []atRow{{1, 0, flat(1, 5)}}, samples))
}

// TestOneValueAMoment: a second sample of the same moment is an error.
func TestOneValueAMoment(t *testing.T) {
	s := NewChecker(ladderOf(t, "1s")).Series(series(t, "x"))
	require.NoError(t, s.Sample(5, 1))
	require.ErrorContains(t, s.Sample(5, 1), "a sample at 5 follows one at 5")
	require.ErrorContains(t, s.Sample(4, 1), "a sample at 4 follows one at 5")
}

// TestRounding: sums may differ by the order of additions, and by no more.
func TestRounding(t *testing.T) {
	l := ladderOf(t, "1s")
	third := []sample{{0, 0.1}, {1, 0.2}, {2, 0.3}}
	row := Row{Count: 3, Sum: 0.1 + (0.2 + 0.3), Min: 0.1, Max: 0.3, Avg: 0.2, First: 0.1, Last: 0.3, Increase: 0.2, P50: 0.2, P90: 0.28, P99: 0.298}
	other := row
	other.Sum = 0.6000000000000001
	assert.Empty(t, checked(t, l, []atRow{{1, 0, row}}, third))
	assert.Empty(t, checked(t, l, []atRow{{1, 0, other}}, third))
	other.Sum = 0.600000000000005
	assert.Len(t, checked(t, l, []atRow{{1, 0, other}}, third), 1)

	// If a sum overflows, a reader sees no number, and whether it does depends on the order.
	far := []sample{{0, math.MaxFloat64}, {1, math.MaxFloat64}}
	row = flat(2, math.MaxFloat64)
	row.Sum, row.Avg = nan, nan
	row.P50, row.P90, row.P99 = math.MaxFloat64, math.MaxFloat64, math.MaxFloat64
	assert.Empty(t, checked(t, l, []atRow{{1, 0, row}}, far))
	row.P50 = 1.25e308
	row.Min = 1.25e308
	assert.Equal(t, []string{
		"x{} 1s 1970-01-01T00:00:00Z wrong min: the row says 1.25e+308, the samples say 1.7976931348623157e+308",
		"x{} 1s 1970-01-01T00:00:00Z wrong p50: the row says 1.25e+308, the samples say between 1.7976931348623157e+308 and 1.7976931348623157e+308",
	},
		checked(t, l, []atRow{{1, 0, row}}, far))
}

// TestPercentiles: a percentile is within 1 % of a sample of its rank, of either sign, or 0.
func TestPercentiles(t *testing.T) {
	l := ladderOf(t, "1s")
	var samples []sample
	for i := range 101 {
		samples = append(samples, sample{int64(i), float64(i - 50)})
	}
	row := Row{Count: 101, Sum: 0, Min: -50, Max: 50, Avg: 0, First: -50, Last: 50, Increase: 0, P50: 0, P90: 40, P99: 49}
	// The increase of a gauge, read as a counter: -49 to -1 are steps of 1 up from the value
	// before.
	row.Increase = 100
	assert.Empty(t, checked(t, l, []atRow{{1, 0, row}}, samples))
	for _, c := range []struct {
		p90  float64
		fits bool
	}{{40.39, true}, {39.61, true}, {40.41, false}, {39.59, false}, {-40, false}} {
		row.P90 = c.p90
		assert.Equal(t, c.fits, len(checked(t, l, []atRow{{1, 0, row}}, samples)) == 0, "%v", c.p90)
	}
}

// wrongPercentiles says what is wrong with the percentiles of a sketch of values, each changed by so much.
func wrongPercentiles(values []float64, by float64) (wrong string) {
	var sk sketch.Sketch
	for _, v := range values {
		sk.Add(v)
	}
	least, most := slices.Min(values), slices.Max(values)
	var r Row
	for i, p := range []*float64{&r.P50, &r.P90, &r.P99} {
		v, _ := sk.Quantile(quantiles[i].q, least, most)
		*p = max(least, min(most, v+by))
	}
	var m must
	m.expect(&r)
	for _, v := range values {
		m.add(0, v)
	}
	return m.rank(0, r.P50) + m.rank(1, r.P90) + m.rank(2, r.P99)
}

// TestPercentilesOfSketches: what a sketch says of samples is right, and no longer if it is off by 3 % more.
func TestPercentilesOfSketches(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, draw := range map[string]func() float64{
		"skewed":         func() float64 { return math.Exp(rng.NormFloat64() * 2) },
		"both signs":     func() float64 { return rng.NormFloat64() * math.Exp(rng.NormFloat64()) },
		"negative":       func() float64 { return -rng.ExpFloat64() },
		"many equal":     func() float64 { return float64(rng.IntN(5) - 2) },
		"outliers":       func() float64 { return map[bool]float64{true: 1000}[rng.IntN(40) == 0] },
		"next to zero":   func() float64 { return float64(rng.IntN(3)-1) * 1e-307 },
		"beyond the end": func() float64 { return math.MaxFloat64 * float64(rng.IntN(3)-1) },
	} {
		for n := 1; n < 200; n++ {
			values := make([]float64, n)
			for i := range values {
				values[i] = draw()
			}
			require.Empty(t, wrongPercentiles(values, 0), "%s: %v", name, values)
			far := max(slices.Max(values), -slices.Min(values))
			if slices.Min(values) < slices.Max(values) && far > 1e-300 && far < 1e300 {
				require.NotEmpty(t, wrongPercentiles(values, 0.03*far)+wrongPercentiles(values, -0.03*far), "%s: %v", name, values)
			}
		}
	}
}

// TestPercentilesOfMergedBins: what a sketch cannot tell of a wide span is no difference, also between the two signs.
func TestPercentilesOfMergedBins(t *testing.T) {
	var positive, both, below []float64
	for i := range 2000 { // a factor of 10^25
		v := 1e-9 * math.Pow(1.03, float64(i))
		positive, both, below = append(positive, v), append(both, v, -v), append(below, -v, float64(i+1))
	}
	for _, values := range [][]float64{positive, both, both[1:], below} {
		require.Empty(t, wrongPercentiles(values, 0))
	}
	require.NotEmpty(t, wrongPercentiles(below, 0.03*2000), "the other sign can be told")
}
