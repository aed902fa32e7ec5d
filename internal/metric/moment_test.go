package metric

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestParseMoment(t *testing.T) {
	now := time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC).UnixMilli()
	for text, want := range map[string]int64{
		"now": now, "-0": now, "-6h": now - 6*3_600_000, "-1d12h": now - 36*3_600_000,
		"1763726400": 1763726400_000, "1763726400.25": 1763726400_250, "1763726400000": 1763726400_000, "-3600": -3600_000, "1e9": 1e12,
		"2025-11-21": now - 12*3_600_000, "2025-11-21T11:00:00Z": now - 3_600_000, "2025-11-21 12:00": now,
	} {
		m, ok := ParseMoment(text)
		require.True(t, ok, text)
		require.Equal(t, want, m.Ms(now), text)
		require.Equal(t, text, m.String())
	}
	for _, text := range []string{"", "soon", "--6h", "-", "1e18", "NaN", "-Inf", "2025-13-01"} {
		_, ok := ParseMoment(text)
		require.False(t, ok, text)
	}
}
