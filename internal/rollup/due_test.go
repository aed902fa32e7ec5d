package rollup

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

func TestDueTimes(t *testing.T) {
	d := dueTimes{ladder: metric.DefaultLadder(), delay: 2 * time.Minute}
	day := time.Date(2025, 3, 30, 0, 0, 0, 0, time.UTC)
	for _, c := range []struct{ at, next time.Duration }{
		{0, 2 * time.Minute},
		{2*time.Minute - 1, 2 * time.Minute},
		{2 * time.Minute, time.Hour + 2*time.Minute},
		{23*time.Hour + 30*time.Minute, 24*time.Hour + 2*time.Minute},
	} {
		require.Equal(t, day.Add(c.next), d.Next(day.Add(c.at)), "%s", c.at)
	}
}
