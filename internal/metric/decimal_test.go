package metric_test

import (
	"math"
	"math/big"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

func zeros(n int) string { return strings.Repeat("0", n) }

func TestParseDecimal(t *testing.T) {
	// 1 + 2^-53 lies between two floats, and is rounded to the even one.
	half := new(big.Float).SetPrec(100).Add(big.NewFloat(1), big.NewFloat(math.Ldexp(1, -53))).Text('f', 53)
	for text, want := range map[string]float64{
		"0": 0, "-0": math.Copysign(0, -1), "+1.5": 1.5, ".5": 0.5, "5.": 5, "-12.5e-3": -0.0125, "1E2": 100, "1e400000": math.Inf(1),
		"1" + zeros(801) + "e-801":                               1,
		"-1" + zeros(5000) + "e-5000":                            -1,
		"1" + zeros(100_000) + "e-100000":                        1,
		"0." + zeros(99_999) + "1e100000":                        1,
		zeros(1000) + "7":                                        7,
		"7." + zeros(1000):                                       7,
		"-" + zeros(1000):                                        math.Copysign(0, -1),
		"0." + zeros(1000) + "e99999999999999999999":             0,
		"1" + zeros(1000):                                        math.Inf(1),
		"-1" + zeros(1000):                                       math.Inf(-1),
		"1" + zeros(1000) + "e99999999999999999999":              math.Inf(1),
		"1" + zeros(1000) + "e-99999999999999999999":             0,
		"0." + zeros(1000) + "1":                                 0,
		half + zeros(1000):                                       1,
		half + zeros(1000) + "1":                                 math.Nextafter(1, 2),
		strings.Replace(half, "1.", "-1.", 1) + zeros(999) + "1": -math.Nextafter(1, 2),
	} {
		got, ok := metric.ParseDecimal(text)
		name := text[:min(len(text), 100)]
		require.Equal(t, !math.IsInf(want, 0), ok, name)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), name)
	}
	for _, text := range []string{"", "-", ".", "e1", "1e", "1e+", "--1", "1-1", "1.2.3", "0x1p-2", "1_000", "Inf", "NaN", "1i", "1e1e1", "1e1.5", " 1"} {
		_, ok := metric.ParseDecimal(text)
		require.False(t, ok, text)
		_, ok = metric.ParseDecimal(text + zeros(1000))
		require.Equal(t, text == "" || text == "-" || text == "." || text == "1e" || text == "1e+", ok, text+" and zeros")
	}
}

// FuzzParseDecimal compares ParseDecimal with exact arithmetic.
func FuzzParseDecimal(f *testing.F) {
	f.Add("", "1", 801, "", 0, -801)
	f.Add("-", "0", 0, "1", 9999, 10_000)
	f.Add("+", "123", 5000, "456", 10, -5000)
	f.Add("-", "9007199254740993", 0, "1", 2000, 0)
	f.Fuzz(func(t *testing.T, sign, whole string, nWhole int, fraction string, nFraction, exp int) {
		const most = 20_000
		if strings.Trim(whole+fraction, "0123456789") != "" || len(whole)+len(fraction) > most || exp < -most || exp > most {
			return
		}
		if sign != "" && sign != "-" && sign != "+" {
			return
		}
		text := sign + whole + zeros(max(nWhole, 0)%most)
		if fraction != "" {
			text += "." + zeros(max(nFraction, 0)%most) + fraction
		}
		exact, ok := new(big.Rat).SetString(text)
		text += "e" + big.NewInt(int64(exp)).String()
		got, inRange := metric.ParseDecimal(text)
		if !ok {
			require.False(t, inRange)
			return
		}
		scale := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil))
		if exp < 0 {
			exact.Quo(exact, scale)
		} else {
			exact.Mul(exact, scale)
		}
		want, _ := exact.Float64()
		require.Equal(t, !math.IsInf(want, 0), inRange)
		if want != 0 { // a big.Rat has no sign of 0
			require.Equal(t, math.Float64bits(want), math.Float64bits(got))
		} else {
			require.Zero(t, got)
		}
	})
}
