package columns

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// stopwatch has the least time of one piece of work: what it takes when nothing else gets in its way.
type stopwatch time.Duration

func (s *stopwatch) time(do func()) {
	began := time.Now()
	do()
	if took := stopwatch(time.Since(began)); *s == 0 || took < *s {
		*s = took
	}
}

// each returns the time for each of n samples, in ns.
func (s stopwatch) each(n int) float64 { return float64(s) / float64(n) }

// BenchmarkColumns prints what a sample takes: bytes, and ns to encode it and to decode it with all others on one core.
func BenchmarkColumns(b *testing.B) {
	eachBlock(b, func(b *testing.B, block []Series, samples int) {
		var e Encoder
		chunk := e.Append(nil, block)
		var r Reader
		var values []float64
		var encode, decode stopwatch
		for b.Loop() {
			encode.time(func() { chunk = e.Append(chunk[:0], block) })
			decode.time(func() { values = readAll(b, &r, chunk, values) })
		}
		b.ReportMetric(float64(len(chunk))/float64(samples), "size-B/sample")
		b.ReportMetric(encode.each(samples), "encode-ns/sample")
		b.ReportMetric(decode.each(samples), "decode-ns/sample")
		b.ReportMetric(0, "ns/op") // that of both
	})
}

// BenchmarkOneColumn reads one series of a chunk, in other memory each time: as a query does.
func BenchmarkOneColumn(b *testing.B) {
	eachBlock(b, func(b *testing.B, block []Series, _ int) {
		chunk := new(Encoder).Append(nil, block)
		var r Reader
		var values []float64
		var one stopwatch
		i := 0
		for b.Loop() {
			one.time(func() {
				err := r.Open(chunk)
				if err == nil {
					_, values, err = r.Read(i%r.Len(), values[:0])
				}
				if err != nil {
					b.Fatal(err)
				}
			})
			i += 7
		}
		b.ReportMetric(one.each(1), "ns/op")
	})
}

// eachBlock runs a benchmark on all kinds of data, with an hour every 10 s and every minute, and on all kinds of times.
func eachBlock(b *testing.B, run func(b *testing.B, block []Series, samples int)) {
	for _, k := range kinds {
		for _, n := range []int{360, 60} {
			for _, j := range []jitter{regular, ofSource, ofSeries} {
				block, samples := k.block(1, 128, n, 3_600_000/int64(n), j), 0
				for i := range block {
					samples += len(block[i].Times)
				}
				b.Run(fmt.Sprintf("%s/%d/%s", k.name, n, j), func(b *testing.B) { run(b, block, samples) })
			}
		}
	}
}

func readAll(tb testing.TB, r *Reader, chunk []byte, values []float64) []float64 {
	tb.Helper()
	require.NoError(tb, r.Open(chunk))
	for i := range r.Len() {
		var err error
		if _, values, err = r.Read(i, values[:0]); err != nil {
			tb.Fatal(err)
		}
	}
	return values
}
