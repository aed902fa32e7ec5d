package blocks

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

func TestSamplesRoundTrip(t *testing.T) {
	for _, s := range shapes() {
		t.Run(s.name, func(t *testing.T) {
			prefix := []byte("prefix")
			chunk := AppendSamples(prefix, s.samples)
			require.Equal(t, "prefix", string(chunk[:len(prefix)]))
			chunk = chunk[len(prefix):]

			kept := []metric.Sample{{Schedule: -1}}
			got, err := DecodeSamples(kept, chunk)
			require.NoError(t, err)
			require.Equal(t, kept[0], got[0])
			requireSameSamples(t, s.samples, got[1:])

			r := reader{b: chunk}
			requireSameSamples(t, s.samples, r.samples())
		})
	}
	assert.Empty(t, AppendSamples(nil, nil))
	assert.Empty(t, AppendRollups(nil, nil))
}

// README and design rely on these sizes of one flush of a block.
func TestChunkSize(t *testing.T) {
	limits := map[string]float64{ // bytes per sample
		"flush/random": 1300.0 / 128, "flush/gauge": 3.5, "hour/gauge": 3.1, "hour/counter": 3.1, "hour/constant": 1.1,
	}
	for _, s := range shapes() {
		if limit, ok := limits[s.name]; ok {
			chunk := AppendSamples(nil, s.samples)
			assert.LessOrEqual(t, float64(len(chunk))/float64(len(s.samples)), limit, s.name)
		}
	}
}

// Every number of up to 15 digits and 6 places is a decimal and is restored exactly.
func TestDecimals(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 100_000 {
		m := r.Int64N(1e15) >> r.IntN(50)
		if r.IntN(2) == 0 {
			m = -m
		}
		v := float64(m) / pow10[r.IntN(maxPlaces+1)]
		got, places, ok := fewestPlaces(v)
		if math.Signbit(v) && v == 0 {
			require.False(t, ok)
			continue
		}
		require.True(t, ok, "%v", v)
		require.Equal(t, math.Float64bits(v), math.Float64bits(float64(got)/pow10[places]))
	}
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), math.Pi, 1e-7, 1 << 60} {
		_, _, ok := fewestPlaces(v)
		assert.False(t, ok, "%v", v)
	}
}

func exampleRollups() []metric.RollupRow {
	r := rand.New(rand.NewPCG(5, 6))
	var rows []metric.RollupRow
	for s := range 20 {
		for i := range 6 {
			row := metric.RollupRow{Schedule: metric.ScheduleID(128 + s*s), TimeMs: 1_732_161_600_000 + int64(i)*3_600_000}
			row.Count, row.Sum, row.Min, row.Max = 60, r.NormFloat64()*1e6, -r.Float64(), float64(r.IntN(1000))/10
			row.First, row.Last, row.Increase = row.Min, row.Max, math.Inf(1)
			row.Sketch = []byte("sketch")[:r.IntN(7)]
			row.FirstMs, row.LastMs = row.TimeMs+r.Int64N(1000), row.TimeMs+3_600_000-r.Int64N(1000)
			row.Partial, row.NonFinite = r.IntN(4) == 0, r.IntN(4) == 0
			rows = append(rows, row)
		}
	}
	return rows
}

func TestRollupsRoundTrip(t *testing.T) {
	rows := exampleRollups()
	chunk := AppendRollups([]byte{9}, rows)[1:]
	got, err := decodeRollups(nil, chunk)
	require.NoError(t, err)
	requireSameRollups(t, rows, got)
	for _, row := range got {
		assert.Equal(t, len(row.Sketch), cap(row.Sketch), "room to append would reach into the next row")
	}
}

// decoders holds the three decoders under one signature.
var decoders = map[string]func(b []byte) error{
	"samples": func(b []byte) error {
		kept := []metric.Sample{{Schedule: 4, TimeMs: 5, Value: 6}}
		out, err := DecodeSamples(kept, b)
		if err != nil && len(out) != 1 {
			panic("a failed decode changed its destination")
		}
		return err
	},
	"rollups": func(b []byte) error {
		out, err := decodeRollups(make([]metric.RollupRow, 1), b)
		if err != nil && len(out) != 1 {
			panic("a failed decode changed its destination")
		}
		return err
	},
	"ids": func(b []byte) error {
		_, err := DecodeIDs(b)
		return err
	},
}

func packed() map[string][]byte {
	return map[string][]byte{
		"samples": AppendSamples(nil, shapes()[2].samples),
		"rollups": AppendRollups(nil, exampleRollups()[:20]),
		"ids":     AppendIDs(nil, []metric.ScheduleID{1280, 1281, 1400}),
	}
}

func TestEverySingleBitOfDamageIsFound(t *testing.T) {
	for name, b := range packed() {
		require.NoError(t, decoders[name](b))
		for bit := range 8 * len(b) {
			b[bit/8] ^= 1 << (bit % 8)
			require.ErrorIs(t, decoders[name](b), ErrCorrupt, "%s, bit %d", name, bit)
			b[bit/8] ^= 1 << (bit % 8)
		}
	}
}

