package query

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWordsAreBounded: one request alone may not hold any number of words, and is told what to ask instead.
func TestWordsAreBounded(t *testing.T) {
	w := words{ctx: t.Context()}
	require.NoError(t, w.hold(maxWordsBytes/headerBytes, headerBytes))
	var bad *RequestError
	require.ErrorAs(t, w.add("one"), &bad)
	require.Contains(t, bad.Message, "match[]")
	require.NotContains(t, w.found, "one")
}
