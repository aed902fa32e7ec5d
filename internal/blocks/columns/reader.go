package columns

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// Reader reads chunks, one after the other. It keeps its buffers, and is not for concurrent use.
type Reader struct {
	streams   []byte // of all columns
	samples   int
	base      int64
	schedules []metric.ScheduleID
	timeline  []uint16 // of each series
	tables    []table
	profiles  []profile
	entries   []entry   // timelines, then series
	times     [][]int64 // of the timelines
	decoded   []bool    // whether times are
	ascend    []bool    // whether they do, as those that an encoder is given; of the decoded ones
	counted   []bool    // whether Count has said so, or they are
	ints      []int64
	padded    []byte
}

// entry is a column in the directory.
type entry struct {
	profile  uint16
	checked  bool   // whether its checksum is right
	from, to uint32 // in streams
}

// Open reads the head of a chunk. It returns ErrCorrupt if that is damaged. The chunk must not change as long as the
// reader is used for it.
func (r *Reader) Open(chunk []byte) error {
	if len(chunk) < headerSize || chunk[0] != Format {
		return fmt.Errorf("%w: not a chunk of columns", ErrCorrupt)
	}
	p := parser{b: chunk[headerSize:]}
	n := int(p.uvarint(MaxSeries))
	timelines := int(p.uvarint(uint64(n)))
	r.samples = int(p.uvarint(MaxSamples))
	r.base = p.varint()
	if p.bad || n == 0 || timelines == 0 || n > r.samples {
		return fmt.Errorf("%w: the head names %d series, %d timelines and %d samples", ErrCorrupt, n, timelines, r.samples)
	}
	r.readSchedules(&p, n)
	r.timeline = slices.Grow(r.timeline[:0], n)
	for len(r.timeline) < n && !p.bad {
		run := int(p.uvarint(uint64(n - len(r.timeline))))
		t := uint16(p.uvarint(uint64(timelines - 1)))
		p.bad = p.bad || run == 0
		for range run {
			r.timeline = append(r.timeline, t)
		}
	}
	tables := min(int(p.byte()), maxTables+1)
	p.bad = p.bad || tables > maxTables
	r.tables = slices.Grow(r.tables[:0], maxTables)[:min(tables, maxTables)]
	for i := range r.tables {
		r.tables[i].read(&p)
	}
	r.readDirectory(&p, timelines+n)
	if p.bad {
		return fmt.Errorf("%w: the head", ErrCorrupt)
	}
	head := chunk[headerSize : len(chunk)-len(p.b)]
	if crc32.Checksum(head, castagnoli) != binary.LittleEndian.Uint32(chunk[1:]) {
		return fmt.Errorf("%w: checksum of the head", ErrCorrupt)
	}
	r.streams = p.b
	r.times = slices.Grow(r.times[:0], timelines)[:timelines]
	r.decoded = slices.Grow(r.decoded[:0], timelines)[:timelines]
	clear(r.decoded)
	r.ascend = slices.Grow(r.ascend[:0], timelines)[:timelines]
	r.counted = slices.Grow(r.counted[:0], timelines)[:timelines]
	clear(r.counted)
	return nil
}

func (r *Reader) readSchedules(p *parser, n int) {
	r.schedules = slices.Grow(r.schedules[:0], n)
	next := p.varint()
	for len(r.schedules) < n && !p.bad {
		gap := p.uvarint(math.MaxInt64)
		run := p.uvarint(uint64(n - len(r.schedules)))
		p.bad = p.bad || run == 0 || len(r.schedules) > 0 && gap == 0
		if next+int64(gap) < next || next+int64(gap)+int64(run) < next {
			p.bad = true
			return
		}
		next += int64(gap)
		for range run {
			r.schedules = append(r.schedules, metric.ScheduleID(next))
			next++
		}
	}
}

