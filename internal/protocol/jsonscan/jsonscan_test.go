package jsonscan

import (
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestHalvesOfPairs: a pair is its character. A lone half, also one before something else that is escaped, is not valid
// UTF-8.
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
	for _, lone := range []string{`\ud800`, `\uD801`, `\udfff`, `\ud800x`, `\ud83d\u0041`, `\ud83d\n`, `\ude00\ud83d`} {
		require.False(t, utf8.ValidString(read(lone)), lone)
	}
}

// TestIntegers: an integer may have any notation, up to what a float tells from its neighbours.
func TestIntegers(t *testing.T) {
	for text, want := range map[string]string{
		"12": "12", "-0": "0", "1e3": "1000", "1000.0": "1000", "1200e-2": "12", "-1.5e1": "-15", "0.00": "0", "0e99": "0",
		"1732161600.123e3": "1732161600123", "9223372036854775807": "9223372036854775807", "-9223372036854775808": "-9223372036854775808",
		"9223372036854775808": "", "12345678901234567890": "", "1e19": "", "1e-1": "", "1.5": "", "922337203685477580.7e1": "",
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
