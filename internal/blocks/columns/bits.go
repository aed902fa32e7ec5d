package columns

import (
	"encoding/binary"
	"math/bits"
)

// bitWriter writes bits from the end of a buffer to its start: what is written last is read first. tANS encodes the last
// symbol first, so a reader goes forward. It is passed by value, so that it stays in registers.
type bitWriter struct {
	pos  int    // the buffer is full from its end down to here
	word uint64 // its low bits are not in the buffer yet
	held uint   // how many, below 8
}

// maxPut is the number of bits that put writes at most.
const maxPut = 56

// put writes the n low bits of v, n at most maxPut. It stores eight bytes whether they are full or not, since a processor
// cannot foretell when they are.
func (w bitWriter) put(buf []byte, v uint64, n uint) bitWriter {
	w.word = w.word<<(n&63) | v&(1<<(n&63)-1)
	w.held += n
	binary.LittleEndian.PutUint64(buf[w.pos-8:], w.word<<(-w.held&63))
	w.pos -= int(w.held >> 3)
	w.held &= 7
	return w
}

// putLong writes the n low bits of v, n at most 64.
func (w bitWriter) putLong(buf []byte, v uint64, n uint) bitWriter {
	if n > 32 {
		w = w.put(buf, v>>32, n-32)
		n = 32
	}
	return w.put(buf, v, n)
}

// finish returns the bytes. The lowest bit that is set in the first of them is the last one before the bits.
func (w bitWriter) finish(buf []byte) []byte {
	w = w.put(buf, 1, 1)
	w = w.put(buf, 0, -w.held&7)
	return buf[w.pos:]
}

// padding is how many bytes a bitReader may look at behind its bits.
const padding = 16

// bitReader reads what a bitWriter wrote. Positions are checked by the caller, against end: a read begins at most there.
type bitReader struct {
	src []byte // with padding
	pos uint   // in bits
	end uint   // in bits
}

// newBitReader reads b, of which padded is a copy with padding.
func newBitReader(b, padded []byte) (r bitReader, ok bool) {
	if len(b) == 0 || b[0] == 0 {
		return r, false
	}
	return bitReader{src: padded, pos: uint(bits.TrailingZeros8(b[0])) + 1, end: uint(len(b)) * 8}, true
}

// peek returns at least 56 bits from a position on.
func (r *bitReader) peek(pos uint) uint64 {
	return binary.LittleEndian.Uint64(r.src[pos>>3:]) >> (pos & 7)
}

// read reads n bits, n at most 64.
func (r *bitReader) read(n uint) uint64 {
	v := r.peek(r.pos)
	if n > 56 {
		if low := r.pos & 7; low > 0 {
			v |= uint64(r.src[r.pos>>3+8]) << (64 - low)
		}
	}
	r.pos += n
	return v & (1<<n - 1) // 1<<64 is 0 in Go
}
