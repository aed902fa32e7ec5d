package migrate

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestLevelThatRHQLacks: a ladder with a level below a copied one that RHQ lacks is refused before anything is written.
// Late data would have the coarser rows computed again from that level, which is empty.
func TestLevelThatRHQLacks(t *testing.T) {
	for ladder, refused := range map[string]string{
		"1h,6h,24h":        "",
		"1h,6h,24h,168h":   "",
		"30m,1h,6h,24h":    "roll-ups of 30m",
		"1h,2h,6h,24h":     "roll-ups of 2h",
		"1h,6h,12h,24h":    "roll-ups of 12h",
		"1h,2h,6h,24h,48h": "roll-ups of 2h",
	} {
		t.Run(ladder, func(t *testing.T) {
			w := newWorld()
			set := storagetest.TestSettings()
			var err error
			set.Ladder, err = metric.ParseLadder(ladder)
			require.NoError(t, err)
			w.store = storagetest.NewModel(set, nil, w.clk)
			report, err := w.migrate(t, morning())
			if refused == "" {
				require.NoError(t, err)
				require.True(t, report.Equal())
				return
			}
			require.ErrorContains(t, err, refused)
			require.ErrorContains(t, err, "create a store whose --rollups have, up to 24h, no widths but 1h, 6h and 24h")
			data, marks := w.dump(t)
			require.Empty(t, data)
			require.Empty(t, marks)
		})
	}
}