func TestEveryCutIsFound(t *testing.T) {
	for name, b := range packed() {
		for n := range b {
			require.ErrorIs(t, decoders[name](b[:n]), ErrCorrupt, "%s, first %d bytes", name, n)
		}
		require.ErrorIs(t, decoders[name](append(b, 0)), ErrCorrupt, name)
	}
}

// seal prepends a valid header to a body, so that only the body can fail to decode.
func seal(format byte, body ...byte) []byte {
	chunk := append(openChunk(nil), body...)
	sealChunk(chunk, format)
	return chunk
}

func TestHostileBodies(t *testing.T) {
	long := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f} // a varint beyond 64 bits
	huge := binary.AppendUvarint(nil, math.MaxUint64)
	zeros := make([]byte, 40)
	cat := slices.Concat[[]byte]
	for name, b := range map[string][]byte{
		"nothing":                     seal(formatSamples),
		"no samples":                  seal(formatSamples, 0, 0, 0),
		"a count beyond the bytes":    seal(formatSamples, cat(huge, zeros)...),
		"a count beyond the samples":  seal(formatSamples, 3, 0, 0, 0x40),
		"a base schedule too large":   seal(formatSamples, cat([]byte{1}, huge, []byte{0, 0x40})...),
		"a base time too long":        seal(formatSamples, cat([]byte{1, 0}, long, []byte{0x40})...),
		"the first sample not next":   seal(formatSamples, 1, 0, 0, 0x00),
		"unknown schedule bits":       seal(formatSamples, 1, 0, 0, 0xc0),
		"unknown time bits":           seal(formatSamples, 1, 0, 0, 0x60),
		"a schedule that stays":       seal(formatSamples, 1, 0, 0, 0x80, 0),
		"a schedule that goes back":   seal(formatSamples, cat([]byte{1, 0, 0, 0x80}, huge)...),
		"a time that stays":           seal(formatSamples, 2, 0, 0, 0x40, 0x00),
		"a time that goes back":       seal(formatSamples, 2, 0, 0, 0x40, 0x10, 1),
		"a value cut off":             seal(formatSamples, 1, 0, 0, 0x48, 1, 2, 3),
		"a decimal cut off":           seal(formatSamples, 1, 0, 0, 0x49, 0x80),
		"a decimal of nine bytes":     seal(formatSamples, cat([]byte{1, 0, 0, 0x49}, huge[:8], []byte{0})...),
		"bytes after the last":        seal(formatSamples, 1, 0, 0, 0x40, 0),
		"many bytes behind the last":  seal(formatSamples, cat([]byte{1, 0, 0, 0x40}, zeros)...),
		"rows beyond the bytes":       seal(formatRollups, cat(huge, zeros)...),
		"no rows":                     seal(formatRollups, cat([]byte{0}, zeros)...),
		"a row cut off":               seal(formatRollups, 1, 0, 0, 1, 0, 0, 0),
		"a row without its values":    seal(formatRollups, 1, 0, 0, 1, 8, 0, 0, 1, 2),
		"a row twice":                 seal(formatRollups, cat([]byte{2}, make([]byte, 14))...),
		"a sketch beyond the bytes":   seal(formatRollups, cat([]byte{1, 0, 0, 1, 0, 0, 0}, huge)...),
		"bytes after the last row":    seal(formatRollups, cat([]byte{1}, make([]byte, 8))...),
		"ids beyond the bytes":        seal(formatIDs, huge...),
		"an id twice":                 seal(formatIDs, 2, 1, 0),
		"an id beyond an int64":       seal(formatIDs, cat([]byte{1}, huge)...),
		"an id cut off":               seal(formatIDs, 1, 0x80),
		"bytes after the last id":     seal(formatIDs, 1, 0, 0),
		"bytes where no id should be": seal(formatIDs, 0, 0),
		"an unknown format":           seal(0x7f, 0),
	} {
		for kind, decode := range decoders {
			assert.ErrorIs(t, decode(b), ErrCorrupt, "%s as %s", name, kind)
		}
	}
}

// Decoders allocate by the count, so they first check it against the bytes: at most one sample per
// byte.
func TestDamagedCountAllocatesLittle(t *testing.T) {
	body := append(binary.AppendUvarint(nil, 1000), make([]byte, 1000)...)
	out, err := DecodeSamples(nil, seal(formatSamples, body...))
	require.ErrorIs(t, err, ErrCorrupt)
	assert.Zero(t, cap(out))

	body[0], body[1] = 0xff, 0x7f
	_, err = DecodeSamples(nil, seal(formatSamples, body...))
	require.ErrorIs(t, err, ErrCorrupt)
}

