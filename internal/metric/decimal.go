package metric

import (
	"errors"
	"strconv"
	"strings"
)

// ShortDecimal is the length up to which strconv rounds any decimal number correctly. Of a longer one it
// forgets how large it is, as of Go 1.26: it keeps 800 digits, and exponents below 10,000.
const ShortDecimal = 800

// maxExponent is more than the digits of any text.
const maxExponent = 1 << 30

// ParseDecimal returns the float64 nearest to a decimal number such as -12.5e-3; false if the text is no
// such number, or that is an infinity. It takes a number of any length, and nothing else that Go takes:
// no hexadecimals, underscores or names.
func ParseDecimal(text string) (float64, bool) {
	for i := range len(text) {
		if c := text[i]; c-'0' > 9 && c != '.' && c != '-' && c != '+' && c|0x20 != 'e' {
			return 0, false
		}
	}
	if len(text) > ShortDecimal {
		var ok bool
		if text, ok = shortened(text); !ok {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil
}

// shortened writes a decimal number as ±0.ddde±x, with as many digits as tell to which side it is rounded,
// which are at most 767.
func shortened(text string) (string, bool) {
	sign, digits := "", text
	if text[0] == '-' || text[0] == '+' {
		sign, digits = text[:1], text[1:]
	}
	exp := 0
	if i := strings.IndexAny(digits, "eE"); i >= 0 {
		var err error
		// Beyond this the number is 0 or an infinity, whatever its digits. On ErrRange, Atoi returns the nearest int.
		if exp, err = strconv.Atoi(digits[i+1:]); err != nil && !errors.Is(err, strconv.ErrRange) {
			return "", false
		}
		exp = max(-maxExponent, min(exp, maxExponent))
		digits = digits[:i]
	}
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = whole + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", false
	}
	exp += len(whole)
	all := len(digits)
	digits = strings.TrimLeft(digits, "0")
	exp -= all - len(digits)
	digits = strings.TrimRight(digits, "0")
	if len(digits) > ShortDecimal {
		digits = digits[:ShortDecimal-1] + "1" // what follows is not 0
	}
	return sign + "0." + digits + "0e" + strconv.Itoa(exp), true
}
