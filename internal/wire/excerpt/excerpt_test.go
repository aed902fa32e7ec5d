package excerpt_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"

	"github.com/quern/quern/internal/wire/excerpt"
)

func TestShorten(t *testing.T) {
	long := strings.Repeat("x", 80)
	for _, c := range []struct{ name, s, short, quoted string }{
		{"nothing", "", "", `""`},
		{"a word", "a\n", "a\n", `"a\n"`},
		{"the longest", long, long, `"` + long + `"`},
		{"one byte more", long + "y", long + "…", `"` + long + `"…`},
		{"a character at the end", long[:78] + "日y", long[:78] + "…", `"` + long[:78] + `"…`},
		{"no UTF-8", strings.Repeat("\x80", 81), strings.Repeat("\x80", 76) + "…", `"` + strings.Repeat(`\x80`, 76) + `"…`},
	} {
		t.Run(c.name, func(t *testing.T) {
			assert.Equal(t, c.short, excerpt.Shorten(c.s))
			assert.Equal(t, c.quoted, excerpt.Quoted(c.s))
			short := c.short
			assert.Equal(t, []any{7, short, short}, excerpt.Args([]any{7, c.s, []byte(c.s)}))
		})
	}
}

func TestMessage(t *testing.T) {
	whole := strings.Repeat("日本", excerpt.MaxMessageBytes/6)
	assert.Equal(t, whole, excerpt.Message(whole))
	long := excerpt.Message(whole + strings.Repeat("語", 1000))
	assert.True(t, utf8.ValidString(long))
	assert.Equal(t, fmt.Sprintf("%s… (and %d bytes more)", whole+"語", 2997), long)
}
