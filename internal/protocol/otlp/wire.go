package otlp

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// tag is a field's tag on the wire: its number and its wire type.
type tag uint64

func bytesTag(n uint64) tag   { return tag(n<<3 | uint64(protowire.BytesType)) }
func varintTag(n uint64) tag  { return tag(n<<3 | uint64(protowire.VarintType)) }
func fixed64Tag(n uint64) tag { return tag(n<<3 | uint64(protowire.Fixed64Type)) }

// fields iterates over the fields of a message in wire order. Callers ignore fields with unknown
// numbers, and known fields with an unexpected wire type, as protobuf does.
type fields struct {
	rest []byte

	tag   tag
	bits  uint64 // of a varint or fixed64
	bytes []byte // of a string or message
	err   error
}

// next advances to the next field; it returns false at the end and after an error.
func (f *fields) next() bool {
	if f.err != nil || len(f.rest) == 0 {
		return false
	}
	num, typ, n := protowire.ConsumeTag(f.rest)
	if n < 0 {
		return f.broken(n)
	}
	after := f.rest[n:]
	switch typ {
	case protowire.VarintType:
		f.bits, n = protowire.ConsumeVarint(after)
	case protowire.Fixed64Type:
		f.bits, n = protowire.ConsumeFixed64(after)
	case protowire.BytesType:
		f.bytes, n = protowire.ConsumeBytes(after)
	default:
		n = protowire.ConsumeFieldValue(num, typ, after)
	}
	if n < 0 {
		return f.broken(n)
	}
	f.tag, f.rest = tag(uint64(num)<<3|uint64(typ)), after[n:]
	return true
}

func (f *fields) broken(code int) bool {
	f.err = &wireError{cause: protowire.ParseError(code), left: cap(f.rest)}
	return false
}

func (f *fields) double() float64 { return math.Float64frombits(f.bits) }

// fixed64s decodes packed fixed64 numbers.
func fixed64s(b []byte, do func(bits uint64)) error {
	for len(b) > 0 {
		bits, n := protowire.ConsumeFixed64(b)
		if n < 0 {
			return &wireError{cause: protowire.ParseError(n), left: cap(b)}
		}
		do(bits)
		b = b[n:]
	}
	return nil
}

// wireError is a malformed message.
type wireError struct {
	cause error
	// left is the distance in bytes from the broken field to the end of the body's buffer. All
	// messages are slices of that buffer, so it is their capacity.
	left int
}

func (e *wireError) Error() string { return e.cause.Error() }

func (e *wireError) Unwrap() error { return e.cause }
