package verify

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/wire"
)

// Row is a roll-up row as a reader sees it. A field is NaN if it has no finite value, or could not
// be read.
type Row struct {
	Count                 uint64
	Sum, Min, Max, Avg    float64
	First, Last, Increase float64
	P50, P90, P99         float64
	// Partial says that samples may be missing, because raw chunks were damaged or input had
	// expired when the row was ground.
	Partial bool
}

// must is what one row must be. It takes the samples one after the other and keeps none of them. To
// check the percentiles of the row, it counts how many samples lie below each.
type must struct {
	count                 uint64
	sum, increase         float64
	min, max, first, last float64
	// Sums of absolute values: the scale for rounding errors.
	sumScale, increaseScale float64
	// lowest is the exponent of the lowest bit set in any sample: all samples are multiples of
	// 2^lowest.
	lowest int

	positive, negative side
	probes             [3]probe
}

// side is the samples of one sign.
type side struct {
	count         uint64
	least, utmost float64 // absolute values
}

// probe counts samples around a percentile.
type probe struct {
	low, high float64
	below     uint64 // samples < low
	upTo      uint64 // samples <= high
}

var quantiles = [3]struct {
	name    string
	percent uint64
}{{"p50", 50}, {"p90", 90}, {"p99", 99}}

const (
	// accuracy is the promised accuracy of a percentile, plus a rounding error.
	accuracy = sketch.RelativeAccuracy * (1 + 1e-6)
	// The sketch takes values nearer to 0 than tiny as 0, and does not tell values beyond huge
	// apart.
	tiny = 1e-307
	huge = 1.2e308
	// spread is the factor between values of one sign that a sketch always tells apart. If more
	// than sketch.MaxBins values spread wider, the sketch merges those nearest to 0.
	spread = 1e8
)

// expect sets the percentiles to check. It is called before the first sample.
func (m *must) expect(r *Row) {
	for i, p := range [3]float64{r.P50, r.P90, r.P99} {
		b := probe{low: p / (1 + accuracy), high: p / (1 - accuracy)}
		if p < 0 {
			b.low, b.high = b.high, b.low
		}
		if math.Abs(p) < tiny {
			b.low, b.high = -tiny, tiny
		}
		if b.high > huge {
			b.high = math.Inf(1)
		}
		if b.low < -huge {
			b.low = math.Inf(-1)
		}
		m.probes[i] = b
	}
}

// add adds the next sample by time. A sample that is not finite is not part of a roll-up.
func (m *must) add(v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	if m.count == 0 {
		m.min, m.max, m.first, m.lowest = v, v, v, math.MaxInt
	} else {
		grown := v - m.last
		if v < m.last {
			grown = v // the counter began again at 0
		}
		m.increase += grown
		m.increaseScale += math.Abs(grown)
	}
	m.count++
	m.sum += v
	m.sumScale += math.Abs(v)
	m.min, m.max, m.last = math.Min(m.min, v), math.Max(m.max, v), v
	if v != 0 {
		fraction, exponent := math.Frexp(math.Abs(v))
		m.lowest = min(m.lowest, exponent-53+bits.TrailingZeros64(uint64(fraction*(1<<53))))
	}
	if v > tiny {
		m.positive.add(v)
	} else if v < -tiny {
		m.negative.add(-v)
	}
	for i := range m.probes {
		if v < m.probes[i].low {
			m.probes[i].below++
		}
		if v <= m.probes[i].high {
			m.probes[i].upTo++
		}
	}
}

func (s *side) add(v float64) {
	if s.count == 0 {
		s.least, s.utmost = v, v
	}
	s.count++
	s.least, s.utmost = math.Min(s.least, v), math.Max(s.utmost, v)
}

// collapsed says whether a sketch may have merged values of this sign.
func (s *side) collapsed() bool { return s.count > sketch.MaxBins && s.utmost > spread*s.least }

// slack is how far two sums of the same numbers may differ, whatever the order and grouping of the
// additions. It is 0 if no partial sum can be rounded.
func (m *must) slack(scale float64) float64 {
	if m.lowest == math.MaxInt || math.Ldexp(scale, -m.lowest) < 1<<52 {
		return 0
	}
	return float64(m.count+1) * 0x1p-51 * scale
}

// differs returns the fields in which a row is not as it must be. m.count is above 0.
func (m *must) differs(r *Row) []wire.DifferenceField {
	var out []wire.DifferenceField
	differ := func(name string, got float64, want float64) {
		out = append(out, wire.DifferenceField{Name: name, Row: number(got), Samples: number(want)})
	}
	if r.Count != m.count {
		out = append(out, wire.DifferenceField{Name: "count", Row: strconv.FormatUint(r.Count, 10), Samples: strconv.FormatUint(m.count, 10)})
	}
	near := func(name string, got, want, slack, scale float64) {
		// Whether a sum overflows on the way depends on the order, and then a reader sees no
		// number.
		if math.IsInf(scale, 0) || math.Abs(got-want) <= slack {
			return
		}
		differ(name, got, want)
	}
	n := float64(m.count)
	near("sum", r.Sum, m.sum, m.slack(m.sumScale), m.sumScale)
	near("min", r.Min, m.min, 0, 0)
	near("max", r.Max, m.max, 0, 0)
	near("avg", r.Avg, m.sum/n, m.slack(m.sumScale)/n*(1+0x1p-50), m.sumScale)
	near("first", r.First, m.first, 0, 0)
	near("last", r.Last, m.last, 0, 0)
	near("increase", r.Increase, m.increase, m.slack(m.increaseScale), m.increaseScale)
	if r.Count != m.count {
		return out // its percentiles are of other samples
	}
	for i, p := range [3]float64{r.P50, r.P90, r.P99} {
		if want := m.rank(i, p); want != "" {
			out = append(out, wire.DifferenceField{Name: quantiles[i].name, Row: number(p), Samples: want})
		}
	}
	return out
}

// rank says what is wrong with percentile i, "" if nothing is: a sample of its rank must be near.
func (m *must) rank(i int, p float64) string {
	b := m.probes[i]
	if !(p >= m.min && p <= m.max) {
		return fmt.Sprintf("between %s and %s", number(m.min), number(m.max))
	}
	if p > 0 && m.positive.collapsed() || p < 0 && m.negative.collapsed() {
		return ""
	}
	// If the product is a whole number, floating point may round it to just below.
	exact, rounded := quantiles[i].percent*(m.count-1)/100, uint64(float64(quantiles[i].percent)/100*float64(m.count-1))
	from, to := min(exact, rounded), max(exact, rounded)
	if b.below <= to && from < b.upTo {
		return ""
	}
	return fmt.Sprintf("near sample %d of %d by size: %d are smaller, %d greater", from+1, m.count, b.below, m.count-b.upTo)
}

func number(v float64) string {
	if math.IsNaN(v) {
		return "no number"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
