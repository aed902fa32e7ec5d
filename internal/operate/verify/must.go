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
	FirstMs, LastMs       int64
	P50, P90, P99         float64
	// Partial says that samples may be missing, because raw chunks were damaged or input had
	// expired when the row was ground.
	Partial bool
}

// must is what one row must be. It takes the samples one after the other and keeps none of them. To
// check the percentiles of the row, it counts how many samples lie below each, and keeps those next to it.
type must struct {
	count                 uint64
	sum, increase         float64
	min, max, first, last float64
	firstMs, lastMs       int64
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

// probe is the borders of the samples near a percentile: those from low on, and below high.
type probe struct{ low, high border }

// border counts the samples below a value, and knows the samples on either side.
type border struct {
	at          float64
	below       uint64  // samples < at
	under, over float64 // the greatest sample < at, the least >= at
}

func newBorder(at float64) border { return border{at: at, under: math.Inf(-1), over: math.Inf(1)} }

func (b *border) add(v float64) {
	if v < b.at {
		b.below++
		b.under = max(b.under, v)
	} else {
		b.over = min(b.over, v)
	}
}

var quantiles = [3]struct {
	name string
	q    float64
}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}}

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
		low, high := p/(1+accuracy), p/(1-accuracy)
		if p < 0 {
			low, high = high, low
		}
		if math.Abs(p) < tiny {
			low, high = -tiny, tiny
		}
		if high > huge {
			high = math.Inf(1)
		}
		if low < -huge {
			low = math.Inf(-1)
		}
		m.probes[i] = probe{newBorder(low), newBorder(math.Nextafter(high, math.Inf(1)))}
	}
}

// add adds the next sample by time. A sample that is not finite is not part of a roll-up.
func (m *must) add(ms int64, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	if m.count == 0 {
		m.min, m.max, m.first, m.firstMs, m.lowest = v, v, v, ms, math.MaxInt
	} else {
		grown := v - m.last
		if v < m.last {
			grown = v // the counter began again at 0
		}
		m.increase += grown
		m.increaseScale += math.Abs(grown)
	}
	m.count++
	m.lastMs = ms
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
		m.probes[i].low.add(v)
		m.probes[i].high.add(v)
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
	whole := func(name string, got, want int64) {
		if got != want {
			out = append(out, wire.DifferenceField{Name: name, Row: strconv.FormatInt(got, 10), Samples: strconv.FormatInt(want, 10)})
		}
	}
	whole("count", int64(r.Count), int64(m.count))
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
	whole("first_time", r.FirstMs, m.firstMs)
	whole("last_time", r.LastMs, m.lastMs)
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

// rank says what is wrong with percentile i, "" if nothing is. It is between the samples of two ranks, and each of them may
// count with a value that is off by the accuracy. Either both are near the percentile, or a border lies between the two.
func (m *must) rank(i int, p float64) string {
	if !(p >= m.min && p <= m.max) {
		return fmt.Sprintf("between %s and %s", number(m.min), number(m.max))
	}
	r := quantiles[i].q * float64(m.count-1)
	from, to, weight := uint64(r), uint64(math.Ceil(r)), r-math.Floor(r)
	if from < m.negative.count && m.negative.collapsed() || to >= m.count-m.positive.count && m.positive.collapsed() {
		return ""
	}
	low, high := &m.probes[i].low, &m.probes[i].high
	next := low
	if low.below != from+1 {
		next = high
	}
	switch {
	case low.below <= from && to < high.below:
		return ""
	case next.below != from+1:
		rank := number(math.Round(100*(r+1)) / 100)
		return fmt.Sprintf("near sample %s of %d by size: %d are smaller, %d greater", rank, m.count, low.below, m.count-high.below)
	}
	want := next.under*(1-weight) + next.over*weight
	if math.Abs(p-want) <= slackOf(next.under)*(1-weight)+slackOf(next.over)*weight {
		return ""
	}
	return "near " + number(want)
}

// slackOf returns how far a sketch's value of a sample may be from it.
func slackOf(v float64) float64 {
	if math.Abs(v) > huge {
		return math.Abs(v) / 2
	}
	return math.Abs(v)*accuracy + tiny
}

func number(v float64) string {
	if math.IsNaN(v) {
		return "no number"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}
