package influx

import (
	"strconv"

	"github.com/quern/quern/internal/metric"
)

const (
	// maxDigits is the number of decimal digits that always fit in a uint64.
	maxDigits = 19
	// maxExact is the limit up to which a float64 represents all integers exactly.
	maxExact = 1 << 53
)

// pow10 lists the powers of ten that a float64 represents exactly.
var pow10 = [...]float64{
	1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11,
	1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22,
}

func isDigit(c byte) bool { return c-'0' < 10 }

// number decodes the value of a non-string field at i; next is the end of the value. Integers
// beyond 2^53 are rounded. ok is false if the value is not a number, or is infinite or out of
// range.
//
// If an integer and a power of ten are both exact, their quotient is rounded once, and hence as
// correct as strconv's (W. D. Clinger, How to Read Floating Point Numbers Accurately, 1990). Most
// values are of this kind.
func number(s string, i int) (v float64, next int, ok bool) {
	begin := i
	negative := false
	if i < len(s) && (s[i] == '-' || s[i] == '+') {
		negative = s[i] == '-'
		i++
	}
	var n uint64
	first := i
	for ; i < len(s) && isDigit(s[i]); i++ {
		n = n*10 + uint64(s[i]-'0')
	}
	digits, decimals := i-first, 0
	if i < len(s) && s[i] == '.' {
		point := i
		for i++; i < len(s) && isDigit(s[i]); i++ {
			n = n*10 + uint64(s[i]-'0')
		}
		decimals = i - point - 1
		digits += decimals
	}
	if digits == 0 || digits > maxDigits || n > maxExact {
		return slowNumber(s, begin)
	}
	if i < len(s) && classes[s[i]]&keyEnd == 0 {
		// An integer may have its type as a suffix.
		if whole := i == first+digits; !whole || s[i] != 'i' && (s[i] != 'u' || first != begin) || !valueEnds(s, i+1) {
			return slowNumber(s, begin)
		}
		if i++; n == 0 {
			negative = false // integers have a single zero
		}
	}
	v = float64(n) / pow10[decimals]
	if negative {
		v = -v
	}
	return v, i, true
}

func valueEnds(s string, i int) bool { return i >= len(s) || classes[s[i]]&keyEnd != 0 }

// slowNumber decodes any value.
func slowNumber(s string, i int) (v float64, next int, ok bool) {
	next = i
	for !valueEnds(s, next) {
		next++
	}
	text := s[i:next]
	switch text {
	case "":
		return 0, next, false
	case "t", "T", "true", "True", "TRUE":
		return 1, next, true
	case "f", "F", "false", "False", "FALSE":
		return 0, next, true
	}
	switch last := len(text) - 1; text[last] {
	case 'i':
		n, err := strconv.ParseInt(text[:last], 10, 64)
		return float64(n), next, err == nil
	case 'u':
		n, err := strconv.ParseUint(text[:last], 10, 64)
		return float64(n), next, err == nil
	}
	v, ok = metric.ParseDecimal(text)
	return v, next, ok
}
