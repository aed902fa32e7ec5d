package columns

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// Encoder writes chunks. It keeps its buffers, and is not for concurrent use.
type Encoder struct {
	columns   []column // timelines, then series
	residuals []int64  // of all columns
	numbers   numbers
	coded     []*column // those with residuals
	ranks     []uint64  // of these: bits for a residual, as a float64, with the position in coded as the low bits
	tables    []table
	bits      []byte // of a column's residuals
	profiles  [][profileSize]byte
	timelines [][]int64 // the times that several series have; empty between calls
}

// column is a column between its two passes: the first makes residuals and counts their symbols, the second, with the
// tables, writes them.
type column struct {
	profile
	stream
	histogram // of the residuals

	profileAt  int // in Encoder.profiles
	residuals  []int64
	exceptions []byte
	bytes      []byte
}

// stream is what stands before the residuals of a column.
type stream struct {
	samples, start int   // start is that of a part
	first, slope   int64 // see order
	unit           uint64
	divisor        float64
}

// place is where a series has its times.
type place struct{ timeline, start int }

// Append appends a chunk of the series to dst. They are at least one, at most MaxSeries, with ascending schedules, and have
// at most MaxSamples samples. Append does not keep its argument.
func (e *Encoder) Append(dst []byte, series []Series) []byte {
	base, total := series[0].Times[0], 0
	for i := range series {
		s := &series[i]
		if len(s.Times) != len(s.Values) || len(s.Times) == 0 || i > 0 && s.Schedule <= series[i-1].Schedule {
			panic(fmt.Sprintf("series %d of a chunk has %d times, %d values, or comes out of order", s.Schedule, len(s.Times), len(s.Values)))
		}
		base = min(base, s.Times[0])
		total += len(s.Times)
	}
	if len(series) > MaxSeries || total > MaxSamples {
		panic(fmt.Sprintf("a chunk of %d series with %d samples", len(series), total))
	}

	places := e.place(series)
	need := total
	for _, t := range e.timelines {
		need += len(t)
	}
	e.residuals = slices.Grow(e.residuals[:0], need)
	e.columns = slices.Grow(e.columns[:0], len(e.timelines)+len(series))[:len(e.timelines)+len(series)]
	for j, t := range e.timelines {
		e.time(&e.columns[j], t, base)
	}
	for i := range series {
		c := &e.columns[len(e.timelines)+i]
		e.value(c, series[i].Values)
		if len(series[i].Times) < len(e.timelines[places[i].timeline]) {
			c.flags |= part
			c.start = places[i].start
		}
	}
	e.share()
	for j := range e.columns {
		e.columns[j].write(e, j < len(e.timelines))
	}
	dst = e.assemble(dst, series, places, base, total)
	clear(e.timelines) // they are the caller's
	e.timelines = e.timelines[:0]
	return dst
}

// place finds the timelines, and where in them each series is.
func (e *Encoder) place(series []Series) []place {
	const recent = 8 // timelines that are compared: series of one source are near each other
	places := make([]place, len(series))
next:
	for i := range series {
		times := series[i].Times
		for j := len(e.timelines) - 1; j >= max(0, len(e.timelines)-recent); j-- {
			known := e.timelines[j]
			at, ok := slices.BinarySearch(known, times[0])
			switch {
			case ok && len(known)-at >= len(times) && slices.Equal(known[at:at+len(times)], times):
				places[i] = place{j, at}
				continue next
			case ok && at == 0 && len(times) >= len(known) && slices.Equal(times[:len(known)], known): // it goes on for longer
				e.timelines[j] = times
				places[i] = place{j, 0}
				continue next
			}
		}
		places[i] = place{len(e.timelines), 0}
		e.timelines = append(e.timelines, times)
	}
	return places
}

func (c *column) reset() {
	*c = column{bytes: c.bytes[:0], exceptions: c.exceptions[:0]}
}

// time makes the residuals of a timeline.
func (e *Encoder) time(c *column, times []int64, base int64) {
	c.reset()
	n := &e.numbers
	n.ints = slices.Grow(n.ints[:0], len(times))[:len(times)]
	for i, t := range times {
		n.ints[i] = t - base
	}
	n.form, n.places, n.unit, n.exceptions = decimal, 0, 1, n.exceptions[:0]
	e.predict(c, true)
}

// value makes the residuals of the values of a series.
func (e *Encoder) value(c *column, values []float64) {
	c.reset()
	n := &e.numbers
	n.choose(values)
	if len(n.exceptions) > 0 {
		c.flags |= withExceptions
		c.exceptions = appendExceptions(c.exceptions, values, n.exceptions)
	}
	e.predict(c, false)
}

// predict makes the residuals of e.numbers.
func (e *Encoder) predict(c *column, times bool) {
	n := &e.numbers
	base := n.ints[0]
	n.reduce()
	begin := len(e.residuals)
	p, all := predict(n.ints, times, e.residuals)
	c.residuals, e.residuals = all[begin:], all
	c.samples = len(n.ints)
	c.form, c.places, c.order, c.shift = n.form, n.places, p.order, p.shift
	c.slope, c.divisor, c.unit = p.slope, n.divisor, n.unit
	c.first = n.restored(base, p.first)
	if c.slope != 0 {
		c.flags |= withSlope
	}
	if c.unit > 1 {
		c.flags |= withUnit
	}
	residuals := int64(0)
	for _, r := range c.residuals {
		residuals |= r
		s := symbolOf(zigzag(r >> p.shift))
		c.counts[s]++
		c.top = max(c.top, s+1)
	}
	if residuals == 0 {
		c.flags |= still
		c.shift = 0
	}
}

