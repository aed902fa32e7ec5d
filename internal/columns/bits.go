package columns

import (
	"encoding/binary"
	"math/bits"
)

// bitWriter writes bits from the end of a buffer to its start: what is written last is read first. tANS encodes the last
// symbol first, so a reader goes forward.
type bitWriter struct {
	buf  []byte // full from its end down to pos
	pos  int
	word uint64
	held uint // bits in word that are not in buf yet, below 32 between calls
}

// reset makes room for so many bytes.
func (w *bitWriter) reset(room int) {
	if len(w.buf) < room {
		w.buf = make([]byte, room)
	}
	w.pos, w.word, w.held = len(w.buf), 0, 0
}

// put writes the n low bits of v, n at most 32.
func (w *bitWriter) put(v uint64, n uint) {
	w.word = w.word<<n | v&(1<<n-1)
	if w.held += n; w.held >= 32 {
		w.held -= 32
		w.pos -= 4
		binary.LittleEndian.PutUint32(w.buf[w.pos:], uint32(w.word>>w.held))
	}
}

// putLong writes the n low bits of v, n at most 64.
func (w *bitWriter) putLong(v uint64, n uint) {
	if n > 32 {
		w.put(v>>32, n-32)
		n = 32
	}
	w.put(v, n)
}

// finish returns the bytes. The lowest bit that is set in the first of them is the last one before the bits.
func (w *bitWriter) finish() []byte {
	w.put(1, 1)
	w.put(0, (8-w.held%8)%8)
	for w.held > 0 {
		w.held -= 8
		w.pos--
		w.buf[w.pos] = byte(w.word >> w.held)
	}
	return w.buf[w.pos:]
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
