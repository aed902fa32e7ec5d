package columns

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPage: the example of the format's page is what the encoder writes.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/format/columns.md")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(page), "```bytes\n")
	require.True(t, found)
	example, _, _ = strings.Cut(example, "```")
	var text strings.Builder
	for line := range strings.Lines(example) {
		bytes, _, _ := strings.Cut(strings.TrimSpace(line), "  ") // what they mean stands in a column of its own
		text.WriteString(strings.ReplaceAll(bytes, " ", ""))
	}
	times := []int64{1_732_161_600_000, 1_732_161_660_000, 1_732_161_720_000}
	chunk := new(Encoder).Append(nil, []Series{
		{Schedule: 1280, Times: times, Values: []float64{0.25, 0.27, 0.26}},
		{Schedule: 1281, Times: times[1:], Values: []float64{1500, 1500}},
	})
	require.Equal(t, hex.EncodeToString(chunk), text.String())
}
