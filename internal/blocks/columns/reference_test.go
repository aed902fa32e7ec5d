package columns

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"math/bits"

	"github.com/quern/quern/internal/metric"
)

// reference decodes a chunk slowly, by the words of docs/format/columns.md: one bit at a time, and no checksums. It shares no
// code with the reader.
type reference struct {
	b  []byte
	at int
}

var errReference = errors.New("refused")

func (p *reference) need(ok bool) {
	if !ok {
		panic(errReference)
	}
}

func (p *reference) byte() int {
	p.need(p.at < len(p.b))
	p.at++
	return int(p.b[p.at-1])
}

func (p *reference) uvarint() uint64 {
	v := uint64(0)
	for shift := 0; ; shift += 7 {
		c := uint64(p.byte())
		p.need(shift < 63 || shift == 63 && c < 2)
		if v |= c & 127 << shift; c < 128 {
			return v
		}
	}
}

func (p *reference) most(m uint64) int {
	v := p.uvarint()
	p.need(v <= m)
	return int(v)
}

func (p *reference) varint() int64 {
	v := p.uvarint()
	if v%2 == 1 {
		return -int64(v/2) - 1
	}
	return int64(v / 2)
}

func (p *reference) word() (v uint64) {
	for i := range 8 {
		v |= uint64(p.byte()) << (8 * i)
	}
	return v
}

// refStream is where a column lies in the chunk.
type refStream struct {
	profile [3]byte
	from    int
	to      int
}

// refChunk is a chunk with its head decoded.
type refChunk struct {
	b         []byte
	head      int // where the head ends
	samples   int
	base      int64
	schedules []metric.ScheduleID
	timeline  []int
	tables    [][]int // symbols of the states
	freqs     [][]int
	streams   []refStream
	timelines int
}

// refOpen decodes a head.
func refOpen(b []byte) (c *refChunk, err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != errReference { //nolint:errorlint // it is the very value
				panic(r)
			}
			c, err = nil, errReference
		}
	}()
	p := &reference{b: b}
	p.need(p.byte() == 4)
	for range 4 {
		p.byte()
	}
	c = &refChunk{b: b}
	n := p.most(4096)
	c.timelines = p.most(uint64(n))
	c.samples = p.most(1 << 26)
	c.base = p.varint()
	p.need(n > 0 && c.timelines > 0 && n <= c.samples)
	id := p.varint()
	for len(c.schedules) < n {
		gap, run := p.most(math.MaxInt64), p.most(uint64(n-len(c.schedules)))
		p.need(run > 0 && (gap > 0 || len(c.schedules) == 0) && id+int64(gap) >= id && id+int64(gap)+int64(run) >= id)
		id += int64(gap)
		for range run {
			c.schedules = append(c.schedules, metric.ScheduleID(id))
			id++
		}
	}
	for len(c.timeline) < n {
		run, t := p.most(uint64(n-len(c.timeline))), p.most(uint64(c.timelines-1))
		p.need(run > 0)
		for range run {
			c.timeline = append(c.timeline, t)
		}
	}
	tables := p.byte()
	p.need(tables <= 4)
	for range tables {
		freq, sum := make([]int, 91), 0
		last := p.byte()
		p.need(last <= 91)
		for s := 0; s < last; s++ {
			freq[s] = p.most(512)
			if sum += freq[s]; freq[s] == 0 {
				s += p.byte()
			}
		}
		p.need(sum == 512)
		states := make([]int, 512)
		at := 0
		for s, f := range freq {
			for range f {
				states[at] = s
				at = (at + 323) % 512
			}
		}
		c.freqs, c.tables = append(c.freqs, freq), append(c.tables, states)
	}
	profiles := make([][3]byte, p.most(uint64(n+c.timelines)))
	p.need(len(profiles) > 0)
	for i := range profiles {
		profiles[i] = [3]byte{byte(p.byte()), byte(p.byte()), byte(p.byte())}
		b := profiles[i]
		p.need(b[0]&3 < 3 && b[1]&63 <= 60 && b[2] < 32 && (b[2]&16 != 0 || int(b[1]>>6) < tables))
	}
	offset := 0
	for range n + c.timelines {
		s := refStream{profile: profiles[p.most(uint64(len(profiles)-1))], from: offset}
		offset += p.most(math.MaxInt32)
		p.need(offset <= math.MaxInt32)
		s.to = offset
		c.streams = append(c.streams, s)
	}
	c.head = p.at
	p.need(len(b) == c.head+offset)
	for i := range c.streams {
		c.streams[i].from += c.head
		c.streams[i].to += c.head
	}
	return c, nil
}

// seal writes the checksums.
func (c *refChunk) seal() {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(c.b[1:], crc32.Checksum(c.b[5:c.head], table))
	for _, s := range c.streams {
		if s.to-s.from >= 4 {
			binary.LittleEndian.PutUint32(c.b[s.from:], crc32.Checksum(c.b[s.from+4:s.to], table))
		}
	}
}

