package otlp

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
)

// tag is a field of a message as it stands on the wire: its number and how it is written.
type tag uint64

func bytesTag(n uint64) tag   { return tag(n<<3 | uint64(protowire.BytesType)) }
func varintTag(n uint64) tag  { return tag(n<<3 | uint64(protowire.VarintType)) }
func fixed64Tag(n uint64) tag { return tag(n<<3 | uint64(protowire.Fixed64Type)) }

// fields walks over the fields of a message, in the order in which they stand. Those that nobody asks for are passed over, as
// are known ones that are written in another way than they should: that is how protobuf treats what it does not know.
type fields struct {
	rest []byte

	tag   tag
	bits  uint64 // of a varint or a fixed64
	bytes []byte // of a string or a message
	err   error
}

// next finds the next field, false at the end of the message and at an error.
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

// fixed64s reads numbers that stand one after the other.
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

// wireError is a message that is none.
type wireError struct {
	cause error
	// left is how many bytes there are from the field that is broken to the end of the buffer that the body lies in: all
	// messages are slices of that.
	left int
}

func (e *wireError) Error() string { return e.cause.Error() }

func (e *wireError) Unwrap() error { return e.cause }
