package jsonscan

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestFloats compares the fast path for numbers with strconv, bit by bit.
func TestFloats(t *testing.T) {
	for _, text := range []string{
		"0", "-0", "-0.0", "1", "0.1", "0.25", "123.456", "9007199254740992", "9007199254740993",
		"9007199254740993.5", "4503599627370497.123456", "1e22", "1e23", "1e-22", "1e-23", "123456789012345678", "1234567890123456789",
		"12345678901234567890", "0.000001", "4503599627370497.5", "8.41", "1.7976931348623157e308",
		"5e-324", "2.2250738585072011e-308", "0.1e1", "100e-2", "3.14159265358979323846",
		"0.00000000000000000000000000000001", "1E5", "1e+5",
	} {
		s := Scanner{Text: []byte(text)}
		n, ok := s.Number()
		require.True(t, ok, text)
		got, ok := n.Float()
		require.True(t, ok, text)
		want, err := strconv.ParseFloat(text, 64)
		require.NoError(t, err)
		require.Equal(t, math.Float64bits(want), math.Float64bits(got), text)
	}
}

// TestHalvesOfPairs: a pair is its character. A lone half, also one before something else that is escaped, is not valid
// UTF-8, and differs from other halves and from U+FFFD.
func TestHalvesOfPairs(t *testing.T) {
	read := func(text string) string {
		s := Scanner{Text: []byte(`"` + text + `"`)}
		got, ok := s.Str()
		require.True(t, ok, text)
		require.Equal(t, len(s.Text), s.Pos)
		return got
	}
	require.Equal(t, "a😀b", read(`a\ud83d\ude00b`))
	require.Equal(t, "\ufffd", read(`\ufffd`))
	seen := make(map[string]string)
	for _, lone := range []string{`\ud800`, `\ud801`, `\udbff`, `\udc00`, `\udfff`, `\ud800x`, `\ud83d\u0041`, `\ud83d\n`, `\ude00\ud83d`, `\ud83d\ud83d\ude00`} {
		got := read(lone)
		require.False(t, utf8.ValidString(got), lone)
		require.Empty(t, seen[got], lone)
		seen[got] = lone
	}
	require.True(t, strings.HasSuffix(read(`\ud83d\u0041`), "A"))
	require.True(t, strings.HasSuffix(read(`\ud83d\ud83d\ude00`), "😀"))
}

// TestLongIntegers: a number may have many digits and be an integer.
func TestLongIntegers(t *testing.T) {
	zeros := strings.Repeat("0", 700)
	for text, want := range map[string]string{
		"12": "12", "-0": "0", "1e3": "1000", "1000.0": "1000", "1200e-2": "12", "-1.5e1": "-15", "0.00": "0", "0e99": "0",
		"9223372036854775807": "9223372036854775807", "9007199254740992.0": "9007199254740992", "-9007199254740992e0": "-9007199254740992",
		"9223372036854775808": "", "-9223372036854775809": "", "12345678901234567890": "", "1e19": "", "1e-1": "", "1.5": "",
		"922337203685477580.7e1": "", "10000000000000000000e-1": "",
		"1" + zeros + "e-700": "1", "-0." + zeros + "1e702": "-10", "1" + zeros: "", "0." + zeros + "1": "",
	} {
		s := Scanner{Text: []byte(text)}
		n, ok := s.Number()
		require.True(t, ok, text)
		got, ok := n.Int()
		require.Equal(t, want != "", ok, text)
		if ok {
			require.Equal(t, want, strconv.FormatInt(got, 10), text)
		}
	}
}

// TestFaultsAreShort: a fault that names a text of the input repeats only its beginning.
func TestFaultsAreShort(t *testing.T) {
	long := strings.Repeat("1", 100_000)
	for _, arg := range []any{long, []byte(long), View([]byte(long))} {
		var s Scanner
		require.False(t, s.Fail(7, "%s is too large", arg))
		require.Equal(t, long[:80]+"… is too large", s.Fault)
		require.Equal(t, 7, s.At)
	}
}
