package sketch

import (
	"encoding/hex"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/DataDog/sketches-go/ddsketch"
	"github.com/DataDog/sketches-go/ddsketch/encoding"
	"github.com/DataDog/sketches-go/ddsketch/store"
	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func sketchOf(values ...float64) *Sketch {
	var s Sketch
	for _, v := range values {
		s.Add(v)
	}
	return &s
}

func distributions() map[string][]float64 {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(n int, f func() float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = f()
		}
		return out
	}
	return map[string][]float64{
		"one":          {42},
		"narrow gauge": draw(60, func() float64 { return 50 + r.NormFloat64() }),
		"constant":     draw(60, func() float64 { return 0.25 }),
		"zeros":        draw(60, func() float64 { return 0 }),
		"around zero":  draw(1000, func() float64 { return math.Round(r.NormFloat64()*20) / 10 }),
		"negative":     draw(500, func() float64 { return -r.ExpFloat64() }),
		"latencies":    draw(10_000, func() float64 { return math.Exp(r.NormFloat64() * 2) }),
		"counter":      draw(1440, func() func() float64 { n := 0.0; return func() float64 { n += r.Float64() * 1e6; return n } }()),
		"tiny":         draw(100, func() float64 { return r.Float64() * 1e-300 }),
		"huge":         draw(100, func() float64 { return (r.Float64() - 0.5) * math.MaxFloat64 }),
	}
}

// requireAsPromQL compares quantiles with PromQL's rule over the values themselves: each of the two values that it takes may
// be off by the accuracy, and by no more.
func requireAsPromQL(t *testing.T, what string, values []float64) {
	t.Helper()
	s, sorted := sketchOf(values...), slices.Sorted(slices.Values(values))
	n := len(sorted)
	require.Equal(t, uint64(n), s.Count(), what)
	for _, q := range []float64{0, 0.01, 0.1, 0.25, 1. / 3, 0.5, 0.9, 0.95, 0.99, 0.999, 1} {
		r := q * float64(n-1)
		low, high, weight := sorted[int(math.Floor(r))], sorted[int(math.Ceil(r))], r-math.Floor(r)
		want := low*(1-weight) + high*weight
		// The tolerance is slightly above the accuracy because the bounds themselves are rounded.
		off := (math.Abs(low)*(1-weight) + math.Abs(high)*weight) * RelativeAccuracy * (1 + 1e-9)
		if q == 0 || q == 1 || n == 1 || sorted[0] == sorted[n-1] {
			want, off = low, 0
		}
		got, err := s.Quantile(q, sorted[0], sorted[n-1])
		require.NoError(t, err)
		require.InDelta(t, want, got, off, "%s: %d values, q=%v", what, n, q)
	}
}

func TestQuantilesAreThoseOfPromQL(t *testing.T) {
	for name, values := range distributions() {
		requireAsPromQL(t, name, values)
	}
	r := rand.New(rand.NewPCG(7, 8))
	for name, draw := range map[string]func() float64{
		"skewed":     func() float64 { return math.Exp(r.NormFloat64() * 2) },
		"both signs": func() float64 { return r.NormFloat64() * math.Exp(r.NormFloat64()) },
		"negative":   func() float64 { return -r.ExpFloat64() * 1e6 },
		"many equal": func() float64 { return float64(r.IntN(5) - 2) },
		"outliers":   func() float64 { return map[bool]float64{true: 1000}[r.IntN(40) == 0] },
	} {
		values := make([]float64, 1000)
		for n := 1; n <= len(values); n++ {
			for i := range n {
				values[i] = draw()
			}
			requireAsPromQL(t, name, values[:n])
		}
	}
}

// TestOutlierIsInTheLastPercentile has the numbers of PromQL.
func TestOutlierIsInTheLastPercentile(t *testing.T) {
	values := []float64{1000}
	for i := range 39 {
		values = append(values, float64(i))
	}
	got, err := sketchOf(values...).Quantile(0.99, 0, 1000)
	require.NoError(t, err)
	require.InDelta(t, 38*0.39+1000*0.61, got, 38*0.39*RelativeAccuracy, "624.8, and the maximum is exact")
	got, err = sketchOf(95, 100).Quantile(0.99, 95, 100)
	require.NoError(t, err)
	require.InDelta(t, 99.95, got, 1e-9)
}

