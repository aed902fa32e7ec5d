package blocks

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/quern/quern/internal/metric"
)

// shapes returns the chunks that Quern writes most: one flush of a block, and a block with an hour
// of history, for each common kind of values.
func shapes() []struct {
	name    string
	samples []metric.Sample
} {
	const start = 1_732_161_600_000
	build := func(schedules, times int, value func(r *rand.Rand, schedule, i int) float64) []metric.Sample {
		r := rand.New(rand.NewPCG(1, 2))
		var out []metric.Sample
		for s := range schedules {
			for i := range times {
				out = append(out, metric.Sample{
					Schedule: metric.ScheduleID(1280 + s), TimeMs: start + int64(i)*60_000, Value: value(r, s, i),
				})
			}
		}
		return out
	}
	gauge := func(r *rand.Rand, _, _ int) float64 { return float64(r.IntN(10_000)) / 100 }
	random := func(r *rand.Rand, _, _ int) float64 { return math.Float64frombits(r.Uint64() &^ (1 << 62)) }
	counters := map[int]float64{}
	counter := func(r *rand.Rand, s, _ int) float64 {
		counters[s] += float64(r.IntN(5000))
		return counters[s]
	}
	constant := func(_ *rand.Rand, s, _ int) float64 { return float64(s) }
	mixed := func(r *rand.Rand, s, i int) float64 {
		return []func(*rand.Rand, int, int) float64{gauge, counter, constant, func(r *rand.Rand, _, _ int) float64 { return r.Float64() }}[s%4](r, s, i)
	}
	return []struct {
		name    string
		samples []metric.Sample
	}{
		{"flush/gauge", build(128, 1, gauge)},
		{"flush/random", build(128, 1, random)},
		{"flush/mixed", build(128, 1, mixed)},
		{"hour/gauge", build(128, 60, gauge)},
		{"hour/counter", build(128, 60, counter)},
		{"hour/constant", build(128, 60, constant)},
		{"hour/random", build(128, 60, random)},
		{"hour/mixed", build(128, 60, mixed)},
	}
}

func reportSamples(b *testing.B, n int) {
	b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds()/1e6, "Msamples/s")
}

func BenchmarkAppendSamples(b *testing.B) {
	for _, s := range shapes() {
		b.Run(s.name, func(b *testing.B) {
			var dst []byte
			for b.Loop() {
				dst = AppendSamples(dst[:0], s.samples)
			}
			reportSamples(b, len(s.samples))
			b.ReportMetric(float64(len(dst))/float64(len(s.samples)), "bytes/sample")
		})
	}
}

func BenchmarkDecodeSamples(b *testing.B) {
	for _, s := range shapes() {
		b.Run(s.name, func(b *testing.B) {
			chunk := AppendSamples(nil, s.samples)
			var dst []metric.Sample
			for b.Loop() {
				dst, _ = DecodeSamples(dst[:0], chunk)
			}
			reportSamples(b, len(s.samples))
		})
	}
}

func BenchmarkSampleSet(b *testing.B) {
	for _, flushes := range []int{1, 60} {
		b.Run(fmt.Sprintf("flushes=%d", flushes), func(b *testing.B) {
			var chunks [][]byte
			r := rand.New(rand.NewPCG(1, 2))
			ids := Range{Start: 1280, End: 1408}
			for i := range flushes {
				var samples []metric.Sample
				for id := ids.Start; id < ids.End; id++ {
					for j := range 60 / flushes {
						samples = append(samples, metric.Sample{Schedule: id, TimeMs: int64(i*60+j) * 1000, Value: float64(r.IntN(1000)) / 100})
					}
				}
				chunks = append(chunks, AppendSamples(nil, samples))
			}
			var set SampleSet
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				set.Reset(ids)
				for _, chunk := range chunks {
					if err := set.Add(chunk); err != nil {
						b.Fatal(err)
					}
				}
				n = 0
				for _, samples := range set.Series() {
					n += len(samples)
				}
			}
			reportSamples(b, n)
		})
	}
}
