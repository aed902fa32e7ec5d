package limits

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMeters: each key has its own limit, and however many there are, few are remembered.
func TestMeters(t *testing.T) {
	var m Meters[int]
	now := time.Unix(0, 0)
	for key := range 10_000 {
		require.True(t, m.Get(key, time.Second, 1).AllowN(now, 1))
		require.False(t, m.Get(key, time.Second, 1).AllowN(now, 1))
		require.LessOrEqual(t, len(m.byKey), mostMeters)
	}
	require.True(t, m.Get(9_999, time.Second, 1).AllowN(now.Add(time.Second), 1))
}
