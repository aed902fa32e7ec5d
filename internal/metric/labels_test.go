package metric

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func labels(t *testing.T, pairs ...string) Labels {
	t.Helper()
	var in []Label
	for i := 0; i < len(pairs); i += 2 {
		in = append(in, Label{Name: pairs[i], Value: pairs[i+1]})
	}
	ls, err := NewLabels(in...)
	require.NoError(t, err)
	return ls
}

func TestNewLabels(t *testing.T) {
	ls := labels(t, "source", "web-1", "core", "0", "empty", "", NameLabel, "cpu_user")
	assert.Equal(t, Labels{{NameLabel, "cpu_user"}, {"core", "0"}, {"source", "web-1"}}, ls)
	assert.Equal(t, "web-1", ls.Get(SourceLabel))
	assert.Empty(t, ls.Get("empty"))

	_, err := NewLabels(Label{"a", "1"}, Label{"b", "2"}, Label{"a", "3"})
	require.ErrorContains(t, err, `"a"`)
	// An empty value counts as an absent label, so this name is given only once.
	assert.Equal(t, Labels{{"a", "1"}}, labels(t, "a", "1", "a", ""))
	assert.Empty(t, labels(t))
}

func TestNewLabelsLeavesItsArguments(t *testing.T) {
	in := []Label{{"b", "2"}, {"a", "1"}}
	_, err := NewLabels(in...)
	require.NoError(t, err)
	assert.Equal(t, []Label{{"b", "2"}, {"a", "1"}}, in)
}

func TestLabelsString(t *testing.T) {
	assert.Equal(t, `cpu_user{core="0",source="web-1"}`, labels(t, NameLabel, "cpu_user", "source", "web-1", "core", "0").String())
	assert.Equal(t, `{path="a\"b\\c\n"}`, labels(t, "path", "a\"b\\c\n").String())
	assert.Equal(t, `up{}`, labels(t, NameLabel, "up").String())
	assert.Equal(t, `{}`, labels(t).String())
}

// The code writes the example of docs/format/series.md.
func TestSeriesPageAgreesWithTheBytes(t *testing.T) {
	page, err := os.ReadFile("../../docs/format/series.md")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(page), "```bytes\n")
	require.True(t, found)
	example, _, found = strings.Cut(example, "```")
	require.True(t, found)
	var text string
	for line := range strings.Lines(example) {
		f := strings.Fields(line)
		require.Len(t, f, 3)
		text += f[0] + f[1]
	}
	want, err := hex.DecodeString(text)
	require.NoError(t, err)

	ls := labels(t, NameLabel, "cpu_user", "core", "0", "source", "web-1")
	assert.Equal(t, want, ls.AppendKey(nil))
	assert.Contains(t, string(page), "`"+ls.String()+"`")
}

// The lengths distinguish labels whose joined names and values are equal.
func TestKeysOfDifferentSeriesDiffer(t *testing.T) {
	series := []Labels{
		nil,
		labels(t, "a", "b"),
		labels(t, "ab", "c"),
		labels(t, "a", "bc"),
		labels(t, "a", "b", "c", "d"),
		labels(t, "a", "b\x01c\x01d"),
		labels(t, "a", strings.Repeat("x", 127)),
		labels(t, "a", strings.Repeat("x", 128)),
	}
	seen := map[string]Labels{}
	for _, ls := range series {
		key := string(ls.AppendKey(nil))
		assert.NotContains(t, seen, key, "%s", ls)
		seen[key] = ls
		back, err := ParseLabels([]byte(key))
		require.NoError(t, err)
		assert.Equal(t, ls, back)
	}
}

// TestLabelsInTheirKey: labels that are cut out of their key are the same, and keep no other text.
func TestLabelsInTheirKey(t *testing.T) {
	for _, n := range []int{1, 127, 128, 16383, 16384} { // where the length takes another byte
		text := []byte(strings.Repeat("v", n))
		ls := Labels{{Name: "a", Value: string(text)}, {Name: strings.Repeat("b", n), Value: "é"}}
		key := string(ls.AppendKey(nil))
		got := ls.In(key)
		require.Equal(t, ls, got)
		for _, l := range got {
			for _, s := range []string{l.Name, l.Value} {
				at := uintptr(unsafe.Pointer(unsafe.StringData(s)))
				from := uintptr(unsafe.Pointer(unsafe.StringData(key)))
				require.True(t, from <= at && at+uintptr(len(s)) <= from+uintptr(len(key)))
			}
		}
	}
}

func TestParseLabelsRefuses(t *testing.T) {
	for name, key := range map[string]string{
		"a name cut off":       "\x02a",
		"no value":             "\x01a",
		"a value cut off":      "\x01a\x02b",
		"names out of order":   "\x01b\x011\x01a\x011",
		"a name twice":         "\x01a\x011\x01a\x011",
		"a length too long":    "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
		"the greatest length":  "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
		"a length cut off":     "\x80",
		"a name not UTF-8":     "\x01\xff\x011",
		"a value not UTF-8":    "\x01a\x01\xff",
		"a label and one byte": "\x01a\x011\x01",
	} {
		_, err := ParseLabels([]byte(key))
		assert.Error(t, err, name)
	}
}

func FuzzParseLabels(f *testing.F) {
	f.Add([]byte("\x08__name__\x02up\x06source\x01a"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, key []byte) {
		ls, err := ParseLabels(key)
		if err != nil {
			return
		}
		again, err := ParseLabels(ls.AppendKey(nil))
		require.NoError(t, err)
		require.Equal(t, ls, again)
		require.Equal(t, ls.String(), again.String())
	})
}
