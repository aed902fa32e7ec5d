package api

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// scanner reads JSON (RFC 8259) from a byte slice, front to back, once. It is strict. Reports need
// three things together: the byte offset of a fault, strings that are views of the body, and
// numbers rounded as strconv rounds them. go-faster/jx 1.2.0 reports no offset, and its Float64
// wraps around at 20 digits (4503599627370497.123456 becomes 2594073385366.529152).
//
// Methods return false after a syntax error and set fault and at. The caller must then stop.
//
// scanner does not check UTF-8: invalid bytes pass through, and validation reports them.
type scanner struct {
	b []byte
	i int
	// arena holds the strings that had escapes. It only grows within a body. When it moves, strings
	// returned earlier keep their old memory.
	arena []byte
	// depth is the maximum nesting of a value in skip.
	depth int

	fault string
	at    int
	// quiet leaves fault empty, for callers that have enough faults.
	quiet bool
}

func (s *scanner) reset(b []byte, depth int) {
	s.b, s.i, s.depth = b, 0, depth
	s.arena = s.arena[:0]
	s.fault, s.at = "", 0
}

func (s *scanner) fail(at int, format string, args ...any) bool {
	if s.at = at; !s.quiet {
		s.fault = fmt.Sprintf(format, args...)
	}
	return false
}

const endOfBody = "the body ends in the middle"

func (s *scanner) end() bool { return s.fail(len(s.b), endOfBody) }

// unexpected reports the byte at s.i, or the end of the body.
func (s *scanner) unexpected(want string) bool {
	if s.i >= len(s.b) {
		return s.end()
	}
	c := s.b[s.i]
	if c == 'N' || c == 'I' {
		return s.fail(s.i, "unexpected %q, want %s (JSON has no NaN or Infinity)", c, want)
	}
	if c >= utf8.RuneSelf {
		return s.fail(s.i, "unexpected byte 0x%02x, want %s", c, want)
	}
	return s.fail(s.i, "unexpected %q, want %s", c, want)
}

// space skips white space and returns the byte after it, 0 at the end of the body.
func (s *scanner) space() byte {
	for s.i < len(s.b) {
		c := s.b[s.i]
		if c > ' ' || (c != ' ' && c != '\n' && c != '\t' && c != '\r') {
			return c
		}
		s.i++
	}
	return 0
}

// member advances to the value of an object's next member and returns its name. The opening brace
// has already been read; first is true for the first call after it. more is false when the object
// ends.
func (s *scanner) member(first bool) (name string, more, ok bool) {
	c := s.space()
	if c == '}' {
		s.i++
		return "", false, true
	}
	if !first {
		if c != ',' {
			return "", false, s.unexpected("',' or '}'")
		}
		s.i++
		c = s.space()
	}
	if c != '"' {
		return "", false, s.unexpected("a member's name in quotes")
	}
	if name, ok = s.str(); !ok {
		return "", false, false
	}
	if s.space() != ':' {
		return "", false, s.unexpected("':'")
	}
	s.i++
	s.space()
	return name, true, true
}

// element advances to an array's next element. The opening bracket has already been read; first is
// true for the first call after it. more is false when the array ends.
func (s *scanner) element(first bool) (more, ok bool) {
	c := s.space()
	if c == ']' {
		s.i++
		return false, true
	}
	if !first {
		if c != ',' {
			return false, s.unexpected("',' or ']'")
		}
		s.i++
		if s.space() == ']' {
			return false, s.unexpected("a value")
		}
	}
	return true, true
}

