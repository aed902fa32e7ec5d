package otlp

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/quern/quern/internal/metric"
)

// doubles are the members of OTLP's JSON that protojson reads as a float64, also from a string.
var doubles = map[string]bool{
	"asDouble": true, "as_double": true, "doubleValue": true, "double_value": true, "explicitBounds": true, "explicit_bounds": true,
	"max": true, "min": true, "quantile": true, "sum": true, "value": true, "zeroThreshold": true, "zero_threshold": true,
}

// checkNumbers refuses a number that protojson would read wrongly, since it leaves numbers of any length to strconv; see
// metric.ShortDecimal. It says nothing of what else is wrong with the JSON.
func checkNumbers(body []byte) error {
	var member []byte
	for i := 0; i < len(body); {
		c, end := body[i], i+1
		switch {
		case c == '"':
			end = stringEnd(body, end)
			text := body[i+1 : max(i+1, end-1)]
			rest := bytes.TrimLeft(body[end:], " \t\r\n")
			switch {
			case len(rest) > 0 && rest[0] == ':':
				member = text
			case len(text) > metric.ShortDecimal && (doubles[string(member)] || bytes.IndexByte(member, '\\') >= 0):
				return longNumber(i)
			}
		case c == '-' || c-'0' <= 9:
			for end < len(body) && (body[end]-'0' <= 9 || strings.IndexByte("+-.eE", body[end]) >= 0) {
				end++
			}
			if end-i > metric.ShortDecimal {
				return longNumber(i)
			}
		}
		i = end
	}
	return nil
}

func longNumber(at int) error {
	return fmt.Errorf("at byte %d: a number has more than %d digits", at, metric.ShortDecimal)
}

// stringEnd returns the position after the closing quote of a string whose text begins at i.
func stringEnd(body []byte, i int) int {
	for ; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(body)
}
