package remotewrite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"google.golang.org/protobuf/encoding/protowire"
)

// These are protobuf's wire types of the known fields.
const (
	varintType  = int(protowire.VarintType)
	fixed64Type = int(protowire.Fixed64Type)
	bytesType   = int(protowire.BytesType)
)

var errTruncated = errors.New("the message ends early")

// message decodes the fields of one protobuf message in wire order. After the first error there are
// no more fields, and values are zero.
type message struct {
	b   []byte
	i   int // read position in b
	err error
}

func (m *message) more() bool { return m.i < len(m.b) && m.err == nil }

func (m *message) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// tag decodes the start of a field: its number and wire type.
func (m *message) tag() (field, typ int) {
	if m.i < len(m.b) && m.b[m.i] < 0x80 && m.b[m.i] >= 1<<3 {
		x := m.b[m.i]
		m.i++
		return int(x >> 3), int(x & 7)
	}
	return m.longTag()
}

func (m *message) longTag() (field, typ int) {
	num, t := protowire.DecodeTag(m.varint())
	if num < protowire.MinValidNumber {
		m.fail(errors.New("a field number is invalid"))
		return 0, 0
	}
	return int(num), int(t)
}

func (m *message) varint() uint64 {
	if m.i < len(m.b) && m.b[m.i] < 0x80 {
		x := m.b[m.i]
		m.i++
		return uint64(x)
	}
	return m.longVarint()
}

func (m *message) longVarint() uint64 {
	x, n := binary.Uvarint(m.b[m.i:])
	switch {
	case m.err != nil:
	case n > 0:
		m.i += n
		return x
	case n == 0:
		m.fail(errTruncated)
	default:
		m.fail(errors.New("a varint has more than 64 bits"))
	}
	return 0
}

// expect checks the wire type of a known field.
func (m *message) expect(field, typ, want int) bool {
	if typ != want {
		m.fail(fmt.Errorf("field %d has wire type %d, must be %d", field, typ, want))
	}
	return m.err == nil
}

// uint decodes the varint value of a known field.
func (m *message) uint(field, typ int) uint64 {
	if typ != varintType && !m.expect(field, typ, varintType) {
		return 0
	}
	return m.varint()
}

// float decodes the double value of a known field, bit for bit.
func (m *message) float(field, typ int) float64 {
	if !m.expect(field, typ, fixed64Type) {
		return 0
	}
	if len(m.b)-m.i < 8 {
		m.fail(errTruncated)
		return 0
	}
	x := binary.LittleEndian.Uint64(m.b[m.i:])
	m.i += 8
	return math.Float64frombits(x)
}

// bytes decodes the string or message value of a known field as a slice of the message.
func (m *message) bytes(field, typ int) []byte {
	if typ != bytesType && !m.expect(field, typ, bytesType) {
		return nil
	}
	n := m.varint()
	if n > uint64(len(m.b)-m.i) {
		m.fail(errTruncated)
		return nil
	}
	begin := m.i
	m.i += int(n)
	return m.b[begin:m.i]
}

// text is bytes as a string, which is valid as long as the message.
func (m *message) text(field, typ int) string {
	b := m.bytes(field, typ)
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// skip skips the value of a field.
func (m *message) skip(field, typ int) {
	if m.err != nil {
		return
	}
	if typ == bytesType {
		m.bytes(field, typ)
		return
	}
	n := protowire.ConsumeFieldValue(protowire.Number(field), protowire.Type(typ), m.b[m.i:])
	if n < 0 {
		m.fail(protowire.ParseError(n))
		return
	}
	m.i += n
}
