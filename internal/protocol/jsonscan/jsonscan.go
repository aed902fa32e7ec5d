// Package jsonscan reads JSON for the decoders of the protocols that are JSON.
package jsonscan

import (
	"bytes"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/go-faster/jx"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Scanner reads JSON (RFC 8259) from a byte slice, front to back, once. It is strict. Decoders need
// three things together: the byte offset of a fault, strings that are views of the body, and
// numbers rounded as strconv rounds them. go-faster/jx 1.2.0, which decodes escapes here, does not tell the offset
// of each fault, and its Float64 wraps around at 20 digits (4503599627370497.123456 becomes 2594073385366.529152).
//
// Methods return false after a syntax error and set Fault and At. The caller must then stop.
//
// Scanner does not check UTF-8: invalid bytes pass through, and validation reports them.
type Scanner struct {
	// Text is the input; Pos is the offset of its next byte.
	Text []byte
	Pos  int
	// Arena holds the strings that had escapes. It only grows within a body. When it moves, strings
	// returned earlier keep their old memory.
	Arena []byte
	// Depth is the maximum nesting of a value in Skip.
	Depth int

	// Fault is what is wrong, at the offset At.
	Fault string
	At    int
	// Quiet leaves Fault empty, for callers that have enough faults.
	Quiet bool
}

// Reset starts over with another input.
func (s *Scanner) Reset(b []byte, depth int) {
	s.Text, s.Pos, s.Depth = b, 0, depth
	s.Arena = s.Arena[:0]
	s.Fault, s.At = "", 0
}

// Fail reports a fault at an offset. It returns false. Of a text among the arguments the fault repeats the beginning.
func (s *Scanner) Fail(at int, format string, args ...any) bool {
	if s.At = at; !s.Quiet {
		s.Fault = fmt.Sprintf(format, excerpt.Args(args)...)
	}
	return false
}

const endOfBody = "the body ends in the middle"

// End reports that the body ends too early. It returns false.
func (s *Scanner) End() bool { return s.Fail(len(s.Text), endOfBody) }

// Unexpected reports the byte at s.Pos, or the end of the body.
func (s *Scanner) Unexpected(want string) bool {
	if s.Pos >= len(s.Text) {
		return s.End()
	}
	c := s.Text[s.Pos]
	if c == 'N' || c == 'I' {
		return s.Fail(s.Pos, "unexpected %q, want %s (JSON has no NaN or Infinity)", c, want)
	}
	if c >= utf8.RuneSelf {
		return s.Fail(s.Pos, "unexpected byte 0x%02x, want %s", c, want)
	}
	return s.Fail(s.Pos, "unexpected %q, want %s", c, want)
}

// Space skips white space and returns the byte after it, 0 at the end of the body.
func (s *Scanner) Space() byte {
	for s.Pos < len(s.Text) {
		c := s.Text[s.Pos]
		if c > ' ' || (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
			return c
		}
		s.Pos++
	}
	return 0
}

// Member advances to the value of an object's next member and returns its name. The opening brace
// has already been read; first is true for the first call after it. more is false when the object
// ends.
func (s *Scanner) Member(first bool) (name string, more, ok bool) {
	c := s.Space()
	if c == '}' {
		s.Pos++
		return "", false, true
	}
	if !first {
		if c != ',' {
			return "", false, s.Unexpected("',' or '}'")
		}
		s.Pos++
		c = s.Space()
	}
	if c != '"' {
		return "", false, s.Unexpected("a member's name in quotes")
	}
	if name, ok = s.Str(); !ok {
		return "", false, false
	}
	if s.Space() != ':' {
		return "", false, s.Unexpected("':'")
	}
	s.Pos++
	s.Space()
	return name, true, true
}

// Element advances to an array's next element. The opening bracket has already been read; first is
// true for the first call after it. more is false when the array ends.
func (s *Scanner) Element(first bool) (more, ok bool) {
	c := s.Space()
	if c == ']' {
		s.Pos++
		return false, true
	}
	if !first {
		if c != ',' {
			return false, s.Unexpected("',' or ']'")
		}
		s.Pos++
		if s.Space() == ']' {
			return false, s.Unexpected("a value")
		}
	}
	return true, true
}

// Kind names the type of the value at s.Pos, "" if no value begins there.
func (s *Scanner) Kind() string {
	if s.Pos >= len(s.Text) {
		return ""
	}
	switch c := s.Text[s.Pos]; c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	case '-':
		return "a number"
	default:
		if isDigit(c) {
			return "a number"
		}
	}
	return ""
}

// Skip reads any value and discards it.
func (s *Scanner) Skip() bool { return s.skipWithin(s.Depth) }

