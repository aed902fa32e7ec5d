package columns

import (
	"math"
	"math/rand/v2"

	"github.com/quern/quern/internal/metric"
)

// kind is a kind of data, as metrics of machines have it.
type kind struct {
	name string
	// shared is how many series of a source report together.
	shared int
	make   func(r *rand.Rand, i, n int, seconds float64) []float64
}

var kinds = []kind{
	{"walk", 100, walk},
	{"integers", 10, integers},
	{"counters", 100, counters},
	{"floats", 100, floats},
	{"constants", 100, constants},
}

// jitter says how times differ from a regular interval.
type jitter string

const (
	regular  jitter = "regular"
	ofSource jitter = "of a source" // by up to 5 %, for all series of a source alike
	ofSeries jitter = "of a series"
)

const startMs = 1_767_225_600_000 // 2026-01-01

// block makes count series with n samples each.
func (k kind) block(seed uint64, count, n int, intervalMs int64, j jitter) []Series {
	r := rand.New(rand.NewPCG(seed, 7))
	out := make([]Series, count)
	var times []int64
	for i := range out {
		if i%k.shared == 0 || j == ofSeries {
			times = make([]int64, n)
			phase := r.Int64N(intervalMs)
			for x := range times {
				times[x] = startMs + phase + int64(x)*intervalMs
				if j != regular {
					times[x] += r.Int64N(intervalMs/10+1) - intervalMs/20
				}
			}
		}
		values := k.make(r, i, n, float64(intervalMs)/1000)
		out[i] = Series{Schedule: metric.ScheduleID(1280 + i), Times: times[:len(values)], Values: values}
	}
	return out
}

// walk is a gauge of two decimals that takes each step of up to 1.00 alike: 7.65 bits.
func walk(r *rand.Rand, _, n int, _ float64) []float64 {
	x := 1000 + r.IntN(9000)
	out := make([]float64, n)
	for k := range out {
		x = min(9999, max(1000, x+r.IntN(201)-100))
		out[k] = float64(x) / 100
	}
	return out
}

// integers are whole percents of a normal walk, as TSBS makes its cpu-only data.
func integers(r *rand.Rand, _, n int, _ float64) []float64 {
	x := r.Float64() * 100
	out := make([]float64, n)
	for k := range out {
		x = min(100, max(0, x+r.NormFloat64()))
		out[k] = math.Trunc(x)
	}
	return out
}

// counters are bytes, requests, and seconds of a processor with two decimals, whose rates go up and down over the hours.
func counters(r *rand.Rand, i, n int, seconds float64) []float64 {
	phase, period := 2*math.Pi*r.Float64(), 3600*(1+5*r.Float64())
	up := 30 * 86400 * r.Float64()
	out := make([]float64, n)
	rate := func(k int) float64 { return 1 + 0.3*math.Sin(phase+2*math.Pi*float64(k)*seconds/period) }
	switch i % 3 {
	case 0:
		mean, spread := 2e5*math.Exp(2*r.NormFloat64()), 0.1+0.4*r.Float64()
		x := math.Trunc(mean * up)
		for k := range out {
			x += math.Trunc(mean * seconds * rate(k) * math.Exp(spread*r.NormFloat64()))
			out[k] = x
		}
	case 1:
		mean := 3 * math.Exp(2*r.NormFloat64())
		x := math.Trunc(mean * up)
		for k := range out {
			expected := mean * seconds * rate(k)
			x += max(0, math.Round(expected+math.Sqrt(expected)*r.NormFloat64()))
			out[k] = x
		}
	default:
		used := 0.05 + 0.6*r.Float64()
		x := math.Trunc(100 * used * up)
		for k := range out {
			x += max(0, math.Round(100*seconds*used*(rate(k)+0.05*r.NormFloat64())))
			out[k] = x / 100
		}
	}
	return out
}

// floats are half ratios of pages to a total, half a process in full precision.
func floats(r *rand.Rand, i, n int, _ float64) []float64 {
	out := make([]float64, n)
	const page = 4096
	if i%2 == 0 {
		total := page * math.Trunc((4<<30+60*(1<<30)*r.Float64())/page)
		used := page * math.Trunc(total*(0.2+0.6*r.Float64())/page)
		for k := range out {
			used = min(total, max(0, used+page*math.Trunc(2e-4*total*r.NormFloat64()/page)))
			out[k] = used / total
		}
		return out
	}
	mean, memory := math.Exp(2*r.NormFloat64()), 0.9+0.09*r.Float64()
	x := mean
	for k := range out {
		x = mean + memory*(x-mean) + 0.02*mean*r.NormFloat64()
		out[k] = x
	}
	return out
}

// constants are 60 % series that never change, and some of other kinds. A few end with a stale marker.
func constants(r *rand.Rand, i, n int, seconds float64) []float64 {
	var out []float64
	switch c := r.IntN(100); {
	case c < 60:
		v := [...]float64{0, 1, float64(r.IntN(1e6)), float64(r.IntN(1e5)) / 1000, 1.7e9 + 1e7*r.Float64()}[r.IntN(5)]
		out = make([]float64, n)
		for k := range out {
			out[k] = v
		}
	case c < 75:
		x, often := float64(r.IntN(1000)), 0.002+0.02*r.Float64()
		out = make([]float64, n)
		for k := range out {
			if r.Float64() < often {
				x += float64(1 + r.IntN(4))
			}
			out[k] = x
		}
	case c < 85:
		x := 10 + r.IntN(200)
		out = make([]float64, n)
		for k := range out {
			if r.Float64() < 0.4 {
				x = max(0, x+r.IntN(7)-3)
			}
			out[k] = float64(x)
		}
	case c < 95:
		out = walk(r, i, n, seconds)
	default:
		out = floats(r, 1, n, seconds)
	}
	if r.IntN(100) < 3 {
		out = out[:1+r.IntN(n)]
		out[len(out)-1] = math.Float64frombits(wellKnown[0])
	}
	return out
}