// column decodes a column: its integers, and what turns them into values. timeline is -1 for a timeline.
func (c *refChunk) column(i, timeline int) (start int, ints []int64, value func(k int, m int64) float64, err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != errReference { //nolint:errorlint // it is the very value
				panic(r)
			}
			err = errReference
		}
	}()
	s := c.streams[i]
	p := &reference{b: c.b[:s.to], at: s.from}
	for range 4 {
		p.byte()
	}
	form, order, places := s.profile[0]&3, s.profile[0]>>2&3, s.profile[0]>>4
	shift, table, flags := uint(s.profile[1]&63), s.profile[1]>>6, s.profile[2]
	n := timeline
	switch {
	case timeline < 0:
		n = p.most(uint64(c.samples))
	case flags&8 != 0:
		start = p.most(uint64(timeline))
		n = p.most(uint64(timeline - start))
	}
	p.need(timeline >= 0 || form == 0 && places == 0 && flags&(2+4+8) == 0)
	var first, slope int64
	if form == 2 {
		first = int64(p.word())
	} else {
		first = p.varint()
	}
	if flags&1 != 0 {
		slope = p.varint()
	}
	unit := uint64(1)
	if flags&2 != 0 {
		unit = p.uvarint()
		p.need(unit <= math.MaxInt64)
	}
	divisor := 0.0
	if form == 1 {
		divisor = math.Float64frombits(p.word())
	}
	exceptions := map[int]float64{}
	if flags&4 != 0 {
		at := 0
		for range p.most(uint64(n)) {
			at += p.most(uint64(n))
			p.need(at < n)
			k := p.byte()
			p.need(k < 6 || k == 255)
			if k == 255 {
				exceptions[at] = math.Float64frombits(p.word())
			} else {
				exceptions[at] = math.Float64frombits([...]uint64{0x7ff0000000000002, 0x7ff8000000000001, 0x7ff0000000000000, 0xfff0000000000000, 1 << 63, 0x7ff8000051554552}[k])
			}
		}
	}
	p.need(n > 0)
	known := min(n, map[byte]int{0: 0, 1: 0, 2: 1, 3: 2}[order])
	residuals := make([]int64, n)
	if flags&16 == 0 {
		c.residuals(p, int(table), shift, residuals[known:])
	}
	at := first
	if unit > 1 {
		at = 0
	}
	ints = make([]int64, n)
	for i, r := range residuals {
		switch order {
		case 0:
			ints[i] = at + r
		case 1:
			ints[i] = at + int64(i)*slope + r
		case 2:
			if ints[i] = at; i > 0 {
				ints[i] = ints[i-1] + slope + r
			}
		case 3:
			switch i {
			case 0:
				ints[i] = at
			case 1:
				ints[i] = at + slope
			default:
				ints[i] = ints[i-1] + (ints[i-1] - ints[i-2]) + r
			}
		}
	}
	if unit > 1 {
		for i, m := range ints {
			if form == 2 {
				ints[i] = first + m<<((unit-1)%64)
			} else {
				ints[i] = first + m*int64(unit)
			}
		}
	}
	return start, ints, func(k int, m int64) float64 {
		if v, ok := exceptions[k]; ok {
			return v
		}
		switch form {
		case 0:
			return float64(m) / math.Pow10(int(places))
		case 1:
			return float64(m) / divisor
		}
		if m < 0 {
			m ^= math.MaxInt64
		}
		return math.Float64frombits(uint64(m))
	}, nil
}

// residuals decodes the bits behind p.
func (c *refChunk) residuals(p *reference, table int, shift uint, out []int64) {
	b := p.b[p.at:]
	p.need(len(b) > 0 && b[0] != 0)
	pos := bits.TrailingZeros8(b[0]) + 1
	read := func(n uint) (v uint64) {
		for i := range n {
			p.need(pos < 8*len(b))
			v |= uint64(b[pos/8]>>(pos%8)&1) << i
			pos++
		}
		return v
	}
	lanes := 2
	if len(out) < 96 {
		lanes = 1
	}
	states := make([]int, lanes)
	for l := range states {
		states[l] = int(read(9))
	}
	// The k-th state of a symbol with frequency f stands for f + k.
	kth := make([]int, 512)
	seen := make([]int, 91)
	for u, s := range c.tables[table] {
		kth[u] = seen[s]
		seen[s]++
	}
	for i := range out {
		u := states[i%lanes]
		s := c.tables[table][u]
		if i < len(out)-lanes {
			x := c.freqs[table][s] + kth[u]
			for x < 512 {
				x *= 2
			}
			n := bits.Len(uint(x/(c.freqs[table][s]+kth[u]))) - 1
			states[i%lanes] = x - 512 + int(read(uint(n)))
		}
		low := read(shift)
		z := uint64(s)
		if s >= 32 {
			extra := uint(s - 32 + 5)
			z = 1<<extra | read(extra)
		}
		y := int64(z / 2)
		if z%2 == 1 {
			y = -y - 1
		}
		out[i] = y<<shift + int64(low)
	}
	p.need(pos == 8*len(b))
}