// A sketch that lacks samples of its row, as that of a damaged row may, answers for those that it has.
func TestQuantileOfASingleValueAmongLostOnes(t *testing.T) {
	for _, q := range []float64{0, 0.99, 1} {
		got, err := sketchOf(5).Quantile(q, 1, 9)
		require.NoError(t, err)
		require.InEpsilon(t, 5, got, RelativeAccuracy)
	}
}

func TestQuantileBeyondTheValues(t *testing.T) {
	for _, c := range []struct{ q, want float64 }{{-0.1, math.Inf(-1)}, {1.1, math.Inf(1)}, {math.NaN(), math.NaN()}} {
		got, err := sketchOf(1, 2).Quantile(c.q, 1, 2)
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(c.want), math.Float64bits(got), "%v", c.q)
		got, err = sketchOf().Quantile(c.q, 1, 2)
		require.NoError(t, err)
		require.True(t, math.IsNaN(got), "of nothing")
	}
}

// rankedValue returns the sketch's value of a rank.
func rankedValue(s *Sketch, rank int) float64 {
	v, _ := s.ranked(uint64(rank))
	return v
}

// Values beyond the bins count as the nearest bin; NaN does not count.
func TestValuesBeyondTheBins(t *testing.T) {
	s := sketchOf(math.Inf(1), math.MaxFloat64, math.NaN(), 5e-324, -5e-324, 0, -math.MaxFloat64, math.Inf(-1))
	assert.Equal(t, uint64(7), s.Count())
	assert.InEpsilon(t, 1.25e308, rankedValue(s, 6), 0.02)
	assert.InEpsilon(t, -1.25e308, rankedValue(s, 0), 0.02)
	assert.Zero(t, rankedValue(s, 3))
	v, err := s.Quantile(0.75, -math.MaxFloat64, math.MaxFloat64)
	require.NoError(t, err)
	assert.InEpsilon(t, 1.25e308/2, v, 0.02, "between a zero and the greatest bin")
}

// libraryBins returns the bins of a sketch of sketches-go.
func libraryBins(s *ddsketch.DDSketch) map[float64]float64 {
	out := map[float64]float64{}
	s.ForEach(func(value, count float64) bool {
		out[value] += count
		return false
	})
	return out
}

// The library reads our bytes and finds the same bins that it makes itself.
func TestLibraryReadsTheEncoding(t *testing.T) {
	for name, values := range distributions() {
		want := ddsketch.NewDDSketchFromStoreProvider(indexes, store.SparseStoreConstructor)
		for _, v := range values {
			require.NoError(t, want.Add(v))
		}
		encoded := sketchOf(values...).AppendEncoded(nil)
		got, err := ddsketch.DecodeDDSketch(encoded[1:], store.SparseStoreConstructor, indexes)
		require.NoError(t, err, name)
		assert.Equal(t, libraryBins(want), libraryBins(got), name)
	}
}

// The bytes are the same however the values are split and in whatever order the parts are merged,
// also when bins are merged because there are too many.
func TestMergeIsTheSameAsAdding(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	all := distributions()
	all["more bins than are kept"] = func() []float64 {
		var out []float64
		for e := -300.0; e < 300; e += 0.11 {
			out = append(out, math.Pow(10, e), -math.Pow(10, -e), math.Pow(10, e))
		}
		return out
	}()
	for name, values := range all {
		want := sketchOf(values...).AppendEncoded([]byte("x"))[1:]
		for range 5 {
			r.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
			var parts [][]byte
			for rest := values; len(rest) > 0; {
				n := 1 + r.IntN(len(rest))
				parts = append(parts, sketchOf(rest[:n]...).AppendEncoded(nil))
				rest = rest[n:]
			}
			r.Shuffle(len(parts), func(i, j int) { parts[i], parts[j] = parts[j], parts[i] })
			var merged Sketch
			for _, p := range parts {
				require.NoError(t, merged.Merge(p))
			}
			assert.Equal(t, uint64(len(values)), merged.Count(), name)
			require.Equal(t, want, merged.AppendEncoded(nil), name)
		}
	}
}

