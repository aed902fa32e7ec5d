package spool

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math"
	"slices"
)

// The bytes of a segment; docs/format/spool.md describes them. All numbers are little endian.
const (
	headerMagic  = "QNSPOOL\n"
	footerMagic  = "QNSPEND\n"
	version      = 1
	headerBytes  = 44
	frameBytes   = 41 // of a record, before its name
	trailerBytes = 56
	maxName      = math.MaxUint8
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrVersion says that a newer program wrote a segment.
var ErrVersion = errors.New("unknown format version")

var errDamaged = errors.New("damaged")

// header begins a segment.
type header struct {
	// salt is random. It is part of the checksum of each record, so that bytes in a payload that look like a
	// record are none.
	salt uint64
	// first is a number that no record of the segment is below.
	first uint64
	// before is the number that all acknowledged records of earlier segments are below. So a gap between
	// these records and this number is a loss.
	before uint64
}

func (h header) append(b []byte) []byte {
	start := len(b)
	b = append(b, headerMagic...)
	b = binary.LittleEndian.AppendUint32(b, version)
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, h.salt)
	b = binary.LittleEndian.AppendUint64(b, h.first)
	b = binary.LittleEndian.AppendUint64(b, h.before)
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli))
}

func decodeHeader(b []byte) (h header, err error) {
	if len(b) < headerBytes || string(b[:8]) != headerMagic {
		return h, fmt.Errorf("%w: it does not begin as a segment", errDamaged)
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != version {
		return h, fmt.Errorf("%w: it has version %d, and this program knows %d", ErrVersion, v, version)
	}
	if crc32.Checksum(b[:headerBytes-4], castagnoli) != binary.LittleEndian.Uint32(b[headerBytes-4:]) {
		return h, fmt.Errorf("%w: the checksum of its header does not match", errDamaged)
	}
	return header{
		salt: binary.LittleEndian.Uint64(b[16:]), first: binary.LittleEndian.Uint64(b[24:]), before: binary.LittleEndian.Uint64(b[32:]),
	}, nil
}

// frame is a record with what a segment knows of it.
type frame struct {
	Record
	// number is the record's place in the spool.
	number uint64
	// group is the number of the first record that was synced together with this one. So all below it
	// were durable before this record was written.
	group uint64
	// index counts the records of the file from 0.
	index uint32
	// sum is the checksum of the payload.
	sum uint32
}

func frameSize(r *Record) int64 { return frameBytes + int64(len(r.Stream)) + int64(len(r.Payload)) }

// seed is the checksum's start for a frame at an offset.
func seed(salt uint64, offset int64) uint32 {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], salt)
	binary.LittleEndian.PutUint64(b[8:], uint64(offset))
	return crc32.Checksum(b[:], castagnoli)
}

// append appends the frame, which begins at an offset of the segment's file.
func (f *frame) append(b []byte, h header, offset int64) []byte {
	start := len(b)
	b = append(b, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, f.sum)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(f.Payload)))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.number-h.first))
	b = binary.LittleEndian.AppendUint32(b, uint32(f.group-h.first))
	b = binary.LittleEndian.AppendUint32(b, f.index)
	b = binary.LittleEndian.AppendUint64(b, f.SeqID)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.TimeMs))
	b = append(b, byte(len(f.Stream)))
	b = append(b, f.Stream...)
	binary.LittleEndian.PutUint32(b[start:], crc32.Update(seed(h.salt, offset), castagnoli, b[start+4:]))
	return append(b, f.Payload...)
}

// tally counts records.
type tally struct {
	Records uint64
	Bytes   int64
}

func (t *tally) add(bytes int64) {
	t.Records++
	t.Bytes += bytes
}

// footer ends a segment that is not written any more.
type footer struct {
	// next is the number after the last record, and end the offset after it.
	next uint64
	end  int64
	// durable is the number that all records of this file that were acknowledged are below.
	durable uint64
	// newestMs is the time of the newest record.
	newestMs int64
	// records counts those of all streams.
	records uint64
	streams map[string]tally
}

