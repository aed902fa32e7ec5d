package blocks

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"sync"
)

// ID orders chunks and marks: a UUIDv7 (RFC 9562) whose 48-bit millisecond, 12-bit
// sequence and 62-bit tail are filled as NewIDs or KeyID say. Compare gives the
// order of writing; of two samples with the same schedule and time the one in the
// chunk with the greater ID wins.
type ID [16]byte

// Compare orders ids by their bytes.
func (id ID) Compare(o ID) int { return bytes.Compare(id[:], o[:]) }

// String is the id in hexadecimal.
func (id ID) String() string { return hex.EncodeToString(id[:]) }

// TimeMs is the id's millisecond.
func (id ID) TimeMs() int64 { return int64(binary.BigEndian.Uint64(id[:8]) >> 16) }

func makeID(ms int64, seq uint16, tail uint64) ID {
	var id ID
	binary.BigEndian.PutUint64(id[:8], uint64(ms)<<16|0x7000|uint64(seq&0xfff))
	binary.BigEndian.PutUint64(id[8:], 0x8000000000000000|tail&0x3fffffffffffffff)
	return id
}

// IDs makes the ids of one writer, each greater than the one before even when its
// clock steps back. The writer's random number keeps ids of several writers apart.
type IDs struct {
	writer uint64

	mu  sync.Mutex
	ms  int64
	seq uint16
}

// NewIDs makes a source of ids for a writer with the given random number.
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

// Next is the writer's next id, made at nowMs.
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

// KeyID is an id that follows from what it is of: a time in Unix ms, by which it
// orders, and a hash of the rest.
func KeyID(ms int64, hash uint64) ID { return makeID(ms, 0, hash) }