func TestBinsAreBounded(t *testing.T) {
	var s Sketch
	r := rand.New(rand.NewPCG(5, 6))
	values := make([]float64, 200_000)
	for i := range values {
		values[i] = math.Pow(10, r.Float64()*600-300)
		s.Add(values[i])
	}
	assert.LessOrEqual(t, len(s.AppendEncoded(nil)), 1+6*MaxBins)
	assert.Len(t, s.positive.sorted, MaxBins)
	assert.LessOrEqual(t, cap(s.positive.sorted)+cap(s.positive.merged), 6*MaxBins)
	assert.Equal(t, uint64(len(values)), s.Count())

	// The top 1024 bins span about 10^8.9. Quantiles in them keep their accuracy.
	slices.Sort(values)
	rank := len(values) - len(values)*8/600
	assert.InEpsilon(t, values[rank], rankedValue(&s, rank), RelativeAccuracy*1.0001)
}

// TestEncodedSize bounds the size of a sketch in a row of the default hour.
func TestEncodedSize(t *testing.T) {
	d := distributions()
	assert.LessOrEqual(t, len(sketchOf(d["constant"]...).AppendEncoded(nil)), 8)
	assert.LessOrEqual(t, len(sketchOf(d["narrow gauge"]...).AppendEncoded(nil)), 40)
	var spread []float64
	for i := range 60 {
		spread = append(spread, math.Pow(1.2, float64(i)))
	}
	assert.LessOrEqual(t, len(sketchOf(spread...).AppendEncoded(nil)), 70)
}

func TestResetMakesItNew(t *testing.T) {
	s := sketchOf(1, 2, -3, 0, 1e100)
	s.Reset()
	assert.Zero(t, s.Count())
	assert.Equal(t, []byte{version}, s.AppendEncoded(nil))
	s.Add(7)
	assert.Equal(t, sketchOf(7).AppendEncoded(nil), s.AppendEncoded(nil))
}

func TestMergeRefusesDamage(t *testing.T) {
	for name, text := range map[string]string{
		"nothing":                      "",
		"another version":              "02",
		"an index mapping":             "010e00000000000000000000000000000000",
		"an unknown block":             "01fc",
		"zeros without their count":    "0104",
		"zeros that are none":          "010400",
		"a block without its number":   "0105",
		"no bins":                      "010500",
		"more bins than bytes":         "0105ffffff0f",
		"an unknown layout":            "01150200",
		"a bin without its index":      "010901",
		"an index beyond every value":  "010901feffffffffffffffff",
		"indexes that stand still":     "0109020200",
		"indexes that go back":         "0109020201",
		"a bin without its count":      "01050102",
		"a count of zero":              "0105010200",
		"half a value":                 "010501027f",
		"contiguous bins two apart":    "010d0202040202",
		"contiguous bins, none filled": "010d0202020000",
		"a gap cut off":                "010d03020200",
	} {
		b, err := hex.DecodeString(text)
		require.NoError(t, err)
		var s Sketch
		assert.ErrorIs(t, s.Merge(b), ErrCorrupt, name)
	}
}

// Even a hostile sketch cannot produce a count that cannot be encoded again.
func TestCountsStopAtTheirBound(t *testing.T) {
	b := []byte{version}
	for range 3 {
		encoding.EncodeFlag(&b, encoding.FlagZeroCountVarFloat)
		encoding.EncodeVarfloat64(&b, maxCount)
	}
	var s, again Sketch
	require.NoError(t, s.Merge(b))
	require.NoError(t, again.Merge(s.AppendEncoded(nil)))
	assert.Equal(t, uint64(maxCount), again.Count())
}

func TestDoesNotAllocateInSteadyState(t *testing.T) {
	values := distributions()["latencies"][:60]
	var s, merged Sketch
	var b []byte
	run := func() {
		s.Reset()
		for _, v := range values {
			s.Add(v)
		}
		b = s.AppendEncoded(b[:0])
		merged.Reset()
		for range 6 {
			_ = merged.Merge(b)
		}
	}
	run()
	assert.Zero(t, testing.AllocsPerRun(10, run))
}

