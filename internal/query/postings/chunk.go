package postings

import (
	"math/bits"
	"slices"
	"unsafe"
)

const (
	chunkBits = 16
	chunkSize = 1 << chunkBits
	// maxLows is the number of ids from which on a bit for each id of the chunk takes less than two bytes for each id in it.
	maxLows = chunkSize / 16

	chunksBytes = int(unsafe.Sizeof(chunks{}))
	chunkBytes  = int(unsafe.Sizeof(chunk{}))
)

// chunk is the ids of a list with the same high bits, n of them. They are in one of three forms:
//
//   - a run, while lows and bits are nil: the ids without a gap that begin at lo,
//   - lows: the low bits of up to maxLows ids, in order,
//   - bits: a bit for each id.
type chunk struct {
	key  uint32 // the high bits
	n    uint32
	lo   uint16
	lows []uint16
	bits *words
	// shared says that snapshots may have the array in lows or bits. What is beyond the end of lows they do not have.
	shared bool
}

// words have a bit for each id of a chunk.
type words [chunkSize / 64]uint64

func (c *chunk) isRun() bool { return c.lows == nil && c.bits == nil }

// bytes returns what the chunk holds beside itself.
func (c *chunk) bytes() int {
	n := 2 * cap(c.lows)
	if c.bits != nil {
		n += int(unsafe.Sizeof(words{}))
	}
	return n
}

func (c *chunk) has(low uint16) bool {
	switch {
	case c.bits != nil:
		return c.bits[low/64]&(1<<(low%64)) != 0
	case c.lows != nil:
		_, found := slices.BinarySearch(c.lows, low)
		return found
	}
	return low >= c.lo && uint32(low-c.lo) < c.n
}

// all yields the low bits of the ids in order.
func (c *chunk) all(yield func(low uint16) bool) {
	switch {
	case c.bits != nil:
		for i, word := range c.bits {
			for ; word != 0; word &= word - 1 {
				if !yield(uint16(i*64 + bits.TrailingZeros64(word))) {
					return
				}
			}
		}
	case c.lows != nil:
		for _, low := range c.lows {
			if !yield(low) {
				return
			}
		}
	default:
		for i := range c.n {
			if !yield(c.lo + uint16(i)) {
				return
			}
		}
	}
}

// add adds an id.
func (c *chunk) add(low uint16) {
	if c.isRun() {
		switch {
		case c.has(low):
			return
		case uint32(low) == uint32(c.lo)+c.n:
			c.n++
			return
		case uint32(low)+1 == uint32(c.lo):
			c.lo, c.n = low, c.n+1
			return
		}
		c.expand()
	}
	if c.bits != nil {
		if c.has(low) {
			return
		}
		c.ownBits()[low/64] |= 1 << (low % 64)
		if c.n++; c.n == chunkSize {
			*c = chunk{key: c.key, n: c.n}
		}
		return
	}
	at := len(c.lows)
	if c.lows[at-1] >= low {
		var found bool
		if at, found = slices.BinarySearch(c.lows, low); found {
			return
		}
	}
	if c.n == maxLows {
		c.bits, c.lows, c.shared = c.copyBits(), nil, false
		c.add(low)
		return
	}
	if len(c.lows) == cap(c.lows) || c.shared && at < len(c.lows) {
		c.lows, c.shared = append(make([]uint16, 0, (roomFor(len(c.lows))+3)&^3), c.lows...), false
	}
	c.lows = slices.Insert(c.lows, at, low)
	c.n++
	if lo := c.lows[0]; uint32(c.lows[c.n-1]-lo) == c.n-1 {
		*c = chunk{key: c.key, lo: lo, n: c.n}
	}
}

// remove removes an id that is there.
func (c *chunk) remove(low uint16) {
	if c.isRun() {
		switch {
		case low == c.lo:
			c.lo, c.n = c.lo+1, c.n-1
			return
		case uint32(low) == uint32(c.lo)+c.n-1:
			c.n--
			return
		}
		c.expand()
	}
	c.n--
	if c.bits != nil {
		if c.ownBits()[low/64] &^= 1 << (low % 64); c.n == 0 {
			c.bits = nil
		}
		return
	}
	at, _ := slices.BinarySearch(c.lows, low)
	if c.shared {
		c.lows, c.shared = slices.Clone(c.lows), false
	}
	if c.lows = slices.Delete(c.lows, at, at+1); c.n == 0 {
		c.lows = nil
	}
}

// expand makes lows, or bits, of a run.
func (c *chunk) expand() {
	c.shared = false
	if c.n > maxLows {
		c.bits = c.copyBits()
		return
	}
	lows := make([]uint16, 0, (roomFor(int(c.n))+3)&^3)
	for low := range c.all {
		lows = append(lows, low)
	}
	c.lows = lows
}

