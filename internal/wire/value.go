package wire

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Value is a sample's value. JSON has no numbers for NaN and the infinities: null is the usual NaN, and strings are the
// infinities and the other NaNs.
type Value float64

// nanPrefix precedes the bits of a NaN other than the usual one, such as Prometheus' stale marker.
const nanPrefix = "NaN:"

// NotFinite returns the form of a value that JSON cannot express as a number; ok is false for a
// finite value. Unless exact is set, any NaN has the form that all readers of exports understand.
func NotFinite(v float64, exact bool) (form string, ok bool) {
	switch {
	case math.IsNaN(v) && (!exact || math.Float64bits(v) == math.Float64bits(math.NaN())):
		return "null", true
	case math.IsNaN(v):
		return fmt.Sprintf(`"%s%016x"`, nanPrefix, math.Float64bits(v)), true
	case math.IsInf(v, 1):
		return `"Infinity"`, true
	case math.IsInf(v, -1):
		return `"-Infinity"`, true
	}
	return "", false
}

// ParseNotFinite decodes such a form without its quotes. It also accepts the words of other programs, such as +Inf.
func ParseNotFinite(text string) (float64, bool) {
	if hex, ok := strings.CutPrefix(text, nanPrefix); ok && len(hex) == 16 {
		bits, err := strconv.ParseUint(hex, 16, 64)
		v := math.Float64frombits(bits)
		return v, err == nil && math.IsNaN(v)
	}
	sign := 1
	unsigned := strings.TrimPrefix(text, "+")
	if strings.HasPrefix(text, "-") {
		sign, unsigned = -1, text[1:]
	}
	switch {
	case text == "null", strings.EqualFold(text, "nan"):
		return math.NaN(), true
	case strings.EqualFold(unsigned, "inf"), strings.EqualFold(unsigned, "infinity"):
		return math.Inf(sign), true
	}
	return 0, false
}

// UnmarshalJSON implements json.Unmarshaler.
func (v *Value) UnmarshalJSON(text []byte) error {
	if f, ok := ParseNotFinite(strings.Trim(string(text), `"`)); ok {
		*v = Value(f)
		return nil
	}
	f, err := strconv.ParseFloat(string(text), 64)
	*v = Value(f)
	return err
}