func (f *footer) append(b []byte, salt uint64) []byte {
	start := len(b)
	b = binary.AppendUvarint(b, uint64(len(f.streams)))
	for _, name := range slices.Sorted(maps.Keys(f.streams)) {
		b = append(b, byte(len(name)))
		b = append(b, name...)
		b = binary.AppendUvarint(b, f.streams[name].Records)
		b = binary.AppendUvarint(b, uint64(f.streams[name].Bytes))
	}
	length := len(b) - start
	b = binary.LittleEndian.AppendUint64(b, f.next)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.end))
	b = binary.LittleEndian.AppendUint64(b, f.durable)
	b = binary.LittleEndian.AppendUint64(b, uint64(f.newestMs))
	b = binary.LittleEndian.AppendUint64(b, f.records)
	b = binary.LittleEndian.AppendUint32(b, uint32(length))
	b = binary.LittleEndian.AppendUint32(b, crc32.Update(seed(salt, 0), castagnoli, b[start:]))
	return append(b, footerMagic...)
}

// readFooter returns the footer of a file of size bytes, or false if there is none that is whole.
func readFooter(r io.ReaderAt, size int64, h header) (f footer, ok bool) {
	if size < headerBytes+trailerBytes {
		return f, false
	}
	var t [trailerBytes]byte
	if _, err := r.ReadAt(t[:], size-trailerBytes); err != nil || string(t[48:]) != footerMagic {
		return f, false
	}
	f.next = binary.LittleEndian.Uint64(t[0:])
	f.end = int64(binary.LittleEndian.Uint64(t[8:]))
	f.durable = binary.LittleEndian.Uint64(t[16:])
	f.newestMs = int64(binary.LittleEndian.Uint64(t[24:]))
	f.records = binary.LittleEndian.Uint64(t[32:])
	length := int64(binary.LittleEndian.Uint32(t[40:]))
	start := size - trailerBytes - length
	if f.end < headerBytes || f.end > start || f.next < h.first {
		return f, false
	}
	body := make([]byte, length)
	if _, err := r.ReadAt(body, start); err != nil {
		return f, false
	}
	sum := crc32.Update(crc32.Update(seed(h.salt, 0), castagnoli, body), castagnoli, t[:44])
	if sum != binary.LittleEndian.Uint32(t[44:]) {
		return f, false
	}
	n, used := binary.Uvarint(body)
	if used <= 0 || n > uint64(len(body)) {
		return f, false
	}
	body = body[used:]
	f.streams = map[string]tally{}
	for range n {
		if len(body) == 0 || len(body) < 1+int(body[0]) {
			return f, false
		}
		name := string(body[1 : 1+body[0]])
		body = body[1+body[0]:]
		records, used := binary.Uvarint(body)
		if used <= 0 {
			return f, false
		}
		body = body[used:]
		bytes, used := binary.Uvarint(body)
		if used <= 0 || bytes > uint64(size) {
			return f, false
		}
		body = body[used:]
		f.streams[name] = tally{records, int64(bytes)}
	}
	return f, len(body) == 0
}

// damage is a part of a segment that has no record, where one was or may have been.
type damage struct {
	offset, bytes int64
	// records is how many were there, as far as that is known.
	records uint64
	// stream is whose they were, or "" if that is unknown.
	stream string
	// torn says that none of them was acknowledged: the writer was interrupted.
	torn bool
}

// scanner reads the records of a segment in order. It passes over what is damaged, and goes on at the next
// record: the first offset at which the checksum of a record's fields matches. Its cost is linear in the
// bytes read, and its memory is that of one record and a window.
type scanner struct {
	r io.ReaderAt
	header
	// end is the offset after the last record, or the file's size if that is unknown.
	end int64
	// records is how many records the file has, or 0 if that is unknown. Those below durable were acknowledged.
	records uint64
	durable uint64

	off    int64
	window []byte // of the file, from offset at
	at     int64
	// number and index follow the last record.
	number uint64
	index  uint32
}

const windowBytes = 64 << 10

func newScanner(r io.ReaderAt, h header, end int64, records, durable uint64) *scanner {
	return &scanner{r: r, header: h, end: end, records: records, durable: durable, off: headerBytes, number: h.first}
}