// ownBits returns the bits for changing them.
func (c *chunk) ownBits() *words {
	if c.shared {
		c.bits, c.shared = c.copyBits(), false
	}
	return c.bits
}

// copyBits returns the ids as bits of their own.
func (c *chunk) copyBits() *words {
	out := new(words)
	if c.bits != nil {
		*out = *c.bits
	} else {
		out.or(*c)
	}
	return out
}

// or sets the bits of the ids of c.
func (w *words) or(c chunk) {
	switch {
	case c.bits != nil:
		for i := range w {
			w[i] |= c.bits[i]
		}
	case c.lows != nil:
		for _, low := range c.lows {
			w[low/64] |= 1 << (low % 64)
		}
	default:
		w.run(c, func(word *uint64, mask uint64) { *word |= mask })
	}
}

// clear clears the bits of the ids of c.
func (w *words) clear(c chunk) {
	switch {
	case c.bits != nil:
		for i := range w {
			w[i] &^= c.bits[i]
		}
	case c.lows != nil:
		for _, low := range c.lows {
			w[low/64] &^= 1 << (low % 64)
		}
	default:
		w.run(c, func(word *uint64, mask uint64) { *word &^= mask })
	}
}

// run calls with for each word with bits of a run, and the mask of these.
func (w *words) run(c chunk, with func(word *uint64, mask uint64)) {
	first, last := uint32(c.lo), uint32(c.lo)+c.n-1
	for i := first / 64; i <= last/64; i++ {
		mask := ^uint64(0)
		if i == first/64 {
			mask <<= first % 64
		}
		if i == last/64 {
			mask &= ^uint64(0) >> (63 - last%64)
		}
		with(&w[i], mask)
	}
}

// chunk returns the ids whose bits are set, in a form that takes little.
func (w *words) chunk(key uint32) chunk {
	out := chunk{key: key}
	for _, word := range w {
		out.n += uint32(bits.OnesCount64(word))
	}
	switch {
	case out.n == 0:
	case out.n == chunkSize:
	case out.n <= maxLows:
		of := chunk{n: out.n, bits: w}
		out.lows = make([]uint16, 0, out.n)
		for low := range of.all {
			out.lows = append(out.lows, low)
		}
	default:
		out.bits = w
	}
	return out
}

// filter returns the ids of lows that other has, or with want false those that it has not.
func (c chunk) filter(other chunk, want bool) chunk {
	out := chunk{key: c.key, lows: make([]uint16, 0, len(c.lows))}
	rest := other.lows
	for _, low := range c.lows {
		var found bool
		if other.lows != nil {
			rest, found = skipTo(rest, low)
		} else {
			found = other.has(low)
		}
		if found == want {
			out.lows = append(out.lows, low)
		}
	}
	out.n = uint32(len(out.lows))
	return out
}

// skipTo cuts off what is below low. It searches in doubling steps, so that finding few in many does not pass over all.
func skipTo(lows []uint16, low uint16) (rest []uint16, found bool) {
	step := 1
	for step < len(lows) && lows[step] < low {
		step *= 2
	}
	i, found := slices.BinarySearch(lows[step/2:min(step+1, len(lows))], low)
	return lows[step/2+i:], found
}

// covers returns whether c is a run that has all ids of other.
func (c *chunk) covers(other chunk) bool {
	return c.isRun() && (c.n == chunkSize || other.isRun() && other.lo >= c.lo && uint32(other.lo)+other.n <= uint32(c.lo)+c.n)
}

// and returns the ids that are in both chunks, which have the same key.
func and(a, b chunk) chunk {
	switch {
	case b.covers(a):
		return a
	case a.covers(b):
		return b
	case a.lows != nil && (b.lows == nil || len(a.lows) <= len(b.lows)):
		return a.filter(b, true)
	case b.lows != nil:
		return b.filter(a, true)
	case a.isRun() && b.isRun():
		lo, end := max(a.lo, b.lo), min(uint32(a.lo)+a.n, uint32(b.lo)+b.n)
		if uint32(lo) >= end {
			return chunk{}
		}
		return chunk{key: a.key, lo: lo, n: end - uint32(lo)}
	}
	w, other := a.copyBits(), b.bits
	if other == nil {
		other = b.copyBits()
	}
	for i := range w {
		w[i] &= other[i]
	}
	return w.chunk(a.key)
}

// andNot returns the ids of a that are not in b, which has the same key.
func andNot(a, b chunk) chunk {
	switch {
	case b.covers(a):
		return chunk{}
	case a.lows != nil:
		return a.filter(b, false)
	}
	w := a.copyBits()
	w.clear(b)
	return w.chunk(a.key)
}
