package columns

import (
	"encoding/binary"
	"math"
)

// parser reads numbers from bytes. What cannot be read is 0 and sets bad.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) bytes(n int) []byte {
	if n > len(p.b) {
		p.bad = true
		return nil
	}
	b := p.b[:n]
	p.b = p.b[n:]
	return b
}

func (p *parser) byte() byte {
	if len(p.b) == 0 {
		p.bad = true
		return 0
	}
	b := p.b[0]
	p.b = p.b[1:]
	return b
}

// uvarint reads a number that is at most most.
func (p *parser) uvarint(most uint64) uint64 {
	if len(p.b) > 0 && p.b[0] < 0x80 && uint64(p.b[0]) <= most { // as mostly
		v := p.b[0]
		p.b = p.b[1:]
		return uint64(v)
	}
	v, n := binary.Uvarint(p.b)
	if n <= 0 || v > most {
		p.bad = true
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) varint() int64 {
	v, n := binary.Varint(p.b)
	if n <= 0 {
		p.bad = true
		return 0
	}
	p.b = p.b[n:]
	return v
}

func (p *parser) word() uint64 {
	b := p.bytes(8)
	if p.bad {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

func (p *parser) float() float64 { return math.Float64frombits(p.word()) }
