package influx

import (
	"strconv"

	"github.com/quern/quern/internal/metric"
)

// maxDigits is the number of decimal digits that always fit in a uint64.
const maxDigits = 19

func isDigit(c byte) bool { return c-'0' < 10 }

// number decodes the value of a non-string field at i; next is the end of the value. Integers
// beyond 2^53 are rounded. ok is false if the value is not a number, or is infinite or out of
// range.
func number(s string, i int) (v float64, next int, ok bool) {
	next = i
	for next < len(s) && classes[s[next]]&keyEnd == 0 {
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
