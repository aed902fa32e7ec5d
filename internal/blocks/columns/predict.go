package columns

import (
	"math"
	"math/bits"
	"slices"
)

// order is how integers are predicted. A residual is what an integer differs from its prediction. All arithmetic wraps
// around, here as in a reader, so every pattern of bits survives.
type order uint8

const (
	// level predicts first for each.
	level order = iota
	// line predicts first + i × slope.
	line
	// step predicts the integer before plus slope. The first integer is first, and has no residual.
	step
	// bend predicts the integer before plus the difference before. The first integer is first, the difference before the
	// second is slope, and neither has a residual.
	bend
)

// known is how many integers of a series the order needs no residuals for.
func (o order) known() int {
	switch o {
	case step:
		return 1
	case bend:
		return 2
	default:
		return 0
	}
}

// prediction is an order with its parameters. shift is the number of low bits of a residual that are stored as they are;
// what is above is coded.
type prediction struct {
	order        order
	first, slope int64
	shift        uint8
}

const (
	fewSamples  = 9  // to estimate a spread from
	moreSamples = 48 // to choose an order by
)

// predict chooses the prediction of ints, and appends the residuals. Times are better told by a line than by their level.
func predict(ints []int64, times bool, to []int64) (prediction, []int64) {
	p := prediction{order: chooseOrder(ints, times), first: ints[0]}
	switch p.order {
	case line:
		p.slope = pace(ints)
	case bend:
		p.slope = ints[1] - ints[0]
	default:
	}
	begin := len(to)
	to = p.residuals(ints, to)
	rest := to[begin:]
	if len(rest) == 0 {
		return p, to
	}
	mean := int64(0)
	switch p.order {
	case bend:
	case step:
		mean = centre(rest, 16)
		p.slope = mean
	default:
		mean = centre(rest, 0)
		p.first += mean
	}
	// The median has three bits above the shift: few symbols, which all streams of a table have alike.
	var lengths [65]int32
	for i, r := range rest {
		r -= mean
		rest[i] = r
		lengths[bits.Len64(uint64(max(r, -r)))]++
	}
	for n, seen := 0, 0; n < len(lengths); n++ {
		if seen += int(lengths[n]); 2*seen > len(rest) {
			p.shift = uint8(min(maxShift, max(0, n-3)))
			break
		}
	}
	return p, to
}

// residuals appends the residuals of ints without those that are known.
func (p *prediction) residuals(ints, to []int64) []int64 {
	begin := len(to)
	rest := ints[min(p.order.known(), len(ints)):]
	to = slices.Grow(to, len(rest))[:begin+len(rest)]
	out := to[begin:][:len(rest)]
	switch p.order {
	case level:
		for i, m := range rest {
			out[i] = m - p.first
		}
	case line:
		at := p.first
		for i, m := range rest {
			out[i] = m - at
			at += p.slope
		}
	case step:
		last := ints[0]
		for i, m := range rest {
			out[i] = m - last
			last = m
		}
	case bend:
		last, d := ints[1], p.slope
		for i, m := range rest {
			out[i] = m - last - d
			last, d = m, m-last
		}
	}
	return to
}

// restore turns residuals into integers, in place. The first ones, which are known, have any value.
func (p *prediction) restore(ints []int64) {
	at, slope := p.first, p.slope
	switch p.order {
	case level:
		for i, r := range ints {
			ints[i] = at + r
		}
	case line:
		for i, r := range ints {
			ints[i] = at + r
			at += slope
		}
	case step:
		ints[0] = at
		rest := ints[1:]
		for i, r := range rest {
			at += slope + r
			rest[i] = at
		}
	case bend:
		ints[0] = at
		if len(ints) == 1 {
			return
		}
		at += slope
		ints[1] = at
		rest := ints[2:]
		for i, r := range rest {
			slope += r
			at += slope
			rest[i] = at
		}
	}
}

// still fills in the integers whose residuals are all 0.
func (p *prediction) still(ints []int64) {
	slope := p.slope
	if p.order == level {
		slope = 0
	}
	m := p.first
	for i := range ints {
		ints[i] = m
		m += slope
	}
}

