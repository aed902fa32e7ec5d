package columns

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// same requires that a chunk has the series, bit by bit.
func same(t testing.TB, r *Reader, chunk []byte, want []Series) {
	t.Helper()
	require.NoError(t, r.Open(chunk))
	require.Equal(t, len(want), r.Len())
	total := 0
	for i, s := range want {
		total += len(s.Times)
		require.Equal(t, s.Schedule, r.Schedule(i))
		at, ok := r.Find(s.Schedule)
		require.True(t, ok && at == i)
		times, values, err := r.Read(i, []float64{42})
		require.NoError(t, err)
		require.Equal(t, s.Times, times)
		require.Len(t, values, 1+len(s.Values))
		n, _, err := r.Count(i)
		require.NoError(t, err)
		require.Equal(t, len(s.Times), n)
		times, err = r.Times(i)
		require.NoError(t, err)
		require.Equal(t, s.Times, times)
		for k, v := range values[1:] {
			if math.Float64bits(v) != math.Float64bits(s.Values[k]) {
				t.Fatalf("series %d, sample %d: %x (%v) instead of %x (%v)", i, k, math.Float64bits(v), v, math.Float64bits(s.Values[k]), s.Values[k])
			}
		}
	}
	require.Equal(t, total, r.Samples())
}

// TestKinds: all kinds of data come back as they were, at any length and with any jitter.
func TestKinds(t *testing.T) {
	var e Encoder
	var r Reader
	for _, k := range kinds {
		for _, n := range []int{1, 2, 3, 7, 60, 97, 98, 99, 360} {
			for _, j := range []jitter{regular, ofSource, ofSeries} {
				block := k.block(3, 128, n, 10_000, j)
				chunk := e.Append([]byte("before"), block)
				require.Equal(t, "before", string(chunk[:6]))
				same(t, &r, chunk[6:], block)
			}
		}
	}
}

// TestAnyBits: patterns of bits of all kinds, mixed, with times of all kinds.
func TestAnyBits(t *testing.T) {
	special := []float64{
		math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 0, math.MaxFloat64, -math.MaxFloat64,
		math.SmallestNonzeroFloat64, 1e22, 1e23, 0.1, 0.1 + 0.2, 1 << 53, 1<<53 + 2, -1 << 63, metric.Tombstone(),
		math.Float64frombits(wellKnown[0]), math.Float64frombits(0xfff0000000000001),
	}
	random := rand.New(rand.NewPCG(1, 2))
	var e Encoder
	var r Reader
	for round := range 3000 {
		block := make([]Series, 1+random.IntN(12))
		id := metric.ScheduleID(random.Int64N(1000))
		for i := range block {
			n := 1 + random.IntN(50)
			if round%7 == 0 {
				n = 1 + random.IntN(400)
			}
			times, values := make([]int64, n), make([]float64, n)
			at := random.Int64N(1 << 40)
			if random.IntN(3) == 0 {
				at = math.MinInt64/4 + random.Int64N(1<<60)
			}
			wide := random.IntN(4) == 0
			for k := range n {
				times[k] = at
				if at += 1 + random.Int64N(20_000); wide {
					at += random.Int64N(1 << 50)
				}
				switch round % 6 {
				case 0:
					values[k] = math.Float64frombits(random.Uint64())
				case 1:
					values[k] = special[random.IntN(len(special))]
				case 2:
					values[k] = math.Round(1000*random.NormFloat64()) / 8
				case 3:
					values[k] = float64(random.Int64N(1<<uint(1+random.IntN(62)))) * 1e-3
				case 4:
					values[k] = float64(random.IntN(2000)-1000) / 8_345_600.5
				default:
					values[k] = float64(k / 9)
				}
				if random.IntN(40) == 0 {
					values[k] = special[random.IntN(len(special))]
				}
			}
			if i > 0 && random.IntN(2) == 0 { // a part of the times of another
				source := block[i-1].Times
				from := random.IntN(len(source))
				to := min(len(source), from+n)
				times, values = source[from:to], values[:to-from]
			}
			id += 1 + metric.ScheduleID(random.IntN(3)*random.IntN(1000))
			block[i] = Series{id, times, values}
		}
		same(t, &r, e.Append(nil, block), block)
	}
}
