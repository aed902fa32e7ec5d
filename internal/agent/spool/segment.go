package spool

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A segment is a file of records, one after another. A record is the length of its payload and the checksum of that (4 bytes
// each, big endian), and the payload: a chunk.

const (
	segmentSuffix = ".chunks"
	headBytes     = 8
	// maxPayload bounds a record. A longer one is damage.
	maxPayload = 64 << 20
	maxName    = 4 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// segment is what is known of a file.
type segment struct {
	number uint64
	// bytes is where the last whole record ends.
	bytes   int64
	samples int
	// oldest and newest are the running times at which its first and its last chunk came.
	oldest, newest time.Duration
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x%s", number, segmentSuffix) }

// segmentNumber returns the number of a segment's file. ok is false for other files.
func segmentNumber(name string) (n uint64, ok bool) {
	hex, ok := strings.CutSuffix(name, segmentSuffix)
	n, err := strconv.ParseUint(hex, 16, 64)
	return n, ok && err == nil
}

// appendRecord appends the record of a chunk that came at a running time.
func appendRecord(b []byte, c *Chunk, at time.Duration) ([]byte, error) {
	switch {
	case !utf8.ValidString(c.Stream):
		return b, fmt.Errorf("the stream %q: its name is not UTF-8", c.Stream)
	case len(c.Stream) > maxName || len(c.State) > maxName:
		return b, fmt.Errorf("the stream %.100q…: its name or state has more than %d bytes", c.Stream, maxName)
	}
	begin := len(b)
	b = append(b, make([]byte, headBytes)...)
	for _, n := range []uint64{uint64(at), c.Generation, c.Seq, uint64(c.Samples), uint64(len(c.Stream)), uint64(len(c.State))} {
		b = binary.AppendUvarint(b, n)
	}
	b = append(append(append(b, c.Stream...), c.State...), c.Data...)
	payload := b[begin+headBytes:]
	if len(payload) > maxPayload {
		return b[:begin], fmt.Errorf("a chunk of the stream %q has %d bytes, more than %d", c.Stream, len(payload), maxPayload)
	}
	binary.BigEndian.PutUint32(b[begin:], uint32(len(payload)))
	binary.BigEndian.PutUint32(b[begin+4:], crc32.Checksum(payload, castagnoli))
	return b, nil
}

func parsePayload(b []byte) (c Chunk, at time.Duration, ok bool) {
	var n [6]uint64
	for i := range n {
		x, width := binary.Uvarint(b)
		if width <= 0 {
			return c, 0, false
		}
		n[i], b = x, b[width:]
	}
	if left := uint64(len(b)); n[4] > left || n[5] > left-n[4] {
		return c, 0, false
	}
	stream, state, data := b[:n[4]], b[n[4]:n[4]+n[5]], b[n[4]+n[5]:]
	return Chunk{Stream: string(stream), Point: Point{n[1], n[2], string(state)}, Samples: int(n[3]), Data: data}, time.Duration(n[0]), true
}

// record is a chunk of a segment, with the offset behind it.
type record struct {
	Chunk
	at  time.Duration
	end int64
}

// read calls yield with the records in [from, to) of a file until that returns false. It passes over what is damaged: a record,
// or, if its length is damaged, all behind it. damage has the offset of the first that is, and is -1 if none is.
func read(files vfs.FS, path string, from, to int64, yield func(record) bool) (damage int64, err error) {
	f, err := files.Open(path)
	if err != nil {
		return -1, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	in := bufio.NewReaderSize(io.NewSectionReader(f, from, to-from), 64<<10)
	damage = -1
	for at := from; at < to; {
		head, err := in.Peek(headBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return damage, err
		}
		length := int64(-1)
		if len(head) == headBytes {
			length = int64(binary.BigEndian.Uint32(head))
		}
		end := at + headBytes + length
		if length < 0 || length > maxPayload || end > to {
			return earlier(damage, at), nil
		}
		sum := binary.BigEndian.Uint32(head[4:])
		payload := make([]byte, headBytes+length)
		if _, err := io.ReadFull(in, payload); err != nil {
			return damage, err
		}
		payload = payload[headBytes:]
		c, came, ok := parsePayload(payload)
		if !ok || crc32.Checksum(payload, castagnoli) != sum {
			damage = earlier(damage, at)
		} else if !yield(record{c, came, end}) {
			return damage, nil
		}
		at = end
	}
	return damage, nil
}

// earlier returns the earlier offset of two, where a negative one is none.
func earlier(damage, at int64) int64 {
	if damage < 0 {
		return at
	}
	return damage
}
