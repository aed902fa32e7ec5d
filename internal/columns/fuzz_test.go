package columns

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

// FuzzRead: whatever the bytes are, the reader says the same of them as the reference does, series by series. Checksums are
// put right first, so that damage gets behind them.
func FuzzRead(f *testing.F) {
	var e Encoder
	for _, k := range kinds {
		for _, n := range []int{1, 5, 100} {
			f.Add(e.Append(nil, k.block(1, 5, n, 10_000, ofSource)))
		}
	}
	var r Reader
	f.Fuzz(func(t *testing.T, b []byte) {
		chunk := slices.Clone(b)
		want, err := refOpen(chunk)
		if err == nil {
			want.seal()
		}
		got := r.Open(chunk)
		require.Equal(t, err == nil, got == nil, "%v", got)
		if got != nil {
			require.ErrorIs(t, got, ErrCorrupt)
			return
		}
		if r.Samples() > 1<<16 {
			return // a few bytes may stand for many equal samples, which a caller charges before it reads
		}
		for i := range r.Len() {
			_, times, _, err := want.column(want.timeline[i], -1)
			start, ints, value, err2 := 0, []int64(nil), func(int, int64) float64 { return 0 }, err
			if err == nil {
				start, ints, value, err2 = want.column(want.timelines+i, len(times))
			}
			gotTimes, gotValues, got := r.Read(i, nil)
			require.Equal(t, err2 == nil, got == nil, "%v", got)
			if got != nil {
				require.ErrorIs(t, got, ErrCorrupt)
				continue
			}
			require.Len(t, gotTimes, len(ints))
			for k, m := range ints {
				require.Equal(t, times[start+k]+want.base, gotTimes[k])
				if v := value(k, m); math.Float64bits(v) != math.Float64bits(gotValues[k]) && !(v != v && gotValues[k] != gotValues[k]) {
					t.Fatalf("series %d, sample %d: %x instead of %x", i, k, math.Float64bits(gotValues[k]), math.Float64bits(v))
				}
			}
		}
	})
}

// FuzzRoundTrip: any times and values come back.
func FuzzRoundTrip(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), uint8(3), uint8(2))
	f.Add(slices.Repeat([]byte{0, 0, 0, 0, 0, 0, 0xf0, 0x3f}, 300), uint8(120), uint8(1))
	var e Encoder
	var r Reader
	f.Fuzz(func(t *testing.T, b []byte, length, shape uint8) {
		var block []Series
		for id := metric.ScheduleID(1); len(b) >= 8; id += metric.ScheduleID(1 + shape%3) {
			n := min(1+int(length), len(b)/8)
			s := Series{Schedule: id, Times: make([]int64, n), Values: make([]float64, n)}
			at := int64(shape)
			for k := range n {
				bits := binary.LittleEndian.Uint64(b[8*k:])
				s.Values[k] = math.Float64frombits(bits)
				if shape%2 == 1 {
					s.Values[k] = float64(int32(bits)) / 100
				}
				s.Times[k] = at
				at += 1 + int64(bits>>(60-shape%32))
			}
			if len(block) > 0 && shape%4 == 0 && len(block[0].Times) >= n {
				s.Times = block[0].Times[:n]
			}
			block = append(block, s)
			b = b[8*n:]
		}
		if len(block) == 0 || len(block) > MaxSeries {
			return
		}
		same(t, &r, e.Append(nil, block), block)
	})
}

// TestDamage: damage in a stream costs its series, or those of its timeline, and no other. Damage in the head is noticed.
func TestDamage(t *testing.T) {
	block := kinds[0].block(1, 6, 100, 10_000, ofSeries)
	for i := range 3 {
		block[i+1].Times = block[0].Times
	}
	var e Encoder
	chunk := e.Append(nil, block)
	ref, err := refOpen(slices.Clone(chunk))
	require.NoError(t, err)
	var r Reader
	for at := range chunk {
		bad := slices.Clone(chunk)
		bad[at] ^= 0x10
		if at < ref.head {
			require.ErrorIs(t, r.Open(bad), ErrCorrupt, "byte %d", at)
			continue
		}
		require.NoError(t, r.Open(bad))
		hit := slices.IndexFunc(ref.streams, func(s refStream) bool { return at < s.to })
		for i := range block {
			times, values, err := r.Read(i, nil)
			if hit == ref.timelines+i || hit == ref.timeline[i] {
				require.ErrorIs(t, err, ErrCorrupt, "byte %d", at)
				require.ErrorContains(t, err, fmt.Sprintf("schedule %d:", block[i].Schedule))
				continue
			}
			require.NoError(t, err)
			require.Equal(t, block[i].Times, times)
			require.Equal(t, block[i].Values, values)
		}
	}
	for n := range chunk {
		require.ErrorIs(t, r.Open(chunk[:n]), ErrCorrupt)
	}
}