// peek returns the n bytes from off, or those that are left.
func (sc *scanner) peek(n int64) ([]byte, error) {
	n = min(n, sc.end-sc.off)
	if have := sc.at + int64(len(sc.window)); sc.off < sc.at || sc.off+n > have {
		size := min(max(n, windowBytes), sc.end-sc.off)
		if int64(cap(sc.window)) < size || int64(cap(sc.window)) > 2*max(size, windowBytes) {
			sc.window = make([]byte, size)
		}
		sc.window = sc.window[:size]
		sc.at = sc.off
		if got, err := sc.r.ReadAt(sc.window, sc.off); err != nil && !(errors.Is(err, io.EOF) && got > 0) {
			sc.window = sc.window[:0]
			return nil, err
		} else if got < len(sc.window) { // the file has become shorter
			sc.window = sc.window[:got]
			sc.end = sc.off + int64(got)
			n = min(n, int64(got))
		}
	}
	from := sc.off - sc.at
	return sc.window[from : from+n], nil
}

// fields returns the fields of the record at off, if there is one, and its size. Its payload is not read.
func (sc *scanner) fields() (f frame, size int64, ok bool, err error) {
	b, err := sc.peek(frameBytes + maxName)
	if err != nil || len(b) < frameBytes || b[40] == 0 || len(b) < frameBytes+int(b[40]) {
		return f, 0, false, err
	}
	name := b[frameBytes : frameBytes+int(b[40])]
	payload := int64(binary.LittleEndian.Uint32(b[8:]))
	size = frameBytes + int64(len(name)) + payload
	f.number = sc.first + uint64(binary.LittleEndian.Uint32(b[12:]))
	f.group = sc.first + uint64(binary.LittleEndian.Uint32(b[16:]))
	f.index = binary.LittleEndian.Uint32(b[20:])
	if size > sc.end-sc.off || f.number < sc.number || f.group > f.number || f.index < sc.index {
		return f, 0, false, nil
	}
	if crc32.Update(seed(sc.salt, sc.off), castagnoli, b[4:frameBytes+len(name)]) != binary.LittleEndian.Uint32(b) {
		return f, 0, false, nil
	}
	f.sum = binary.LittleEndian.Uint32(b[4:])
	f.SeqID = binary.LittleEndian.Uint64(b[24:])
	f.TimeMs = int64(binary.LittleEndian.Uint64(b[32:]))
	f.Stream = string(name)
	return f, size, true, nil
}

// next returns the next record, or a damage. Its payload is valid until the next call. At the end the error
// is io.EOF.
func (sc *scanner) next() (f frame, bad *damage, err error) {
	start, blank := sc.off, true
	var size int64
	found := false
	for sc.off < sc.end {
		if f, size, found, err = sc.fields(); err != nil {
			return f, nil, err
		}
		if found {
			break
		}
		b, err := sc.peek(1)
		if err != nil {
			return f, nil, err
		}
		blank = blank && (len(b) == 0 || b[0] == 0)
		sc.off++
	}
	passed := min(sc.off, sc.end) - start
	switch {
	case found && passed > 0:
		bad = &damage{offset: start, bytes: passed, records: uint64(f.index - sc.index), torn: sc.number >= max(f.group, sc.durable)}
		sc.number, sc.index = f.number, f.index
		return f, bad, nil
	case !found && sc.records > uint64(sc.index):
		bad = &damage{offset: start, bytes: passed, records: sc.records - uint64(sc.index), torn: sc.number >= sc.durable}
		sc.index = uint32(sc.records)
		return f, bad, nil
	case !found && passed > 0 && !blank:
		return f, &damage{offset: start, bytes: passed, torn: sc.number >= sc.durable}, nil
	case !found:
		return f, nil, io.EOF
	}
	b, err := sc.peek(size)
	if err != nil {
		return f, nil, err
	}
	offset := sc.off
	sc.off += size
	if int64(len(b)) == size {
		f.Payload = b[frameBytes+len(f.Stream):]
	}
	sc.number, sc.index = f.number+1, f.index+1
	if int64(len(b)) < size || crc32.Checksum(f.Payload, castagnoli) != f.sum {
		return f, &damage{offset: offset, bytes: size, records: 1, stream: f.Stream, torn: f.number >= sc.durable && f.number >= f.group}, nil
	}
	return f, nil, nil
}
