package terminal_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/terminal"
)

func TestEscape(t *testing.T) {
	for text, want := range map[string]string{
		"":                                "",
		"cpu{a=\"b\"} \u00e4\u4e16…\n\tx": "cpu{a=\"b\"} \u00e4\u4e16…\n\tx",
		"\x1b[2J\a\r\x00\x7f":             `\u001b[2J\u0007\u000d\u0000\u007f`,
		"\u009b31m":                       `\u009b31m`,
		"a\u202eb":                        `a\u202eb`, // what follows would be shown from right to left
		"\U000e0041":                      `\udb40\udc41`,
		"\x9b31m":                         `\ufffd31m`,
	} {
		var out bytes.Buffer
		n, err := fmt.Fprint(terminal.Plain(&out), text)
		require.NoError(t, err)
		assert.Equal(t, len(text), n)
		assert.Equal(t, want, out.String())
	}

	text := "\u009b\u202e\U000e0041\x7f"
	encoded, err := json.Marshal(text)
	require.NoError(t, err)
	var got string
	require.NoError(t, json.Unmarshal([]byte(terminal.Escape(string(encoded))), &got))
	assert.Equal(t, text, got)
}
