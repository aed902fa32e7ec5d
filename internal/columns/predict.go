package columns

import (
	"math"
	"math/bits"
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
	fewSamples  = 15 // to estimate a spread from
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
	takes := 0.0 // bits
	if p.order == step {
		takes = 16
	}
	if mean := centre(rest, takes); mean != 0 && p.order != bend {
		if p.order == step {
			p.slope = mean
		} else {
			p.first += mean
		}
		for i := range rest {
			rest[i] -= mean
		}
	}
	// The median has three bits above the shift: few symbols, which all streams of a table have alike.
	var lengths [65]int
	for _, r := range rest {
		lengths[bits.Len64(uint64(max(r, -r)))]++
	}
	for n, seen := 0, 0; n < len(lengths); n++ {
		if seen += lengths[n]; 2*seen > len(rest) {
			p.shift = uint8(min(maxShift, max(0, n-3)))
			break
		}
	}
	return p, to
}

// residuals appends the residuals of ints without those that are known.
func (p *prediction) residuals(ints, to []int64) []int64 {
	switch p.order {
	case level:
		for _, m := range ints {
			to = append(to, m-p.first)
		}
	case line:
		at := p.first
		for _, m := range ints {
			to = append(to, m-at)
			at += p.slope
		}
	case step:
		last := ints[0]
		for _, m := range ints[1:] {
			to = append(to, m-last-p.slope)
			last = m
		}
	case bend:
		last, d := ints[1], p.slope
		for _, m := range ints[2:] {
			to = append(to, m-last-d)
			last, d = m, m-last
		}
	}
	return to
}

// restore turns residuals into integers, in place. The first ones, which are known, have any value.
func (p *prediction) restore(ints []int64) {
	switch p.order {
	case level:
		for i, r := range ints {
			ints[i] = p.first + r
		}
	case line:
		at := p.first
		for i, r := range ints {
			ints[i] = at + r
			at += p.slope
		}
	case step:
		m := p.first
		ints[0] = m
		for i, r := range ints[1:] {
			m += p.slope + r
			ints[1+i] = m
		}
	case bend:
		m, d := p.first, p.slope
		ints[0] = m
		if len(ints) == 1 {
			return
		}
		m += d
		ints[1] = m
		for i, r := range ints[2:] {
			d += r
			m += d
			ints[2+i] = m
		}
	}
}

// chooseOrder takes the order whose residuals have the fewest bits, by some of them.
func chooseOrder(ints []int64, times bool) order {
	n := len(ints)
	if n < 3 {
		return step
	}
	flat, slope := level, int64(0)
	if times {
		flat, slope = line, pace(ints)
	}
	var some [3][moreSamples]int64
	count := min(moreSamples, n-2, max(16, n/12))
	for j := range count {
		i := 2 + j*(n-2)/count
		d := ints[i] - ints[i-1]
		some[0][j] = d
		some[1][j] = ints[i] - int64(i)*slope
		some[2][j] = d - (ints[i-1] - ints[i-2])
	}
	best, least := step, math.MaxInt
	for k, o := range [...]order{step, flat, bend} {
		s := some[k][:count]
		mid := int64(0)
		if o != bend {
			mid, _ = middle(s, count)
		}
		cost := 0
		for _, r := range s {
			cost += bits.Len64(uint64(max(r-mid, mid-r)))
		}
		if o == level || o == bend { // a guess by some must be better by more than chance
			cost += cost/16 + count/12
		}
		if cost < least {
			best, least = o, cost
		}
	}
	return best
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
	few := min(fewSamples, len(residuals))
	mid, some := middle(residuals, few)
	for j, r := range some {
		some[j] = max(r-mid, mid-r)
	}
	spread := median(some[:few])
	if mid == 0 && spread == 0 {
		return 0
	}
	bound := int64(math.MaxInt64)
	if spread >= 0 && spread < 1<<58 {
		bound = 8*spread + 8
	}
	sum, near := 0.0, 0
	for _, r := range residuals {
		if d := r - mid; d >= -bound && d <= bound {
			sum += float64(d)
			near++
		}
	}
	c := mid + int64(math.Round(sum/float64(max(1, near))))
	// Where noise is normal, being off by c takes c² / 2 ln 2 bits a residual, if the deviation is 1, and the spread is 0.67.
	if off := float64(c) / float64(spread); float64(near)*off*off/3 < takes {
		return 0
	}
	return c
}

// middle returns the median of count elements of s, and these in some order.
func middle(s []int64, count int) (mid int64, some [moreSamples]int64) {
	for j := range count {
		some[j] = s[j*len(s)/count]
	}
	return median(some[:count]), some
}

// median of s by Hoare's selection. It reorders s.
func median(s []int64) int64 {
	low, high, k := 0, len(s)-1, len(s)/2
	for low < high {
		pivot := s[(low+high)/2]
		i, j := low, high
		for i <= j {
			for s[i] < pivot {
				i++
			}
			for s[j] > pivot {
				j--
			}
			if i <= j {
				s[i], s[j] = s[j], s[i]
				i++
				j--
			}
		}
		switch {
		case k <= j:
			high = j
		case k >= i:
			low = i
		default:
			return s[k]
		}
	}
	return s[k]
}
