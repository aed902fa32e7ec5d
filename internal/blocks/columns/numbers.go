package columns

import (
	"math"
	"math/bits"
	"slices"
)

// form is how the values of a series become integers.
type form uint8

const (
	// decimal: v = m / 10^places in float64 division. (ALP: Afroozeh and Boncz, SIGMOD 2023.)
	decimal form = iota
	// ratio: v = m / divisor in float64 division, such as used/total of a disk.
	ratio
	// pattern: m is the bit pattern of v, ordered as floats are.
	pattern
)

const (
	maxPlaces = 15
	// Integers below this bound are exact in float64, and so are their differences.
	maxInteger = 1 << 51
)

var powers = [maxPlaces + 1]float64{1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15}

// numbers is what the values of a series are as integers.
type numbers struct {
	form    form
	places  uint8
	divisor float64
	ints    []int64
	// unit divides all differences of ints: a factor of decimals, of patterns the number of low bits that never change.
	unit uint64
	// exceptions are the positions of values that have no integer. It is that of the value before there.
	exceptions []int
}

// integer returns v as a decimal of the power's places.
func integer(v, power float64) (m int64, ok bool) {
	const round = 3 << 51 // x + round - round is x without places, for |x| < maxInteger
	x := float64(v * power)
	if !(math.Abs(x) < maxInteger) {
		return 0, false
	}
	x = float64(x+round) - round
	return int64(x), math.Float64bits(x/power) == math.Float64bits(v)
}

// choose finds the form of a series in which the integers have the fewest bits. values has at least one element.
func (n *numbers) choose(values []float64) {
	n.form, n.places, n.divisor, n.unit = decimal, 0, 0, 1
	n.ints = slices.Grow(n.ints[:0], len(values))[:len(values)]
	n.exceptions = n.exceptions[:0]
	if n.decimals(values) {
		n.factor()
		return
	}
	n.exceptions = n.exceptions[:0]
	if n.ratios(values) {
		n.form = ratio
		return
	}
	n.form, n.places = pattern, 0
	first, differ := ordered(values[0]), uint64(0)
	for i, v := range values {
		n.ints[i] = ordered(v)
		differ |= uint64(n.ints[i] - first)
	}
	if differ != 0 {
		n.unit = uint64(bits.TrailingZeros64(differ)) + 1
	}
}

// decimals takes the fewest places that hold all values but a few. The integers of values that have been found stay exact
// with more places: both quotients are the same number, rounded once.
func (n *numbers) decimals(values []float64) bool {
	few := len(values)/16 + 1
	places, power := 0, 1.0
	again := 0 // the integers before here have fewer places, or some are exceptions
	for i, v := range values {
		m, ok := integer(v, power)
		for q := places + 1; !ok && q <= maxPlaces && v-v == 0; q++ {
			if _, fits := integer(v, powers[q]); fits {
				places, power, again = q, powers[q], i
				m, ok = integer(v, power)
			}
		}
		if !ok {
			if len(n.exceptions) == few {
				return false
			}
			n.exceptions = append(n.exceptions, i)
		}
		n.ints[i] = m
	}
	n.places = uint8(places)
	if len(n.exceptions) > 0 {
		again = len(values)
	}
	n.exceptions = n.exceptions[:0]
	var last int64
	for i, v := range values[:again] {
		m, ok := integer(v, power)
		if !ok {
			if len(n.exceptions) == few {
				return false
			}
			n.exceptions = append(n.exceptions, i)
			m = last
		}
		n.ints[i], last = m, m
	}
	return true
}

// factor finds the unit of decimals.
func (n *numbers) factor() {
	first, unit := n.ints[0], uint64(0)
	for _, m := range n.ints {
		d := uint64(max(m-first, first-m))
		for d != 0 {
			unit, d = d, unit%d
		}
		if unit == 1 {
			return
		}
	}
	n.unit = max(1, unit)
}

// ratios finds a divisor with which every value is an integer. It is the reciprocal of what divides the differences, which
// Euclid's algorithm finds but for rounding errors; differences over longer spans make those smaller.
func (n *numbers) ratios(values []float64) bool {
	const fewest = 8
	if len(values) < fewest {
		return false
	}
	largest := 0.0
	for _, v := range values {
		if v-v != 0 {
			return false
		}
		largest = max(largest, math.Abs(v))
	}
	noise := largest * 0x1p-36 // a smaller divisor is not told apart from rounding
	for i := 1; i+1 < min(len(values), 16); i++ {
		a, b := math.Abs(values[i]-values[i-1]), math.Abs(values[i+1]-values[i])
		for b > noise {
			a, b = b, math.Abs(a-math.Round(a/b)*b)
		}
		if a <= 4*noise {
			continue
		}
		if step, ok := refine(values, a); ok {
			return n.divide(values, step)
		}
	}
	return false
}

// refine returns step more exactly, if it divides the differences.
func refine(values []float64, step float64) (float64, bool) {
	for span := 1; span < len(values); span *= 3 {
		longest, times := 0.0, 0.0
		for j := 0; j+span < len(values) && j < 8*span; j += span {
			d := math.Abs(values[j+span] - values[j])
			k := math.Round(d / step)
			if math.Abs(d/step-k) > 0.1 {
				return 0, false
			}
			if d > longest {
				longest, times = d, k
			}
		}
		if times > 0 {
			step = longest / times
		}
	}
	return step, true
}

// divide tries divisors near 1/step, the roundest first.
func (n *numbers) divide(values []float64, step float64) bool {
	at := 0
	for i, v := range values { // the greatest says it most exactly
		if math.Abs(v) > math.Abs(values[at]) {
			at = i
		}
	}
	k := math.Round(values[at] / step)
	if k == 0 || math.Abs(k) >= maxInteger {
		return false
	}
	d := k / values[at]
	for _, divisor := range [...]float64{math.Round(d), math.Round(d*4096) / 4096, d} {
		if divisor != 0 && n.divided(values, divisor) {
			n.divisor = divisor
			return true
		}
	}
	return false
}

func (n *numbers) divided(values []float64, divisor float64) bool {
	for i, v := range values {
		x := math.Round(v * divisor)
		if !(math.Abs(x) < maxInteger) {
			return false
		}
		m := int64(x)
		if math.Float64bits(float64(m)/divisor) != math.Float64bits(v) { // also of -0, which no integer is
			return false
		}
		n.ints[i] = m
	}
	return true
}

// ordered maps bit patterns to integers so that greater floats have greater ones.
func ordered(v float64) int64 {
	b := int64(math.Float64bits(v))
	return b ^ int64(uint64(b>>63)>>1)
}

func unordered(m int64) float64 {
	return math.Float64frombits(uint64(m ^ int64(uint64(m>>63)>>1)))
}

// reduce divides the differences from the first integer by the unit, in place, unless the unit is 1.
func (n *numbers) reduce() {
	if n.unit == 1 {
		return
	}
	first := n.ints[0]
	if n.form == pattern {
		for i, m := range n.ints {
			n.ints[i] = (m - first) >> (n.unit - 1)
		}
		return
	}
	for i, m := range n.ints {
		n.ints[i] = (m - first) / int64(n.unit)
	}
}

// restored returns the integer that stood where m stands after reduce, if first was the first one.
func (n *numbers) restored(first, m int64) int64 {
	switch {
	case n.unit == 1:
		return m
	case n.form == pattern:
		return first + m<<(n.unit-1)
	default:
		return first + m*int64(n.unit)
	}
}