// The golden file pins the bytes.
func TestGolden(t *testing.T) {
	datadriven.RunTest(t, "testdata/sketch.golden", func(t *testing.T, d *datadriven.TestData) string {
		var s Sketch
		least, most := math.Inf(1), math.Inf(-1)
		for _, f := range strings.Fields(d.Input) {
			times, value, repeated := strings.Cut(f, "x")
			if !repeated {
				times, value = "1", f
			}
			n, err := strconv.Atoi(times)
			require.NoError(t, err)
			v, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			least, most = min(least, v), max(most, v)
			for range n {
				s.Add(v)
			}
		}
		b := s.AppendEncoded(nil)
		var read Sketch
		require.NoError(t, read.Merge(b))
		p := func(q float64) float64 {
			v, err := read.Quantile(q, least, most)
			require.NoError(t, err)
			return v
		}
		return fmt.Sprintf("%x\np0 %.4g p50 %.4g p90 %.4g p100 %.4g of %d\n", b, p(0), p(0.5), p(0.9), p(1), read.Count())
	})
}

func FuzzMerge(f *testing.F) {
	for _, values := range distributions() {
		f.Add(sketchOf(values[:min(20, len(values))]...).AppendEncoded(nil))
	}
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Sketch
		if err := s.Merge(b); err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		once := s.AppendEncoded(nil)
		var again Sketch
		require.NoError(t, again.Merge(once))
		require.Equal(t, once, again.AppendEncoded(nil))
		require.Equal(t, s.Count(), again.Count())
		for _, q := range []float64{0, 0.5, 1} {
			v, _ := s.Quantile(q, -math.MaxFloat64, math.MaxFloat64)
			w, _ := again.Quantile(q, -math.MaxFloat64, math.MaxFloat64)
			require.Equal(t, math.Float64bits(v), math.Float64bits(w))
		}
	})
}

// TestCollapsed: ranks in merged bins say so, and all others are within 1 %, also after sketches are merged.
func TestCollapsed(t *testing.T) {
	var values []float64
	for i := range 2000 { // a factor of 10^17
		values = append(values, 1e-9*math.Pow(1.02, float64(i)))
	}
	whole := sketchOf(values...)
	var parts Sketch
	for i := range 4 {
		require.NoError(t, parts.Merge(sketchOf(values[i*500:(i+1)*500]...).AppendEncoded(nil)))
	}
	for _, s := range []*Sketch{whole, &parts} {
		collapsed := 0
		for rank, v := range values {
			got, off := s.ranked(uint64(rank))
			if off {
				collapsed++
				require.GreaterOrEqual(t, got, v*(1-RelativeAccuracy))
				continue
			}
			require.InEpsilon(t, v, got, RelativeAccuracy*(1+1e-9))
		}
		require.Positive(t, collapsed)
		require.Less(t, collapsed, len(values)-MaxBins/2)
		last := float64(len(values) - 1)
		for q, want := range map[float64]error{
			0: nil, 1: nil, 1 / last: ErrCollapsed, 0.5 / last: ErrCollapsed, 1 - 1/last: nil,
			(float64(collapsed) - 0.5) / last: ErrCollapsed, (float64(collapsed) + 0.5) / last: nil,
		} {
			_, err := s.Quantile(q, values[0], values[len(values)-1])
			require.Equal(t, want, err, "rank %v, and %d are in merged bins", q*last, collapsed)
		}
	}
	negative := sketchOf(append([]float64{0, 0}, values...)...)
	for _, v := range values {
		negative.Add(-v)
	}
	for rank, want := range map[uint64]bool{0: false, 1999: true, 2000: false, 2002: true} { // the furthest from 0, the nearest, a zero, the nearest above
		_, off := negative.ranked(rank)
		require.Equal(t, want, off, "rank %d", rank)
	}
	_, off := sketchOf(values[:1000]...).ranked(0)
	require.False(t, off, "all fit")
}
