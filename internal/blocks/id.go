package blocks

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"sync"
)

// ID orders chunks and marks. It is a UUIDv7 (RFC 9562). NewIDs and KeyID fill its 48-bit
// millisecond, 12-bit sequence and 62-bit tail. Compare gives the order of writing. Of two samples
// with the same schedule and time, the sample in the chunk with the greater ID wins.
type ID [16]byte

// Compare orders ids by their bytes.
func (id ID) Compare(o ID) int { return bytes.Compare(id[:], o[:]) }

// String returns the id in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// TimeMs returns the id's time in Unix ms.
func (id ID) TimeMs() int64 { return int64(binary.BigEndian.Uint64(id[:8]) >> 16) }

// ErrStale says that chunks were not durable soon enough after their ids were drawn: whoever packs raw chunks takes those with
// settled ids for all that there are. The samples may be written again, with new ids.
var ErrStale = errors.New("the write took so long that its place in the order has passed")

func makeID(ms int64, seq uint16, tail uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16|0x7000|uint64(seq&0xfff))
	binary.BigEndian.PutUint64(id[8:], 0x8000000000000000|tail&0x3fffffffffffffff)
	return id
}

// IDs generates the ids of one writer. Each id is greater than the one before, even when the clock
// steps back. The writer's random number keeps the ids of several writers apart.
type IDs struct {
	writer uint64

	mu  sync.Mutex
	ms  int64
	seq uint16
}

// NewIDs returns a generator of ids for a writer with the given random number.
func NewIDs(writer uint64) *IDs { return &IDs{writer: writer} }

// Skip makes all further ids greater than id.
func (s *IDs) Skip(id ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hi := binary.BigEndian.Uint64(id[:8])
	if ms, seq := int64(hi>>16), uint16(hi&0xfff); ms > s.ms || ms == s.ms && seq > s.seq {
		s.ms, s.seq = ms, seq
	}
}

// Next returns the writer's next id, made at nowMs.
func (s *IDs) Next(nowMs int64) ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case nowMs > s.ms:
		s.ms, s.seq = nowMs, 0
	case s.seq == 0xfff:
		s.ms, s.seq = s.ms+1, 0
	default:
		s.seq++
	}
	return makeID(s.ms, s.seq, s.writer)
}

// Place returns the writer's next place in the order, taken at nowMs.
func (s *IDs) Place(nowMs int64) *Place {
	next := s.Next(nowMs)
	return &Place{next}
}

// Place is a place in the order of a writer's ids that was taken before its chunks were known. All ids of a place are above
// the ids that the writer has made before it, and below those that it makes later. Place is not safe for concurrent use.
type Place struct{ last ID }

// TimeMs returns the time of the ids of the place, in Unix ms.
func (p *Place) TimeMs() int64 { return p.last.TimeMs() }

// Next returns the next id of the place.
func (p *Place) Next() ID {
	hi, tail := binary.BigEndian.Uint64(p.last[:8]), binary.BigEndian.Uint64(p.last[8:])
	p.last = makeID(int64(hi>>16), uint16(hi&0xfff), tail+1)
	return p.last
}

// KeyID returns an id that is derived from its subject: a time in Unix ms, which orders it, and a
// hash of the rest.
func KeyID(ms int64, hash uint64) ID { return makeID(ms, 0, hash) }