func TestCodecsDoNotAllocateInSteadyState(t *testing.T) {
	samples, rows := shapes()[7].samples, exampleRollups()
	var (
		chunk   []byte
		decoded []metric.Sample
		rollups []metric.RollupRow
	)
	run := func() {
		chunk = AppendSamples(chunk[:0], samples)
		decoded, _ = DecodeSamples(decoded[:0], chunk)
		chunk = AppendRollups(chunk[:0], rows)
		rollups, _ = decodeRollups(rollups[:0], chunk)
	}
	run()
	assert.Zero(t, testing.AllocsPerRun(10, run))
}

// samplesFrom derives samples from arbitrary bytes. A few bits choose how far schedule and time
// move and what kind of value follows, so that a fuzzer reaches every branch.
func samplesFrom(b []byte) []metric.Sample {
	var out []metric.Sample
	take := func(n int) (v uint64) {
		for range min(n, len(b)) {
			v = v<<8 | uint64(b[0])
			b = b[1:]
		}
		return v
	}
	s := metric.Sample{}
	for len(b) > 0 {
		c := take(1)
		moved := metric.ScheduleID([]uint64{0, 1, take(int(c & 1)), take(int(c & 7))}[c&3] & math.MaxInt64)
		if next := s.Schedule + moved; next >= s.Schedule {
			s.Schedule = next
		}
		s.TimeMs += []int64{0, 1000, int64(take(1)), int64(take(int(c >> 4)))}[c>>2&3]
		switch c >> 4 & 3 {
		case 0:
			s.Value = float64(int64(take(2))) / pow10[take(1)&7]
		case 1:
			s.Value = math.Float64frombits(take(8))
		case 2:
			s.Value += float64(take(1))
		}
		out = append(out, s)
	}
	slices.SortStableFunc(out, metric.CompareSamples)
	return slices.CompactFunc(out, func(a, b metric.Sample) bool { return metric.CompareSamples(a, b) == 0 })
}

func FuzzSamplesRoundTrip(f *testing.F) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 40 {
		b := make([]byte, r.IntN(200))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		f.Add(b, int64(r.IntN(100)), int64(r.IntN(300)))
	}
	f.Fuzz(func(t *testing.T, b []byte, from, to int64) {
		samples := samplesFrom(b)
		if len(samples) == 0 {
			return
		}
		chunk := AppendSamples(nil, samples)
		got, err := DecodeSamples(nil, chunk)
		require.NoError(t, err)
		requireSameSamples(t, samples, got)
		r := reader{b: chunk}
		requireSameSamples(t, samples, r.samples())

		ids := Range{metric.ScheduleID(from), metric.ScheduleID(to)}
		got, err = DecodeSamplesIn(nil, chunk, ids)
		require.NoError(t, err)
		want := slices.DeleteFunc(samples, func(s metric.Sample) bool { return !ids.Contains(s.Schedule) })
		requireSameSamples(t, want, got)
	})
}

// DecodeSamples and the second implementation accept the same bodies and read the same samples from
// them. The samples survive another round of encoding and decoding.
func FuzzDecodeSamples(f *testing.F) {
	for _, s := range shapes() {
		f.Add(AppendSamples(nil, s.samples[:12])[headerSize:])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		require.ErrorIs(t, decoders["samples"](append([]byte{formatSamples, 1, 2, 3, 4}, body...)), ErrCorrupt)
		chunk := seal(formatSamples, body...)
		got, err := DecodeSamples(nil, chunk)
		r := reader{b: chunk}
		var want []metric.Sample
		ok := r.read(func() { want = r.samples() })
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		requireSameSamples(t, want, got)
		again, err := DecodeSamples(nil, AppendSamples(nil, got))
		require.NoError(t, err)
		requireSameSamples(t, got, again)
	})
}

func FuzzDecodeRollups(f *testing.F) {
	f.Add(AppendRollups(nil, exampleRollups()[:2])[headerSize:])
	f.Add(AppendRollups(nil, exampleRollups()[117:])[headerSize:])
	f.Fuzz(func(t *testing.T, body []byte) {
		chunk := seal(formatRollups, body...)
		got, err := decodeRollups(nil, chunk)
		r := reader{b: chunk}
		var want []metric.RollupRow
		ok := r.read(func() { want = r.rollups() })
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		requireSameRollups(t, want, got)
		again, err := decodeRollups(nil, AppendRollups(nil, got))
		require.NoError(t, err)
		requireSameRollups(t, got, again)
	})
}

func FuzzDecodeIDs(f *testing.F) {
	f.Add(AppendIDs(nil, []metric.ScheduleID{1280, 1281, 1400})[headerSize:])
	f.Add(AppendIDs(nil, nil)[headerSize:])
	f.Fuzz(func(t *testing.T, body []byte) {
		b := seal(formatIDs, body...)
		got, err := DecodeIDs(b)
		r := reader{b: b}
		var want []metric.ScheduleID
		ok := r.read(func() { want = r.ids() })
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			require.ErrorIs(t, err, ErrCorrupt)
			return
		}
		require.Equal(t, want, got)
		again, err := DecodeIDs(AppendIDs(nil, got))
		require.NoError(t, err)
		require.Equal(t, got, again)
	})
}