func (r *Reader) readDirectory(p *parser, columns int) {
	const most = math.MaxInt32
	n := int(p.uvarint(uint64(columns)))
	p.bad = p.bad || n == 0
	r.profiles = slices.Grow(r.profiles[:0], n)
	for range n {
		b := p.bytes(profileSize)
		if p.bad {
			return
		}
		unpacked, ok := unpack([profileSize]byte(b), len(r.tables))
		p.bad = !ok
		r.profiles = append(r.profiles, unpacked)
	}
	r.entries = slices.Grow(r.entries[:0], columns)[:columns]
	b, at := p.b, uint64(0)
	for i := range r.entries {
		var profile, length uint64
		// Mostly the first number has one byte and the second one or two. A reader of one column spends more time here than on that
		// column.
		if len(b) >= 3 && b[0] < 0x80 && b[1]&b[2] < 0x80 {
			second := b[1] >> 7
			profile, length = uint64(b[0]), uint64(b[1]&0x7f)|uint64(b[2]*second)<<7
			b = b[2+second:]
		} else {
			p.b = b
			profile, length = p.uvarint(most), p.uvarint(most)
			b = p.b
		}
		e := entry{profile: uint16(profile), from: uint32(at)}
		if at += length; p.bad || profile >= uint64(n) || at > most {
			p.bad = true
			return
		}
		e.to = uint32(at)
		r.entries[i] = e
	}
	p.b = b
	p.bad = p.bad || at != uint64(len(p.b))
}

// Len returns the number of series.
func (r *Reader) Len() int { return len(r.schedules) }

// Samples returns how many samples all series have together, as the head says. Read returns no more for one series.
func (r *Reader) Samples() int { return r.samples }

// Schedule returns the schedule of series i. They ascend.
func (r *Reader) Schedule(i int) metric.ScheduleID { return r.schedules[i] }

// Find returns the series of a schedule.
func (r *Reader) Find(id metric.ScheduleID) (i int, ok bool) {
	return slices.BinarySearch(r.schedules, id)
}

// Count returns the number of samples of series i, and the number of times that reading it decodes: none if a series that was
// counted or read before has the same times. Count itself decodes nothing. It returns ErrCorrupt as Read does.
func (r *Reader) Count(i int) (samples, times int, err error) {
	t := r.timeline[i]
	timeline, err := r.open(int(t), -1)
	if err != nil {
		return 0, 0, r.named(i, fmt.Errorf("times: %w", err))
	}
	c, err := r.open(len(r.times)+i, timeline.samples)
	if err != nil {
		return 0, 0, r.named(i, err)
	}
	if !r.counted[t] {
		r.counted[t], times = true, timeline.samples
	}
	return c.samples, times, nil
}

// Bytes returns the memory that the reader takes for what it has decoded.
func (r *Reader) Bytes() int {
	n := cap(r.ints) + cap(r.padded)/8
	for _, times := range r.times[:cap(r.times)] {
		n += cap(times)
	}
	return 8 * n
}

// Times returns the times of series i, which are the reader's and valid until the next Open. It returns ErrCorrupt as Read
// does.
func (r *Reader) Times(i int) ([]int64, error) {
	times, _, err := r.column(i)
	return times, r.named(i, err)
}

// Read returns the samples of series i. Values are appended to the argument. Times are the reader's, and valid until the
// next Open. It returns ErrCorrupt if the columns of the series are damaged; others can still be read.
func (r *Reader) Read(i int, values []float64) (times []int64, _ []float64, err error) {
	times, c, err := r.column(i)
	begin := len(values)
	if err == nil {
		values = slices.Grow(values, c.samples)[:begin+c.samples]
		err = r.decode(&c, values[begin:])
	}
	if err != nil {
		return nil, values[:begin], r.named(i, err)
	}
	return times, values, nil
}

// Ascend returns whether the times of series i do, which has been read.
func (r *Reader) Ascend(i int) bool { return r.ascend[r.timeline[i]] }

// named says of which series an error is.
func (r *Reader) named(i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("schedule %d: %w", r.schedules[i], err)
}

// column returns the times of series i, and its column, read up to the residuals.
func (r *Reader) column(i int) ([]int64, opened, error) {
	times, err := r.readTimes(int(r.timeline[i]))
	if err != nil {
		return nil, opened{}, err
	}
	c, err := r.open(len(r.times)+i, len(times))
	if err != nil {
		return nil, c, err
	}
	return times[c.start : c.start+c.samples], c, nil
}

func (r *Reader) readTimes(t int) ([]int64, error) {
	if r.decoded[t] {
		return r.times[t], nil
	}
	c, err := r.open(t, -1)
	if err != nil {
		return nil, fmt.Errorf("times: %w", err)
	}
	if c.form != decimal || c.places != 0 || c.flags&(withUnit|withExceptions|part) != 0 {
		return nil, fmt.Errorf("%w: times of another form", ErrCorrupt)
	}
	times := slices.Grow(r.times[t][:0], c.samples)[:c.samples]
	c.first += r.base // all others follow from it
	if err := r.integers(&c, times); err != nil {
		return nil, fmt.Errorf("times: %w", err)
	}
	r.times[t], r.decoded[t], r.counted[t] = times, true, true
	r.ascend[t] = true
	for i := 1; i < len(times); i++ {
		if times[i-1] >= times[i] {
			r.ascend[t] = false
			break
		}
	}
	return times, nil
}

