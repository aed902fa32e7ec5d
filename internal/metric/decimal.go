package metric

import "strconv"

// maxDecimal is the length up to which strconv rounds any decimal number correctly. Of a longer one it
// forgets how large it is, as of Go 1.26: it keeps 800 digits, and exponents below 10,000.
const maxDecimal = 800

// ParseDecimal returns the float64 nearest to a decimal number such as -12.5e-3; false if the text is no
// such number, is longer than 800 characters, or is nearest to an infinity. It takes nothing else that Go
// takes: no hexadecimals, underscores or names.
func ParseDecimal(text string) (float64, bool) {
	if len(text) > maxDecimal {
		return 0, false
	}
	for i := range len(text) {
		if c := text[i]; c-'0' > 9 && c != '.' && c != '-' && c != '+' && c|0x20 != 'e' {
			return 0, false
		}
	}
	v, err := strconv.ParseFloat(text, 64)
	return v, err == nil
}
