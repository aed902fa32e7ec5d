package columns

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// Residuals are coded by tANS (Duda, "Asymmetric numeral systems", arXiv 1311.2540): the coder's state is a number from
// tableSize to 2 × tableSize − 1, and a symbol takes log2(tableSize / frequency) bits on average.
const (
	tableLog  = 9
	tableSize = 1 << tableLog
	// A symbol below direct is a residual in its zigzag form. Symbol direct + i is a zigzag form of directLog + 1 + i bits;
	// those below the highest follow.
	directLog = 5
	direct    = 1 << directLog
	symbols   = direct + 64 - directLog
	// far marks symbols above direct in an entry for decoding. Such an entry has far + i, where i is as above.
	far = 64
)

func zigzag(v int64) uint64   { return uint64(v<<1) ^ uint64(v>>63) }
func unzigzag(u uint64) int64 { return int64(u>>1) ^ -int64(u&1) }

func symbolOf(z uint64) int {
	if z < direct {
		return int(z)
	}
	return direct + bits.Len64(z) - directLog - 1
}

// table is a coding table. Streams of one chunk share a few.
type table struct {
	freq [symbols]uint16 // their sum is tableSize

	// decode has, for each state less tableSize, the base of the next state <<16, the number of bits to add to it <<8, and
	// the value of the symbol.
	decode  [tableSize]uint32
	decodes bool // decode is filled in

	next     [tableSize]uint16
	deltaLen [symbols]uint32
	deltaAt  [symbols]int32
}

// fit makes the frequencies those of counts, of which at least one is not 0.
func (t *table) fit(counts *[symbols]uint32) {
	total := uint64(0)
	for _, c := range counts {
		total += uint64(c)
	}
	sum := 0
	for s, c := range counts {
		t.freq[s] = 0
		if c > 0 {
			t.freq[s] = max(1, uint16((uint64(c)*tableSize+total/2)/total))
			sum += int(t.freq[s])
		}
	}
	// What rounding left over goes where it saves or costs the least bits.
	for sum != tableSize {
		step := 1
		if sum > tableSize {
			step = -1
		}
		best, least := -1, math.Inf(1)
		for s, c := range counts {
			f := int(t.freq[s])
			if c == 0 || f+step == 0 {
				continue
			}
			if cost := float64(c) * (log2(f) - log2(f+step)); cost < least {
				best, least = s, cost
			}
		}
		t.freq[best] = uint16(int(t.freq[best]) + step)
		sum += step
	}
}

// spread yields the symbol of each state, as FSE does (Collet, Zstandard, RFC 8878 section 4.1.1).
func (t *table) spread() (of [tableSize]uint8) {
	const stride = tableSize>>1 + tableSize>>3 + 3
	at := 0
	for s, f := range t.freq {
		for range f {
			of[at] = uint8(s)
			at = (at + stride) % tableSize
		}
	}
	return of
}

// forDecoding fills in what decoding needs.
func (t *table) forDecoding() {
	if t.decodes {
		return
	}
	t.decodes = true
	next := t.freq
	for u, s := range t.spread() {
		x := next[s]
		next[s]++
		n := uint32(tableLog + 1 - bits.Len16(x))
		value := uint32(uint8(unzigzag(uint64(s))))
		if s >= direct {
			value = far + uint32(s) - direct
		}
		t.decode[u] = (uint32(x)<<n-tableSize)<<16 | n<<8 | value
	}
}

// forEncoding fills in what encoding needs.
func (t *table) forEncoding() {
	var at [symbols]uint16
	sum := uint16(0)
	for s, f := range t.freq {
		at[s] = sum
		if f > 0 {
			n := uint32(tableLog + 1 - bits.Len16(f)) // of the greater states
			if f&(f-1) != 0 {
				// A state x of the symbol loses n bits if x ≥ f << n, else one less.
				t.deltaLen[s] = n<<16 - uint32(f)<<n
			} else {
				t.deltaLen[s] = n<<16 - tableSize
			}
			t.deltaAt[s] = int32(sum) - int32(f)
		}
		sum += f
	}
	for u, s := range t.spread() {
		t.next[at[s]] = uint16(tableSize + u)
		at[s]++
	}
}

// first returns the state that stands for the last symbol of a stream, which takes no bits.
func (t *table) first(s int) uint32 {
	n := (t.deltaLen[s] + 1<<15) >> 16
	x := n<<16 - t.deltaLen[s]
	return uint32(t.next[int32(x>>n)+t.deltaAt[s]])
}

// add returns the state for s before what x stands for, and how many low bits of x are to be written.
func (t *table) add(x uint32, s int) (state uint32, n uint) {
	n = uint((x + t.deltaLen[s]) >> 16)
	return uint32(t.next[int32(x>>n)+t.deltaAt[s]]), n
}

// appendTable appends the frequencies: how many symbols, then each; behind a 0 the number of further ones.
func appendTable(dst []byte, t *table) []byte {
	last := symbols
	for t.freq[last-1] == 0 {
		last--
	}
	dst = append(dst, byte(last))
	for s := 0; s < last; s++ {
		dst = binary.AppendUvarint(dst, uint64(t.freq[s]))
		if t.freq[s] > 0 {
			continue
		}
		further := 0
		for t.freq[s+1] == 0 {
			further++
			s++
		}
		dst = append(dst, byte(further))
	}
	return dst
}

// read reads what appendTable wrote.
func (t *table) read(p *parser) {
	*t = table{}
	last := int(p.byte())
	if last > symbols {
		p.bad = true
	}
	sum := uint64(0)
	for s := 0; s < last && !p.bad; s++ {
		f := p.uvarint(tableSize)
		t.freq[s] = uint16(f)
		if sum += f; f == 0 {
			s += int(p.byte())
		}
	}
	p.bad = p.bad || sum != tableSize
}

// logs are the binary logarithms of small numbers.
var logs = func() (l [2048]float64) {
	for i := 1; i < len(l); i++ {
		l[i] = math.Log2(float64(i))
	}
	return l
}()

func log2(n int) float64 {
	if n < len(logs) {
		return logs[n]
	}
	return math.Log2(float64(n))
}
