package blocks

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// minRowBytes is the minimum size of a packed row: three bytes of value kinds and one byte each for
// schedule, time, count and the length of the sketch.
const minRowBytes = 3 + 4

// AppendRollups appends a chunk of roll-up rows to dst. The rows MUST be sorted by schedule, then
// time. No two may have the same schedule and time, and none a negative schedule. Without rows
// nothing is appended. decodeRollups restores all floats bit by bit. docs/format/chunk.md has the
// bytes.
func AppendRollups(dst []byte, rows []metric.RollupRow) []byte {
	if len(rows) == 0 {
		return dst
	}
	start := len(dst)
	dst = openChunk(dst)
	dst = binary.AppendUvarint(dst, uint64(len(rows)))
	var schedule metric.ScheduleID
	var timeMs int64
	for i := range rows {
		r := &rows[i]
		dst = binary.AppendUvarint(dst, uint64(r.Schedule-schedule))
		dst = binary.AppendVarint(dst, r.TimeMs-timeMs)
		dst = AppendRollup(dst, r)
		schedule, timeMs = r.Schedule, r.TimeMs
	}
	sealChunk(dst[start:], formatRollups)
	return dst
}

// These bits of the first field of a roll-up are flags; the number of samples is above them.
const (
	rollupPartial   = 1 << 0
	rollupNonFinite = 1 << 1
	rollupFlagBits  = 2
)

// AppendRollup appends a row without its schedule and time, as a chunk of rows has it, to dst. ParseRollup restores all floats bit
// by bit.
func AppendRollup(dst []byte, r *metric.RollupRow) []byte {
	samples := r.Count << rollupFlagBits
	if r.Partial {
		samples |= rollupPartial
	}
	if r.NonFinite {
		samples |= rollupNonFinite
	}
	dst = binary.AppendUvarint(dst, samples)
	if r.Count > 0 {
		dst = binary.AppendVarint(dst, r.FirstMs-r.TimeMs)
		dst = binary.AppendVarint(dst, r.LastMs-r.FirstMs)
	}
	kinds := len(dst)
	dst = append(dst, 0, 0, 0)
	var last uint64
	for j, v := range rollupValues(r) {
		var kind byte
		now := math.Float64bits(v)
		dst, kind = appendValue(dst, v, now^last)
		last = now
		dst[kinds+j/2] |= kind << (4 * (j % 2))
	}
	dst = binary.AppendUvarint(dst, uint64(len(r.Sketch)))
	return append(dst, r.Sketch...)
}

// ParseRollup decodes what AppendRollup wrote of a row of this time. The sketch aliases b. The error is ErrCorrupt.
func ParseRollup(b []byte, timeMs int64) (metric.Rollup, error) {
	d := fields{b: b}
	r := d.rollup(timeMs)
	if d.bad || len(d.b) != 0 {
		return metric.Rollup{}, fmt.Errorf("%w: roll-up of %d bytes", ErrCorrupt, len(b))
	}
	return r, nil
}

// rollupValues returns the floats of a row in their stored order. Neighbours are often equal and
// then take no bytes: all of them for a gauge that did not change.
func rollupValues(r *metric.RollupRow) [6]float64 {
	return [6]float64{r.Min, r.Max, r.First, r.Last, r.Sum, r.Increase}
}

// appendValue appends v in the shorter of the two forms of AppendSamples and returns its kind. x is
// the XOR of the bits of v and of the value before it.
func appendValue(dst []byte, v float64, x uint64) (_ []byte, kind byte) {
	k := xorLen(x)
	if k > 0 {
		if m, places, ok := fewestPlaces(v); ok && uvarintLen(zigzag(m)) <= k {
			return binary.AppendVarint(dst, m), byte(valueDecimal + places)
		}
	}
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], x)
	return append(dst, b[:k]...), byte(k)
}

// decodeRollups appends the rows of a chunk to dst. Their sketches alias chunk, which must not
// change while they are used. On error decodeRollups returns ErrCorrupt and dst unchanged.
func decodeRollups(dst []metric.RollupRow, chunk []byte) ([]metric.RollupRow, error) {
	b, count, err := unseal(chunk, formatRollups)
	if err != nil {
		return dst, err
	}
	if count == 0 || count > len(b)/minRowBytes {
		return dst, fmt.Errorf("%w: %d rows in %d bytes", ErrCorrupt, count, len(b))
	}
	out := slices.Grow(dst, count)
	d := fields{b: b}
	var schedule metric.ScheduleID
	var timeMs int64
	for i := range count {
		stepID := d.uvarint()
		stepMs := d.varint()
		r := metric.RollupRow{Schedule: schedule + metric.ScheduleID(stepID), TimeMs: timeMs + stepMs}
		ascends := r.Schedule > schedule || r.Schedule == schedule && (i == 0 || r.TimeMs > timeMs)
		if r.Rollup = d.rollup(r.TimeMs); d.bad || !ascends {
			return dst, corruptRow(i)
		}
		schedule, timeMs = r.Schedule, r.TimeMs
		out = append(out, r)
	}
	if len(d.b) != 0 {
		return dst, fmt.Errorf("%w: %d bytes after the last row", ErrCorrupt, len(d.b))
	}
	return out, nil
}

func corruptRow(i int) error { return fmt.Errorf("%w at row %d", ErrCorrupt, i) }

// fields decodes the fields of a body one after another. After the first field that does not fit,
// bad is set and all further results are zero.
type fields struct {
	b   []byte
	bad bool
}

func (d *fields) uvarint() uint64 {
	if len(d.b) > 0 && d.b[0] < 0x80 { // as most are
		v := d.b[0]
		d.b = d.b[1:]
		return uint64(v)
	}
	return d.longer()
}

// longer is uvarint for several bytes.
func (d *fields) longer() uint64 {
	v, w := binary.Uvarint(d.b)
	if w <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[w:]
	return v
}

func (d *fields) varint() int64 { return unzigzag(d.uvarint()) }

// bytes returns the next n bytes, without capacity to append behind them.
func (d *fields) bytes(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	out := d.b[:n:n]
	d.b = d.b[n:]
	return out
}

// rollup decodes what AppendRollup wrote of a row of this time.
func (d *fields) rollup(timeMs int64) (r metric.Rollup) {
	samples := d.uvarint()
	r.Count, r.Partial, r.NonFinite = samples>>rollupFlagBits, samples&rollupPartial != 0, samples&rollupNonFinite != 0
	if r.Count > 0 {
		r.FirstMs = timeMs + d.varint()
		r.LastMs = r.FirstMs + d.varint()
	}
	kinds := d.bytes(3)
	if d.bad {
		return r
	}
	var last uint64
	for j, v := range [...]*float64{&r.Min, &r.Max, &r.First, &r.Last, &r.Sum, &r.Increase} {
		*v = d.value(kinds[j/2]>>(4*(j%2))&valueMask, last)
		last = math.Float64bits(*v)
	}
	if size := d.uvarint(); size > 0 {
		r.Sketch = d.bytes(size)
	}
	return r
}

func (d *fields) value(kind byte, last uint64) float64 {
	switch {
	case kind == 0:
		return math.Float64frombits(last)
	case kind >= valueDecimal:
		return float64(d.varint()) / pow10[kind-valueDecimal]
	case len(d.b) >= 8:
		x := binary.LittleEndian.Uint64(d.b) & (1<<(8*kind) - 1)
		d.b = d.b[kind:]
		return math.Float64frombits(last ^ x)
	}
	var word [8]byte
	copy(word[:], d.bytes(uint64(kind)))
	return math.Float64frombits(last ^ binary.LittleEndian.Uint64(word[:]))
}
