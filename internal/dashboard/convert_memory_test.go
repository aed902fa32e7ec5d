package dashboard_test

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/dashboard"
)

// TestConvertMemory: what a conversion allocates is in proportion to the text, also where the smallest panels are in
// all lists that there are. A text of half a megabyte can have 160,000 of them.
func TestConvertMemory(t *testing.T) {
	row := `{"type":"row","panels":[` + repeated(400, `{}`) + `]}`
	for name, text := range map[string]string{
		"rows":     `{"panels":[` + repeated(400, row) + `]}`,
		"one row":  `{"panels":[` + repeated(1, `{"type":"row","panels":[`+repeated(100_000, `{}`)+`]}`) + `]}`,
		"old rows": `{"rows":[` + repeated(400, row) + `]}`,
		"texts":    `{"panels":[` + repeated(60, `{"type":"text","options":{"content":"`+strings.Repeat("a", 60_000)+`"}}`) + `]}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, notes, err := dashboard.Convert([]byte(text))
		runtime.ReadMemStats(&after)
		require.NoError(t, err)
		require.NotEmpty(t, notes)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20+16*len(text)), name)
	}
}
