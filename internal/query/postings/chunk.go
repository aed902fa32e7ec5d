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

// chunk is the ids of a list with the same high bits, n of them: the low bits of up to maxLows ids, in order, or a bit for
// each id.
type chunk struct {
	key  uint32 // the high bits
	n    uint32
	lows []uint16
	bits *words
	// shared says that snapshots may have the array in lows or bits. What is beyond the end of lows they do not have.
	shared bool
}

// words have a bit for each id of a chunk.
type words [chunkSize / 64]uint64

// full has all bits. Whole chunks share it.
var full = func() *words {
	w := new(words)
	w.fill(0, chunkSize)
	return w
}()

// run returns the chunk of n ids without a gap.
func run(key uint32, low uint16, n uint32) chunk {
	c := chunk{key: key, n: n}
	switch {
	case n == chunkSize:
		c.bits, c.shared = full, true
	case n > maxLows:
		c.bits = new(words)
		c.bits.fill(uint32(low), uint32(low)+n)
	default:
		c.lows = make([]uint16, n, lowsRoom(int(n)))
		for i := range c.lows {
			c.lows[i] = low + uint16(i)
		}
	}
	return c
}

// hasNoGap returns whether the chunk is known to have all ids from its first to its last.
func (c *chunk) hasNoGap() bool {
	return c.n == chunkSize || len(c.lows) > 0 && uint32(c.lows[c.n-1]-c.lows[0]) == c.n-1
}

// first returns the first id.
func (c *chunk) first() uint32 {
	for low := range c.all {
		return c.key<<chunkBits | uint32(low)
	}
	return 0
}

// bytes returns what the chunk holds beside itself.
func (c *chunk) bytes() int {
	n := 2 * cap(c.lows)
	if c.bits != nil && c.bits != full {
		n += int(unsafe.Sizeof(words{}))
	}
	return n
}

func (c *chunk) has(low uint16) bool {
	if c.bits != nil {
		return c.bits[low/64]&(1<<(low%64)) != 0
	}
	_, found := slices.BinarySearch(c.lows, low)
	return found
}

// all yields the low bits of the ids in order.
func (c *chunk) all(yield func(low uint16) bool) {
	for _, low := range c.lows {
		if !yield(low) {
			return
		}
	}
	if c.bits == nil {
		return
	}
	for i, word := range c.bits {
		for ; word != 0; word &= word - 1 {
			if !yield(uint16(i*64 + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}

// add adds an id.
func (c *chunk) add(low uint16) {
	if c.bits != nil {
		if c.has(low) {
			return
		}
		c.writableBits()[low/64] |= 1 << (low % 64)
		if c.n++; c.n == chunkSize {
			c.bits, c.shared = full, true
		}
		return
	}
	at := len(c.lows)
	if at > 0 && c.lows[at-1] >= low {
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
		c.lows, c.shared = append(make([]uint16, 0, lowsRoom(len(c.lows))), c.lows...), false
	}
	c.lows = slices.Insert(c.lows, at, low)
	c.n++
}

// remove removes an id that the chunk has.
func (c *chunk) remove(low uint16) {
	c.n--
	if c.bits != nil {
		c.writableBits()[low/64] &^= 1 << (low % 64)
		return
	}
	if c.shared {
		c.lows, c.shared = slices.Clone(c.lows), false
	}
	at, _ := slices.BinarySearch(c.lows, low)
	c.lows = slices.Delete(c.lows, at, at+1)
}

// lowsRoom returns the capacity for lows that outgrow n.
func lowsRoom(n int) int { return (roomFor(n) + 3) &^ 3 }

// writableBits returns the bits for changing them.
func (c *chunk) writableBits() *words {
	if c.shared {
		c.bits, c.shared = c.copyBits(), false
	}
	return c.bits
}

// copyBits returns the ids as bits of their own.
func (c *chunk) copyBits() *words {
	out := new(words)
	out.or(*c)
	return out
}

// or sets the bits of the ids of c.
func (w *words) or(c chunk) {
	for _, low := range c.lows {
		w[low/64] |= 1 << (low % 64)
	}
	if c.bits != nil {
		for i := range w {
			w[i] |= c.bits[i]
		}
	}
}

// fill sets the bits from first up to end.
func (w *words) fill(first, end uint32) {
	for first < end {
		if first%64 == 0 && end-first >= 64 {
			w[first/64] = ^uint64(0)
			first += 64
		} else {
			w[first/64] |= 1 << (first % 64)
			first++
		}
	}
}

// chunk returns the ids whose bits are set, in the form that takes less.
func (w *words) chunk(key uint32) chunk {
	out := chunk{key: key, bits: w}
	for _, word := range w {
		out.n += uint32(bits.OnesCount64(word))
	}
	switch {
	case out.n == chunkSize:
		out.bits = full
	case out.n <= maxLows:
		lows := make([]uint16, 0, out.n)
		for low := range out.all {
			lows = append(lows, low)
		}
		out.lows, out.bits = lows, nil
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

// and returns the ids that are in both chunks, which have the same key.
func and(a, b chunk) chunk {
	switch {
	case b.n == chunkSize:
		return a
	case a.n == chunkSize:
		return b
	case a.lows != nil && (b.lows == nil || len(a.lows) <= len(b.lows)):
		return a.filter(b, true)
	case b.lows != nil:
		return b.filter(a, true)
	}
	w := new(words)
	for i := range w {
		w[i] = a.bits[i] & b.bits[i]
	}
	return w.chunk(a.key)
}

// andNot returns the ids of a that are not in b, which has the same key.
func andNot(a, b chunk) chunk {
	switch {
	case b.n == chunkSize:
		return chunk{}
	case a.lows != nil:
		return a.filter(b, false)
	}
	w := b.copyBits()
	for i := range w {
		w[i] = a.bits[i] &^ w[i]
	}
	return w.chunk(a.key)
}