func appendExceptions(dst []byte, values []float64, at []int) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(at)))
	last := 0
	for _, i := range at {
		dst = binary.AppendUvarint(dst, uint64(i-last))
		last = i
		b := math.Float64bits(values[i])
		if k := slices.Index(wellKnown[:], b); k >= 0 {
			dst = append(dst, byte(k))
		} else {
			dst = binary.LittleEndian.AppendUint64(append(dst, otherBits), b)
		}
	}
	return dst
}

// write makes the bytes of the column.
func (c *column) write(e *Encoder, times bool) {
	b := slices.Grow(c.bytes[:0], checksumSize)[:checksumSize]
	if times {
		b = binary.AppendUvarint(b, uint64(c.samples))
	} else if c.flags&part != 0 {
		b = binary.AppendUvarint(b, uint64(c.start))
		b = binary.AppendUvarint(b, uint64(c.samples))
	}
	if c.form == pattern {
		b = binary.LittleEndian.AppendUint64(b, uint64(c.first))
	} else {
		b = binary.AppendVarint(b, c.first)
	}
	if c.flags&withSlope != 0 {
		b = binary.AppendVarint(b, c.slope)
	}
	if c.flags&withUnit != 0 {
		b = binary.AppendUvarint(b, c.unit)
	}
	if c.form == ratio {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(c.divisor))
	}
	b = append(b, c.exceptions...)
	if c.flags&still == 0 {
		b = append(b, e.code(c)...)
	}
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[checksumSize:], castagnoli))
	c.bytes = b
}

// code codes the residuals. The bytes are valid until the next call.
func (e *Encoder) code(c *column) []byte {
	const most = 20 // bytes for a residual: 8 for the low bits, 8 above, 2 of the state
	if room := len(c.residuals)*most + 64; len(e.bits) < room {
		e.bits = make([]byte, room)
	}
	t, buf, w := &e.tables[c.table], e.bits, bitWriter{pos: len(e.bits)}
	n, shift := len(c.residuals), uint(c.shift)
	lanes := lanes(n)
	var state, other uint32 // of the next residual's lane, and of the other
	for i := n - 1; i >= 0; i-- {
		r := c.residuals[i]
		z := zigzag(r >> (shift & 63))
		s := int(z)
		if z >= direct {
			s = symbolOf(z)
			w = w.putLong(buf, z, uint(s-direct+directLog))
		}
		low, n := uint64(r), shift
		if shift > maxPut-tableLog {
			w = w.putLong(buf, low, shift)
			low, n = 0, 0
		}
		var next uint32
		if i < len(c.residuals)-lanes {
			var bits uint
			next, bits = t.add(state, s)
			low = low<<(bits&63) | uint64(state)&(1<<(bits&63)-1)
			n += bits
		} else {
			next = t.first(s)
		}
		w = w.put(buf, low, n)
		if lanes == 1 {
			state = next
		} else {
			state, other = other, next
		}
	}
	// The loop has come round to lane 1, and lane 0 is the first that a reader meets.
	w = w.put(buf, uint64(state), tableLog) // less tableSize
	if lanes == 2 {
		w = w.put(buf, uint64(other), tableLog)
	}
	return w.finish(buf)
}

// assemble appends the chunk of the columns' bytes.
func (e *Encoder) assemble(dst []byte, series []Series, places []place, base int64, samples int) []byte {
	begin := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	dst = binary.AppendUvarint(dst, uint64(len(series)))
	dst = binary.AppendUvarint(dst, uint64(len(e.timelines)))
	dst = binary.AppendUvarint(dst, uint64(samples))
	dst = binary.AppendVarint(dst, base)
	dst = appendSchedules(dst, series)
	for i := 0; i < len(series); {
		run := 1
		for i+run < len(series) && places[i+run].timeline == places[i].timeline {
			run++
		}
		dst = binary.AppendUvarint(dst, uint64(run))
		dst = binary.AppendUvarint(dst, uint64(places[i].timeline))
		i += run
	}
	dst = append(dst, byte(len(e.tables)))
	for i := range e.tables {
		dst = appendTable(dst, &e.tables[i])
	}
	e.profiles = e.profiles[:0]
	for j := range e.columns {
		c := &e.columns[j]
		p := c.pack()
		if c.profileAt = slices.Index(e.profiles, p); c.profileAt < 0 {
			c.profileAt = len(e.profiles)
			e.profiles = append(e.profiles, p)
		}
	}
	dst = binary.AppendUvarint(dst, uint64(len(e.profiles)))
	for _, p := range e.profiles {
		dst = append(dst, p[:]...)
	}
	for j := range e.columns {
		c := &e.columns[j]
		dst = binary.AppendUvarint(dst, uint64(c.profileAt))
		dst = binary.AppendUvarint(dst, uint64(len(c.bytes)))
	}
	dst[begin] = Format
	binary.LittleEndian.PutUint32(dst[begin+1:], crc32.Checksum(dst[begin+headerSize:], castagnoli))
	for j := range e.columns {
		dst = append(dst, e.columns[j].bytes...)
	}
	return dst
}

// appendSchedules appends runs of ids in a row: how many are left out before each, and how long it is.
func appendSchedules(dst []byte, series []Series) []byte {
	dst = binary.AppendVarint(dst, int64(series[0].Schedule))
	next := series[0].Schedule
	for i := 0; i < len(series); {
		run := 1
		for i+run < len(series) && series[i+run].Schedule == series[i].Schedule+metric.ScheduleID(run) {
			run++
		}
		dst = binary.AppendUvarint(dst, uint64(series[i].Schedule-next))
		dst = binary.AppendUvarint(dst, uint64(run))
		next = series[i].Schedule + metric.ScheduleID(run)
		i += run
	}
	return dst
}