func (s *Scanner) skipWithin(depth int) bool {
	if s.Pos >= len(s.Text) {
		return s.End()
	}
	switch c := s.Text[s.Pos]; c {
	case '"':
		return s.skipString()
	case '{':
		if depth == 0 {
			return s.Fail(s.Pos, "values are nested deeper than %d", s.Depth)
		}
		s.Pos++
		for first := true; ; first = false {
			if _, more, ok := s.Member(first); !ok || !more {
				return ok
			}
			if !s.skipWithin(depth - 1) {
				return false
			}
		}
	case '[':
		if depth == 0 {
			return s.Fail(s.Pos, "values are nested deeper than %d", s.Depth)
		}
		s.Pos++
		for first := true; ; first = false {
			if more, ok := s.Element(first); !ok || !more {
				return ok
			}
			if !s.skipWithin(depth - 1) {
				return false
			}
		}
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		if c == '-' || isDigit(c) {
			_, ok := s.Number()
			return ok
		}
	}
	return s.Unexpected("a value")
}

func (s *Scanner) literal(want string) bool {
	for j := range len(want) {
		if s.Pos+j >= len(s.Text) {
			return s.End()
		}
		if s.Text[s.Pos+j] != want[j] {
			s.Pos += j
			return s.Unexpected("the rest of " + want)
		}
	}
	s.Pos += len(want)
	return true
}

// skipString is Str, but it discards the decoded escapes.
func (s *Scanner) skipString() bool {
	mark := len(s.Arena)
	_, ok := s.Str()
	s.Arena = s.Arena[:mark]
	return ok
}

// Str reads the string whose opening quote is at s.Pos.
func (s *Scanner) Str() (string, bool) {
	b, from := s.Text, s.Pos+1
	for j := from; j < len(b); j++ {
		c := b[j]
		if c > '\\' {
			continue
		}
		switch {
		case c == '"':
			s.Pos = j + 1
			return View(b[from:j]), true
		case c == '\\':
			return s.escaped(from, j)
		case c < ' ':
			return "", s.Fail(j, "a string holds the control character 0x%02x, which must be escaped", c)
		}
	}
	return "", s.End()
}

// escaped continues Str at the first backslash, at j, of a string that begins at from.
func (s *Scanner) escaped(from, j int) (string, bool) {
	for ; j < len(s.Text) && s.Text[j] != '"'; j++ {
		if c := s.Text[j]; c < ' ' {
			return "", s.Fail(j, "a string holds the control character 0x%02x, which must be escaped", c)
		} else if c == '\\' {
			j++
		}
	}
	if j >= len(s.Text) {
		return "", s.End()
	}
	d := jx.GetDecoder()
	defer jx.PutDecoder(d)
	d.ResetBytes(s.Text[from-1 : j+1])
	mark := len(s.Arena)
	text, err := d.StrAppend(s.Arena)
	if err != nil {
		return "", s.Fail(from-1, "a string holds an unknown escape")
	}
	s.Pos, s.Arena = j+1, text
	// Half of a surrogate pair is no character. It becomes U+FFFD, so that strings with different halves would be one:
	// as invalid UTF-8 validation reports it.
	if strings.Contains(View(s.Arena[mark:]), "\ufffd") && bytes.Contains(bytes.ToLower(s.Text[from:j]), []byte(`\ud`)) {
		s.Arena = append(s.Arena, 0xff)
	}
	return View(s.Arena[mark:]), true
}

// Number is a JSON number.
type Number struct {
	Text  []byte
	plain bool // without fraction and exponent
}

// Number reads the number at s.Pos.
func (s *Scanner) Number() (Number, bool) {
	begin := s.Pos
	n := Number{plain: true}
	if s.Text[s.Pos] == '-' {
		s.Pos++
	}
	whole := s.Pos
	if !s.digits() {
		return n, false
	}
	if s.Pos-whole > 1 && s.Text[whole] == '0' {
		return n, s.Fail(whole, "a number has a leading 0")
	}
	if s.Pos < len(s.Text) && s.Text[s.Pos] == '.' {
		n.plain = false
		if s.Pos++; !s.digits() {
			return n, false
		}
	}
	if s.Pos < len(s.Text) && s.Text[s.Pos]|0x20 == 'e' {
		n.plain = false
		s.Pos++
		if s.Pos < len(s.Text) && (s.Text[s.Pos] == '+' || s.Text[s.Pos] == '-') {
			s.Pos++
		}
		if !s.digits() {
			return n, false
		}
	}
	n.Text = s.Text[begin:s.Pos]
	return n, true
}

// digits reads at least one digit.
func (s *Scanner) digits() bool {
	begin := s.Pos
	for s.Pos < len(s.Text) && isDigit(s.Text[s.Pos]) {
		s.Pos++
	}
	return s.Pos > begin || s.Unexpected("a digit")
}

// Float returns the nearest float64; false if that is an infinity.
func (n *Number) Float() (float64, bool) { return metric.ParseDecimal(View(n.Text)) }

// maxExact is the limit up to which a float64 represents all integers exactly.
const maxExact = 1 << 53

// Int returns the number as an int64. Up to 2^53 it takes any notation: 1e3 and 1000.0 are integers too. It returns
// false if the number is not an integer or does not fit.
func (n *Number) Int() (int64, bool) {
	if n.plain {
		v, err := strconv.ParseInt(View(n.Text), 10, 64)
		return v, err == nil
	}
	v, ok := n.Float()
	return int64(v), ok && v == math.Trunc(v) && math.Abs(v) <= maxExact
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// View returns b as a string without a copy. b must not change while the string is in use.
func View(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
