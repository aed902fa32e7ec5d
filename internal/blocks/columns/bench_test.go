package columns

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/tsdb/chunkenc"
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

// BenchmarkColumns prints what a sample takes: bytes, and ns to encode it and to decode it with all others on one core. Beside it
// is what it takes in Gorilla's coding, which is Prometheus': a chunk for each series, which is the least that this can have. Both
// work in turns.
func BenchmarkColumns(b *testing.B) {
	eachBlock(b, func(b *testing.B, block []Series, samples int) {
		var e Encoder
		chunk := e.Append(nil, block)
		xor := xorChunks(b, block)
		xorBytes := 0
		for _, c := range xor {
			xorBytes += len(c.Bytes())
		}
		var r Reader
		var values []float64
		var encode, decode, xorEncode, xorDecode stopwatch
		for b.Loop() {
			encode.time(func() { chunk = e.Append(chunk[:0], block) })
			xorEncode.time(func() { xor = xorChunks(b, block) })
			decode.time(func() { values = readAll(b, &r, chunk, values) })
			xorDecode.time(func() { values = readXOR(b, xor, values) })
		}
		for _, m := range []struct {
			what, unit   string
			columns, xor float64
		}{
			{"size", "B/sample", float64(len(chunk)) / float64(samples), float64(xorBytes) / float64(samples)},
			{"encode", "ns/sample", encode.each(samples), xorEncode.each(samples)},
			{"decode", "ns/sample", decode.each(samples), xorDecode.each(samples)},
		} {
			b.ReportMetric(m.columns, m.what+"-"+m.unit)
			b.ReportMetric(m.xor, m.what+"-xor-"+m.unit)
			b.ReportMetric(m.columns/m.xor, m.what+"-ratio")
		}
		b.ReportMetric(0, "ns/op") // that of all four
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

func xorChunks(tb testing.TB, block []Series) []*chunkenc.XORChunk {
	tb.Helper()
	chunks := make([]*chunkenc.XORChunk, len(block))
	for i := range block {
		chunks[i] = chunkenc.NewXORChunk()
		a, err := chunks[i].Appender()
		require.NoError(tb, err)
		for k, t := range block[i].Times {
			a.Append(0, t, block[i].Values[k])
		}
	}
	return chunks
}

func readXOR(tb testing.TB, chunks []*chunkenc.XORChunk, values []float64) []float64 {
	tb.Helper()
	var it chunkenc.Iterator
	for _, c := range chunks {
		values = values[:0]
		for it = c.Iterator(it); it.Next() != chunkenc.ValNone; {
			_, v := it.At()
			values = append(values, v)
		}
		require.NoError(tb, it.Err())
	}
	return values
}

// TestXOR: what the benchmark compares with holds the same samples.
func TestXOR(t *testing.T) {
	for _, k := range kinds {
		block := k.block(1, 5, 360, 10_000, ofSeries)
		for i, c := range xorChunks(t, block) {
			require.Equal(t, len(block[i].Times), c.NumSamples())
			got := readXOR(t, []*chunkenc.XORChunk{c}, nil)
			require.True(t, slices.EqualFunc(block[i].Values, got, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }))
		}
	}
}