// kind names the type of the value at s.i, "" if no value begins there.
func (s *scanner) kind() string {
	if s.i >= len(s.b) {
		return ""
	}
	switch c := s.b[s.i]; c {
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

// skip reads any value and discards it.
func (s *scanner) skip() bool { return s.skipWithin(s.depth) }

func (s *scanner) skipWithin(depth int) bool {
	if s.i >= len(s.b) {
		return s.end()
	}
	switch c := s.b[s.i]; c {
	case '"':
		return s.skipString()
	case '{':
		if depth == 0 {
			return s.fail(s.i, "values are nested deeper than %d", s.depth)
		}
		s.i++
		for first := true; ; first = false {
			if _, more, ok := s.member(first); !ok || !more {
				return ok
			}
			if !s.skipWithin(depth - 1) {
				return false
			}
		}
	case '[':
		if depth == 0 {
			return s.fail(s.i, "values are nested deeper than %d", s.depth)
		}
		s.i++
		for first := true; ; first = false {
			if more, ok := s.element(first); !ok || !more {
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
			_, ok := s.number()
			return ok
		}
	}
	return s.unexpected("a value")
}

func (s *scanner) literal(want string) bool {
	for j := range len(want) {
		if s.i+j >= len(s.b) {
			return s.end()
		}
		if s.b[s.i+j] != want[j] {
			s.i += j
			return s.unexpected("the rest of " + want)
		}
	}
	s.i += len(want)
	return true
}

// skipString is str, but it discards the decoded escapes.
func (s *scanner) skipString() bool {
	mark := len(s.arena)
	_, ok := s.str()
	s.arena = s.arena[:mark]
	return ok
}

// str reads the string whose opening quote is at s.i.
func (s *scanner) str() (string, bool) {
	b, from := s.b, s.i+1
	for j := from; j < len(b); j++ {
		c := b[j]
		if c > '\\' {
			continue
		}
		switch {
		case c == '"':
			s.i = j + 1
			return view(b[from:j]), true
		case c == '\\':
			return s.escaped(from, j)
		case c < ' ':
			return "", s.fail(j, "a string holds the control character 0x%02x, which must be escaped", c)
		}
	}
	return "", s.end()
}

// escaped continues str at the first backslash, at j, of a string that begins at from.
func (s *scanner) escaped(from, j int) (string, bool) {
	b, mark := s.b, len(s.arena)
	s.arena = append(s.arena, b[from:j]...)
	for j < len(b) {
		c := b[j]
		switch {
		case c == '"':
			s.i = j + 1
			return view(s.arena[mark:]), true
		case c < ' ':
			return "", s.fail(j, "a string holds the control character 0x%02x, which must be escaped", c)
		case c != '\\':
			s.arena = append(s.arena, c)
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
			return "", s.fail(j, "a string holds the unknown escape \\%c", c)
		}
		s.arena = append(s.arena, plain)
		j++
	}
	return "", s.end()
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
// A lone half becomes U+FFFD, as in encoding/json.
func (s *scanner) unicode(j int) (next int, ok bool) {
	r, ok := s.hex4(j + 1)
	if !ok {
		return 0, false
	}
	j += 5
	if utf16.IsSurrogate(r) {
		pair := rune(utf8.RuneError)
		if j+1 < len(s.b) && s.b[j] == '\\' && s.b[j+1] == 'u' {
			second, ok := s.hex4(j + 2)
			if !ok {
				return 0, false
			}
			pair = utf16.DecodeRune(r, second)
		}
		if r = pair; pair != utf8.RuneError {
			j += 6
		}
	}
	s.arena = utf8.AppendRune(s.arena, r)
	return j, true
}

func (s *scanner) hex4(j int) (rune, bool) {
	var r rune
	for k := range 4 {
		if j+k >= len(s.b) {
			return 0, s.end()
		}
		c := s.b[j+k]
		switch {
		case isDigit(c):
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, s.fail(j+k, "a string holds a \\u escape without four hexadecimal digits")
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// number is a JSON number. Its value is mantissa × 10^exp if exact; otherwise only text is valid.
type number struct {
	text     []byte
	mantissa uint64
	exp      int
	neg      bool
	exact    bool
	plain    bool // without fraction and exponent
}

// number decodes the number at s.i.
func (s *scanner) number() (number, bool) {
	b, i := s.b, s.i
	var n number
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
		s.i = i
		return n, s.unexpected("a digit")
	case digits > 1 && b[whole] == '0':
		return n, s.fail(whole, "a number begins with a needless 0")
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
			s.i = i
			return n, s.unexpected("a digit")
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
			s.i = i
			return n, s.unexpected("a digit")
		}
		if neg {
			exp = -exp
		}
		n.exp += exp
	}
	// 19 digits always fit a uint64.
	n.exact = digits <= 19
	n.text = b[s.i:i]
	s.i = i
	return n, true
}

// exactPow10 lists the powers of ten that a float64 represents exactly.
var exactPow10 = [...]float64{
	1, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

// float returns the nearest float64; false if that is an infinity.
func (n *number) float() (float64, bool) {
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
	v, err := strconv.ParseFloat(view(n.text), 64)
	return v, err == nil
}

// int returns the number as an int64 in any notation: 1e3 and 1000.0 are integers too. It returns
// false if the number is not an integer or does not fit.
func (n *number) int() (int64, bool) {
	if n.plain && n.exact && n.mantissa <= math.MaxInt64 {
		if n.neg {
			return -int64(n.mantissa), true
		}
		return int64(n.mantissa), true
	}
	return parseIntegral(n.text, n.exp)
}

// parseIntegral is the slow path of int. It works on the digits, so that no float rounds a time.
// exp is the exponent of the last digit.
func parseIntegral(text []byte, exp int) (int64, bool) {
	neg := text[0] == '-'
	digits := make([]byte, 0, len(text))
	for _, c := range text {
		if c == 'e' || c == 'E' {
			break
		}
		if isDigit(c) && (len(digits) > 0 || c != '0') {
			digits = append(digits, c)
		}
	}
	for len(digits) > 0 && digits[len(digits)-1] == '0' {
		digits = digits[:len(digits)-1]
		exp++
	}
	if len(digits) == 0 {
		return 0, true
	}
	if exp < 0 || len(digits)+exp > 19 {
		return 0, false
	}
	for range exp {
		digits = append(digits, '0')
	}
	sign := ""
	if neg {
		sign = "-"
	}
	v, err := strconv.ParseInt(sign+string(digits), 10, 64)
	return v, err == nil
}

func isDigit(c byte) bool { return c-'0' <= 9 }

// view returns b as a string without a copy. b must not change while the string is in use.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
