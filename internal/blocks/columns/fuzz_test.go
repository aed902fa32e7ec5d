package columns

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
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

// TestLyingHeads: heads whose checksums are right, but whose numbers are not, are refused, and cost no more than their bytes. The
// reference refuses them too.
func TestLyingHeads(t *testing.T) {
	const many = 1 << 32
	var table []byte
	table = append(append(table, 1), binary.AppendUvarint(nil, tableSize)...)
	still := []byte{8, 0, 0x10} // decimal, step
	// head is that of two series with one timeline, in streams of 9 bytes each, but for what is changed.
	head := func(change func(n map[string]uint64)) []byte {
		n := map[string]uint64{
			"series": 2, "timelines": 1, "samples": 4, "left out": 0, "in a row": 2, "times": 2, "timeline": 0, "profiles": 1,
			"length 0": 9, "length 1": 9, "length 2": 9, "profile": 0,
		}
		change(n)
		var b []byte
		number := func(names ...string) {
			for _, name := range names {
				b = binary.AppendUvarint(b, n[name])
			}
		}
		number("series", "timelines", "samples")
		b = append(b, 0, 0) // base time and first id
		number("left out", "in a row", "times", "timeline")
		b = append(append(b, 1), table...)
		number("profiles")
		b = append(b, still...)
		number("profile", "length 0", "profile", "length 1", "profile", "length 2")
		chunk := append([]byte{Format, 0, 0, 0, 0}, b...)
		binary.LittleEndian.PutUint32(chunk[1:], crc32.Checksum(b, castagnoli))
		return append(chunk, make([]byte, 27)...)
	}
	var r Reader
	require.NoError(t, r.Open(head(func(map[string]uint64) {})), "the head is right")
	for name, changes := range map[string]map[string]uint64{
		"series beyond the limit":           {"series": many, "in a row": many, "times": many, "samples": many},
		"more series than samples":          {"samples": 1},
		"samples beyond the limit":          {"samples": many},
		"no series":                         {"series": 0},
		"no timeline":                       {"timelines": 0},
		"more timelines than series":        {"timelines": 3},
		"ids beyond the greatest":           {"left out": math.MaxInt64},
		"an empty run of ids":               {"in a row": 0},
		"more ids than series":              {"in a row": many},
		"an empty run of times":             {"times": 0},
		"more times than series":            {"times": many},
		"a timeline that is not there":      {"timeline": 1},
		"no profile":                        {"profiles": 0},
		"more profiles than columns":        {"profiles": many},
		"a profile that is not there":       {"profile": 1},
		"streams that end behind the end":   {"length 2": 10},
		"streams that end before the end":   {"length 2": 8},
		"a stream beyond the end":           {"length 1": many},
		"a stream beyond all numbers":       {"length 0": math.MaxUint64 - 8, "length 1": 27},
		"streams that together wrap around": {"length 0": 1 << 63, "length 1": 1 << 63, "length 2": 27},
	} {
		chunk := head(func(n map[string]uint64) {
			for k, v := range changes {
				n[k] = v
			}
		})
		require.ErrorIs(t, r.Open(chunk), ErrCorrupt, name)
		_, err := refOpen(chunk)
		require.Error(t, err, name)
		require.Less(t, testing.AllocsPerRun(10, func() { _ = r.Open(chunk) }), 20.0, name)
	}
}

// TestLyingStreams: a stream whose checksum is right, but whose numbers are not, costs its series alone, or those of its timeline.
func TestLyingStreams(t *testing.T) {
	const many = 1 << 32
	values := []float64{1, 5, math.NaN()}
	times := []int64{1000, 2000, 3000}
	block := []Series{{1, times, values}, {2, times[1:], values[1:]}, {3, []int64{7, 9}, []float64{2, 3}}}
	chunk := new(Encoder).Append(nil, block)
	ref, err := refOpen(slices.Clone(chunk))
	require.NoError(t, err)
	var r Reader
	for at, s := range ref.streams {
		for _, number := range []uint64{0, many, math.MaxUint64} {
			for place := checksumSize; s.from+place < s.to; place++ {
				bad := slices.Clone(chunk)
				stream := bad[s.from:s.to]
				copy(stream[place:], binary.AppendUvarint(nil, number))
				binary.LittleEndian.PutUint32(stream, crc32.Checksum(stream[checksumSize:], castagnoli))
				require.NoError(t, r.Open(bad))
				for i := range block {
					gotTimes, got, err := r.Read(i, nil)
					if at == ref.timelines+i || at == ref.timeline[i] {
						if err != nil {
							require.ErrorIs(t, err, ErrCorrupt)
						}
						require.LessOrEqual(t, len(got), r.Samples())
						continue
					}
					require.NoError(t, err)
					require.Equal(t, block[i].Times, gotTimes)
					require.True(t, slices.EqualFunc(block[i].Values, got, func(a, b float64) bool { return math.Float64bits(a) == math.Float64bits(b) }))
				}
			}
		}
	}
}