// opened is a column whose stream is read up to the residuals.
type opened struct {
	profile
	stream
	exceptions parser
	count      int // of exceptions
	residuals  []byte
}

// open reads what stands before the residuals. timeline is the number of samples in the timeline of a series, or -1 for a
// timeline.
func (r *Reader) open(column, timeline int) (c opened, err error) {
	e := &r.entries[column]
	b := r.streams[e.from:e.to]
	if !e.checked {
		if len(b) < checksumSize || crc32.Checksum(b[checksumSize:], castagnoli) != binary.LittleEndian.Uint32(b) {
			return c, fmt.Errorf("%w: checksum", ErrCorrupt)
		}
		e.checked = true
	}
	p := parser{b: b[checksumSize:]}
	c.profile = r.profiles[e.profile]
	c.unit = 1
	switch {
	case timeline < 0:
		c.samples = int(p.uvarint(uint64(r.samples)))
	case c.flags&part != 0:
		c.start = int(p.uvarint(uint64(timeline)))
		c.samples = int(p.uvarint(uint64(timeline - c.start)))
	default:
		c.samples = timeline
	}
	if c.form == pattern {
		c.first = int64(p.word())
	} else {
		c.first = p.varint()
	}
	if c.flags&withSlope != 0 {
		c.slope = p.varint()
	}
	if c.flags&withUnit != 0 {
		c.unit = p.uvarint(math.MaxInt64)
	}
	if c.form == ratio {
		c.divisor = p.float()
	}
	if c.flags&withExceptions != 0 {
		c.count = int(p.uvarint(uint64(c.samples)))
		c.exceptions.b = p.b
		at := 0
		for range c.count {
			at += int(p.uvarint(uint64(c.samples)))
			p.bad = p.bad || at >= c.samples
			if k := p.byte(); k == otherBits {
				p.word()
			} else if int(k) >= len(wellKnown) {
				p.bad = true
			}
			if p.bad {
				break
			}
		}
	}
	if c.residuals = p.b; p.bad || c.samples == 0 {
		return c, fmt.Errorf("%w: a column of %d samples", ErrCorrupt, c.samples)
	}
	return c, nil
}

// decode fills in the values of a series.
func (r *Reader) decode(c *opened, out []float64) error {
	r.ints = slices.Grow(r.ints[:0], len(out))[:len(out)]
	ints := r.ints[:len(out)] // so that the compiler knows it
	if err := r.integers(c, ints); err != nil {
		return err
	}
	switch {
	case c.form == pattern:
		for i, m := range ints {
			out[i] = unordered(m)
		}
	case c.form == ratio:
		for i, m := range ints {
			out[i] = float64(m) / c.divisor
		}
	case c.places == 0:
		for i, m := range ints {
			out[i] = float64(m)
		}
	default:
		power := powers[c.places]
		for i, m := range ints {
			out[i] = float64(m) / power
		}
	}
	at := 0
	for range c.count {
		at += int(c.exceptions.uvarint(math.MaxInt32))
		if k := c.exceptions.byte(); k == otherBits {
			out[at] = c.exceptions.float()
		} else {
			out[at] = math.Float64frombits(wellKnown[k])
		}
	}
	return nil
}

// integers fills in the integers of a column.
func (r *Reader) integers(c *opened, out []int64) error {
	p := prediction{order: c.order, first: c.first, slope: c.slope}
	if c.unit > 1 {
		p.first = 0
	}
	if c.flags&still != 0 {
		p.still(out)
	} else {
		if err := r.residuals(c, out[min(c.order.known(), len(out)):]); err != nil {
			return err
		}
		p.restore(out)
	}
	if c.unit > 1 {
		if c.form == pattern {
			for i, m := range out {
				out[i] = c.first + m<<((c.unit-1)&63)
			}
		} else {
			for i, m := range out {
				out[i] = c.first + m*int64(c.unit)
			}
		}
	}
	return nil
}