// chooseOrder takes the order whose residuals have the fewest bits, by some of them. Residuals that are going to be centred
// are compared with each other, since the differences have the same spread, but for half a bit.
func chooseOrder(ints []int64, times bool) order {
	n := len(ints)
	if n < 3 {
		return step
	}
	flat, slope := level, int64(0)
	if times {
		flat, slope = line, pace(ints)
	}
	var steps, flats [moreSamples]int64
	count := min(moreSamples, n-2, max(16, n/12))
	apart, bend0 := uint(n-2)<<16/uint(count), 0
	for j := range count {
		i := 2 + int(uint(j)*apart>>16)
		d := ints[i] - ints[i-1]
		bent := d - (ints[i-1] - ints[i-2])
		steps[j], flats[j] = d, ints[i]-int64(i)*slope
		bend0 += bits.Len64(uint64(max(bent, -bent)))
	}
	step0, flat0 := differ(steps[:count]), differ(flats[:count])
	least := func(cost int) int { return cost + cost/16 + count/12 } // a guess by some must be better by more than chance
	best := step
	if flat == level {
		flat0 = least(flat0)
	}
	if flat0 < step0 {
		best, step0 = flat, flat0
	}
	if least(bend0+count/2) < step0 {
		best = bend
	}
	return best
}

// differ returns how many bits the differences of s have, of each element to one that is not near.
func differ(s []int64) int {
	sum, half := 0, (len(s)-1)/2
	for j, r := range s {
		k := j + half
		if k >= len(s) {
			k -= len(s)
		}
		d := r - s[k]
		sum += bits.Len64(uint64(max(d, -d)))
	}
	return sum
}

// pace is the slope of the straight line through ints with the least squares, or a rounder one that fits as well.
func pace(ints []int64) int64 {
	n := len(ints)
	if n < 2 {
		return 0
	}
	middle := float64(n-1) / 2
	var xy, xx, mean float64
	for i, m := range ints {
		x, y := float64(i)-middle, float64(m-ints[0])
		xy += x * y
		xx += x * x
		mean += y
	}
	mean /= float64(n)
	slope := xy / xx
	if !(math.Abs(slope) < 1<<40) {
		return 0
	}
	deviation := 0.0
	for i, m := range ints {
		deviation += math.Abs(float64(m-ints[0]) - mean - slope*(float64(i)-middle))
	}
	deviation /= float64(n)
	for _, round := range [...]float64{5000, 1000, 100, 10} { // ms
		if r := math.Round(slope/round) * round; r != 0 && math.Abs(r-slope)*float64(n) <= deviation {
			return int64(r)
		}
	}
	return int64(math.Round(slope))
}

// centre is the mean of the residuals that are not far from their median, or 0 if that saves fewer bits than it takes.
func centre(residuals []int64, takes float64) int64 {
	var some [fewSamples]int64
	n := len(residuals)
	for j := range some {
		some[j] = residuals[j*n/fewSamples]
	}
	mid := median(some)
	for j, r := range some {
		some[j] = max(r-mid, mid-r)
	}
	spread := median(some)
	if mid == 0 && spread == 0 {
		return 0
	}
	bound := int64(math.MaxInt64/2) / int64(n)
	if spread >= 0 && spread < bound/32-1 {
		bound = 16*spread + 16
	}
	sum, distance, near := int64(0), int64(0), 0
	for _, r := range residuals {
		if d := r - mid; d >= -bound && d <= bound {
			sum += d
			distance += max(d, -d)
			near++
		}
	}
	n = max(1, near)
	c := mid + int64(math.Round(float64(sum)/float64(n)))
	// Where noise is normal, being off by c takes c² / 2 ln 2 bits a residual, if the deviation is 1, and the mean distance is 0.80.
	if off := float64(c) * float64(n) / float64(distance); float64(near)*off*off*0.46 < takes {
		return 0
	}
	return c
}

// median returns the middle one of s. It compares always the same pairs, since a processor cannot foretell which of two is
// less (Devillard, "Fast median search", 1998).
func median(s [fewSamples]int64) int64 {
	a, b, c, d, e, f, g, h, i := s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8]
	a, b, c = sorted(a, b, c)
	d, e, f = sorted(d, e, f)
	g, h, i = sorted(g, h, i)
	low := max(a, d, g)
	high := min(c, f, i)
	_, middle, _ := sorted(b, e, h)
	_, middle, _ = sorted(low, middle, high)
	return middle
}

// sorted returns its arguments in ascending order.
func sorted(a, b, c int64) (int64, int64, int64) {
	a, b = min(a, b), max(a, b)
	b, c = min(b, c), max(b, c)
	a, b = min(a, b), max(a, b)
	return a, b, c
}
