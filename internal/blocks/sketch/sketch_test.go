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

// The expected quantiles come from the sorted values themselves.
func TestQuantilesAreWithinOnePercent(t *testing.T) {
	for name, values := range distributions() {
		s := sketchOf(values...)
		sorted := slices.Sorted(slices.Values(values))
		assert.Equal(t, uint64(len(values)), s.Count(), name)
		for _, q := range []float64{0, 0.01, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 1} {
			want := sorted[int(q*float64(len(sorted)-1))]
			// The tolerance is slightly above the accuracy because the bounds themselves are
			// rounded.
			assert.InDelta(t, want, s.Quantile(q), math.Abs(want)*RelativeAccuracy*(1+1e-9), "%s, q=%v", name, q)
		}
	}
}

func TestQuantileOfNothing(t *testing.T) {
	assert.True(t, math.IsNaN(sketchOf().Quantile(0.5)))
	for _, q := range []float64{-0.1, 1.1, math.NaN()} {
		assert.True(t, math.IsNaN(sketchOf(1, 2).Quantile(q)))
	}
}

// Values beyond the bins count as the nearest bin; NaN does not count.
func TestValuesBeyondTheBins(t *testing.T) {
	s := sketchOf(math.Inf(1), math.MaxFloat64, math.NaN(), 5e-324, -5e-324, 0, -math.MaxFloat64, math.Inf(-1))
	assert.Equal(t, uint64(7), s.Count())
	assert.InEpsilon(t, 1.25e308, s.Quantile(1), 0.02)
	assert.InEpsilon(t, -1.25e308, s.Quantile(0), 0.02)
	assert.Zero(t, s.Quantile(0.5))
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
	q := 1 - 8.0/600
	want := values[int(q*float64(len(values)-1))]
	assert.InDelta(t, want, s.Quantile(q), want*RelativeAccuracy*1.0001)
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
		for _, f := range strings.Fields(d.Input) {
			times, value, repeated := strings.Cut(f, "x")
			if !repeated {
				times, value = "1", f
			}
			n, err := strconv.Atoi(times)
			require.NoError(t, err)
			v, err := strconv.ParseFloat(value, 64)
			require.NoError(t, err)
			for range n {
				s.Add(v)
			}
		}
		b := s.AppendEncoded(nil)
		var read Sketch
		require.NoError(t, read.Merge(b))
		return fmt.Sprintf("%x\np0 %.4g p50 %.4g p90 %.4g p100 %.4g of %d\n",
			b, read.Quantile(0), read.Quantile(0.5), read.Quantile(0.9), read.Quantile(1), read.Count())
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
			require.Equal(t, math.Float64bits(s.Quantile(q)), math.Float64bits(again.Quantile(q)))
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
			if s.Collapsed(uint64(rank)) {
				collapsed++
				require.GreaterOrEqual(t, s.Ranked(uint64(rank)), v*(1-RelativeAccuracy))
				continue
			}
			require.InEpsilon(t, v, s.Ranked(uint64(rank)), RelativeAccuracy*(1+1e-9))
		}
		require.Positive(t, collapsed)
		require.Less(t, collapsed, len(values)-MaxBins/2)
		require.True(t, s.Collapsed(0))
		require.Equal(t, uint64(999), s.Rank(0.5))
	}
	negative := sketchOf(append([]float64{0, 0}, values...)...)
	for _, v := range values {
		negative.Add(-v)
	}
	require.False(t, negative.Collapsed(0), "the furthest from 0")
	require.True(t, negative.Collapsed(1999), "the nearest to 0")
	require.False(t, negative.Collapsed(2000), "a zero")
	require.True(t, negative.Collapsed(2002))
	require.False(t, new(Sketch).Collapsed(0))
	require.False(t, sketchOf(values[:1000]...).Collapsed(0), "all fit")
}
