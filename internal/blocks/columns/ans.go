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

	next   [tableSize]uint16
	encode [128]transition // of each symbol
}

// transition is what a symbol makes of a state x when it is encoded: x loses (x + length) >> 16 bits, and next has the new
// state at what is left of x, plus at.
type transition struct {
	length uint32
	at     int32
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

// States are spread over the symbols as FSE does (Collet, Zstandard, RFC 8878 section 4.1.1): the symbols, each as often as its
// frequency says, get the states in steps of stride. So state u has the symbol at index u × unstride of them.
const (
	stride   = tableSize>>1 + tableSize>>3 + 3
	unstride = 363 // stride × unstride % tableSize = 1
)

// spread returns the symbols, each as often as its frequency says. What is behind tableSize has no meaning.
func (t *table) spread() (spread [tableSize + 8]uint8) {
	at := 0
	for s, f := range &t.freq {
		eight := uint64(s) * 0x0101010101010101
		end := at + int(f)
		for ; at < end; at += 8 {
			binary.LittleEndian.PutUint64(spread[at:], eight)
		}
		at = end
	}
	return spread
}

// transitions has, for a state from 1 to 2 × tableSize − 1 of a symbol, its entry for decoding but for the value; see table.decode.
var transitions = func() (table [2 * tableSize]uint32) {
	for x := uint32(1); x < 2*tableSize; x++ {
		n := tableLog + 1 - uint32(bits.Len32(x))
		table[x] = (x<<n-tableSize)<<16 | n<<8
	}
	return table
}()

// decoded has the value of each symbol in an entry for decoding, <<24.
var decoded = func() (values [symbols]uint32) {
	for s := range uint64(symbols) {
		value := uint32(uint8(unzigzag(s)))
		if s >= direct {
			value = far + uint32(s) - direct
		}
		values[s] = value << 24
	}
	return values
}()

// forDecoding fills in what decoding needs. A reader of one column spends more time here than on its residuals, unless this is quick.
func (t *table) forDecoding() {
	if t.decodes {
		return
	}
	t.decodes = true
	var next [128]uint32 // of each symbol the value, and the state that comes next
	for s, f := range &t.freq {
		next[s] = decoded[s] | uint32(f)
	}
	spread, k := t.spread(), uint(0)
	for u := range t.decode {
		s := spread[k%tableSize] % 128
		x := next[s]
		next[s] = x + 1
		t.decode[u] = transitions[x%(2*tableSize)] | x>>24
		k += unstride
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
				t.encode[s].length = n<<16 - uint32(f)<<n
			} else {
				t.encode[s].length = n<<16 - tableSize
			}
			t.encode[s].at = int32(sum) - int32(f)
		}
		sum += f
	}
	spread := t.spread()
	for u := range tableSize {
		s := spread[u*unstride%tableSize]
		t.next[at[s]] = uint16(tableSize + u)
		at[s]++
	}
}

// first returns the state that stands for the last symbol of a stream, which takes no bits.
func (t *table) first(s int) uint32 {
	length := t.encode[s&127].length
	n := (length + 1<<15) >> 16
	x, _ := t.add(n<<16-length, s)
	return x
}

// add returns the state for s before what x stands for, and how many low bits of x are to be written.
func (t *table) add(x uint32, s int) (state uint32, n uint) {
	e := t.encode[s&127] // symbols are fewer; the compiler knows it so
	n = uint((x+e.length)>>16) & 31
	return uint32(t.next[(int32(x>>n)+e.at)&(tableSize-1)]), n
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
	t.freq, t.decodes = [symbols]uint16{}, false
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