// residuals decodes the residuals of a column.
func (r *Reader) residuals(c *opened, out []int64) error {
	b := c.residuals
	src, ok := newBitReader(b, r.pad(b))
	if !ok {
		return fmt.Errorf("%w: no residuals", ErrCorrupt)
	}
	t := &r.tables[c.table]
	t.forDecoding()
	n, shift := len(out), uint(c.shift)
	lanes := lanes(n)
	var states [2]uint32
	for l := range lanes {
		states[l] = uint32(src.read(tableLog))
	}
	i := 0
	if shift <= 56-tableLog {
		// A word has the bits of a state and the low bits of a residual.
		if lanes == 2 {
			i = fastTwo(&t.decode, &src, out[:n-lanes], shift, &states)
		} else {
			i = fastOne(&t.decode, &src, out[:max(0, n-1)], shift, &states[0])
		}
	}
	end := src.end
	for ; i < n; i++ {
		if src.pos > end {
			break
		}
		e := t.decode[states[i%lanes]%tableSize]
		if i < n-lanes {
			bits := uint(e >> 8 & 15)
			states[i%lanes] = e>>16 + uint32(src.read(bits))
			if src.pos > end {
				break
			}
		}
		x := src.read(shift)
		y := int64(int8(e))
		if y >= far {
			if src.pos > end {
				break
			}
			y, src.pos = farther(&src, src.pos, uint(y))
		}
		out[i] = y<<shift | int64(x)
	}
	if i < n || src.pos != end {
		return fmt.Errorf("%w: residuals of another length", ErrCorrupt)
	}
	return nil
}

// fastTwo decodes residuals of two lanes, an even number, and returns it. It stops where few bits are left, or too few.
func fastTwo(decode *[tableSize]uint32, src *bitReader, out []int64, shift uint, states *[2]uint32) int {
	b, pos, low := src.src, src.pos, uint64(1)<<(shift&63)-1
	s0, s1 := states[0], states[1]
	wide := shift > 56/2-tableLog // a word does not have the bits of two residuals
	i := 0
	for last := int(src.end) - int(2*(tableLog+shift)); i+1 < len(out) && int(pos) <= last; i += 2 {
		word := binary.LittleEndian.Uint64(b[pos>>3:]) >> (pos & 7)
		e0, e1 := decode[s0%tableSize], decode[s1%tableSize]
		bits := uint(e0 >> 8 & 15)
		s0 = e0>>16 + uint32(word)&(1<<bits-1)
		word >>= bits
		pos += bits + shift
		y, x := int64(int8(e0)), word&low
		word >>= shift & 63
		if y >= far || wide {
			if y >= far {
				y, pos = farther(src, pos, uint(y))
			}
			if pos > src.end { // far bits are too many
				break
			}
			word = binary.LittleEndian.Uint64(b[pos>>3:]) >> (pos & 7)
		}
		out[i] = y<<(shift&63) | int64(x)

		bits = uint(e1 >> 8 & 15)
		s1 = e1>>16 + uint32(word)&(1<<bits-1)
		pos += bits + shift
		y = int64(int8(e1))
		if y >= far {
			y, pos = farther(src, pos, uint(y))
		}
		out[i+1] = y<<(shift&63) | int64(word>>bits&low)
	}
	src.pos, states[0], states[1] = pos, s0, s1
	return i
}

// fastOne is fastTwo for one lane.
func fastOne(decode *[tableSize]uint32, src *bitReader, out []int64, shift uint, state *uint32) int {
	b, pos, low := src.src, src.pos, uint64(1)<<(shift&63)-1
	s := *state
	i := 0
	for last := int(src.end) - int(tableLog+shift); i < len(out) && int(pos) <= last; i++ {
		e, word := decode[s%tableSize], binary.LittleEndian.Uint64(b[pos>>3:])>>(pos&7)
		bits := uint(e >> 8 & 15)
		s = e>>16 + uint32(word)&(1<<bits-1)
		pos += bits + shift
		y := int64(int8(e))
		if y >= far {
			y, pos = farther(src, pos, uint(y))
		}
		out[i] = y<<(shift&63) | int64(word>>bits&low)
	}
	src.pos, *state = pos, s
	return i
}

// farther reads the value of a symbol above direct, at a position that is at most the end, or else returns a position behind it.
func farther(src *bitReader, pos, y uint) (int64, uint) {
	if pos > src.end {
		return 0, pos
	}
	extra := y - far + directLog
	src.pos = pos
	return unzigzag(1<<extra | src.read(extra)), src.pos
}

// pad returns b with readable bytes behind it.
func (r *Reader) pad(b []byte) []byte {
	if cap(b)-len(b) >= padding {
		return b[:len(b)+padding]
	}
	r.padded = append(append(r.padded[:0], b...), make([]byte, padding)...)
	return r.padded
}
