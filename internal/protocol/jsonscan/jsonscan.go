// Package jsonscan reads JSON for the decoders of the protocols that are JSON.
package jsonscan

import (
	"fmt"
	"math"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Scanner reads JSON (RFC 8259) from a byte slice, front to back, once. It is strict. Decoders need
// three things together: the byte offset of a fault, strings that are views of the body, and
// numbers rounded as strconv rounds them. go-faster/jx 1.2.0 reports no offset, and its Float64
// wraps around at 20 digits (4503599627370497.123456 becomes 2594073385366.529152).
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
	b, mark := s.Text, len(s.Arena)
	s.Arena = append(s.Arena, b[from:j]...)
	for j < len(b) {
		c := b[j]
		switch {
		case c == '"':
			s.Pos = j + 1
			return View(s.Arena[mark:]), true
		case c < ' ':
			return "", s.Fail(j, "a string holds the control character 0x%02x, which must be escaped", c)
		case c != '\\':
			s.Arena = append(s.Arena, c)
			j++
			continue
		}
		if j++; j == len(b) {
			break
		}
		c = b[j]
		if c == 'u' {
			var ok bool
			if j, ok = s.unicode(j); !ok {
				return "", false
			}
			continue
		}
		plain := unescape(c)
		if plain == 0 {
			return "", s.Fail(j, "a string holds the unknown escape \\%c", c)
		}
		s.Arena = append(s.Arena, plain)
		j++
	}
	return "", s.End()
}

// unescape returns the character for \c, 0 if the escape is unknown.
func unescape(c byte) byte {
	switch c {
	case '"', '\\', '/':
		return c
	case 'b':
		return '\b'
	case 'f':
		return '\f'
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return 0
}

// unicode decodes the \u escape whose u is at j, together with the second half of a surrogate pair.
// A lone half is no character. It becomes bytes that are not valid UTF-8, of its own, so that validation reports it like
// any: as U+FFFD, strings with different halves would be one.
func (s *Scanner) unicode(j int) (next int, ok bool) {
	r, ok := s.hex4(j + 1)
	if !ok {
		return 0, false
	}
	j += 5
	if utf16.IsSurrogate(r) {
		pair := rune(utf8.RuneError)
		if j+1 < len(s.Text) && s.Text[j] == '\\' && s.Text[j+1] == 'u' {
			second, ok := s.hex4(j + 2)
			if !ok {
				return 0, false
			}
			pair = utf16.DecodeRune(r, second)
		}
		if pair == utf8.RuneError {
			s.Arena = append(s.Arena, 0xe0|byte(r>>12), 0x80|byte(r>>6&0x3f), 0x80|byte(r&0x3f))
			return j, true
		}
		r = pair
		j += 6
	}
	s.Arena = utf8.AppendRune(s.Arena, r)
	return j, true
}

func (s *Scanner) hex4(j int) (rune, bool) {
	var r rune
	for k := range 4 {
		if j+k >= len(s.Text) {
			return 0, s.End()
		}
		c := s.Text[j+k]
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, s.Fail(j+k, "a string holds a \\u escape without four hexadecimal digits")
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// maxDigits is the number of decimal digits that always fit a uint64.
const maxDigits = 19

// Number is a JSON number. Its value is mantissa × 10^exp if exact; otherwise only text is valid.
type Number struct {
	Text     []byte
	mantissa uint64
	exp      int
	neg      bool
	exact    bool
	plain    bool // without fraction and exponent
}

// Number decodes the number at s.Pos.
func (s *Scanner) Number() (Number, bool) {
	b, i := s.Text, s.Pos
	var n Number
	if b[i] == '-' {
		n.neg = true
		i++
	}
	whole := i
	for i < len(b) && isDigit(b[i]) {
		n.mantissa = n.mantissa*10 + uint64(b[i]-'0')
		i++
	}
	digits := i - whole
	switch {
	case digits == 0:
		s.Pos = i
		return n, s.Unexpected("a digit")
	case digits > 1 && b[whole] == '0':
		return n, s.Fail(whole, "a number has a leading 0")
	}
	n.plain = true
	if i < len(b) && b[i] == '.' {
		n.plain = false
		i++
		fraction := i
		for i < len(b) && isDigit(b[i]) {
			n.mantissa = n.mantissa*10 + uint64(b[i]-'0')
			i++
		}
		if i == fraction {
			s.Pos = i
			return n, s.Unexpected("a digit")
		}
		n.exp = fraction - i
		digits += i - fraction
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		n.plain = false
		i++
		neg := false
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			neg = b[i] == '-'
			i++
		}
		from, exp := i, 0
		for i < len(b) && isDigit(b[i]) {
			// At such exponents every number is 0 or too large, however many digits it has.
			exp = min(exp*10+int(b[i]-'0'), math.MaxInt32)
			i++
		}
		if i == from {
			s.Pos = i
			return n, s.Unexpected("a digit")
		}
		if neg {
			exp = -exp
		}
		n.exp += exp
	}
	n.exact = digits <= maxDigits
	n.Text = b[s.Pos:i]
	s.Pos = i
	return n, true
}

// exactPow10 lists the powers of ten that a float64 represents exactly.
var exactPow10 = [...]float64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// Float returns the nearest float64; false if that is an infinity.
func (n *Number) Float() (float64, bool) {
	// One operation on two exact operands rounds once, hence correctly (Clinger, How to Read
	// Floating Point Numbers Accurately, 1990).
	const last = len(exactPow10) - 1
	if n.exact && n.mantissa <= 1<<53 && -last <= n.exp && n.exp <= last {
		v := float64(n.mantissa)
		if n.exp < 0 {
			v /= exactPow10[-n.exp]
		} else {
			v *= exactPow10[n.exp]
		}
		if n.neg {
			v = -v
		}
		return v, true
	}
	return metric.ParseDecimal(View(n.Text))
}

// Int returns the number as an int64 in any notation: 1e3 and 1000.0 are integers too. It returns
// false if the number is not an integer or does not fit, or if it has a fraction or an exponent and a float does
// not hold all integers up to it.
func (n *Number) Int() (int64, bool) {
	if n.plain && n.exact && n.mantissa <= math.MaxInt64 {
		if n.neg {
			return -int64(n.mantissa), true
		}
		return int64(n.mantissa), true
	}
	v, ok := n.Float()
	tiny := v == 0 && n.mantissa != 0
	return int64(v), ok && !tiny && v == math.Trunc(v) && math.Abs(v) <= 1<<53
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// View returns b as a string without a copy. b must not change while the string is in use.
func View(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
