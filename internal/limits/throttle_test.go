package limits_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

func TestThrottle(t *testing.T) {
	clk := clock.NewSimulated(time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC))
	th := limits.NewThrottle(clk, time.Minute)
	pass := func() string {
		skipped, ok := th.Pass()
		return fmt.Sprint(skipped, ok)
	}
	require.Equal(t, "0 true", pass())
	require.Equal(t, "0 false", pass())
	require.Equal(t, "0 false", pass())
	clk.Set(clk.Now().Add(time.Minute))
	require.Equal(t, "2 true", pass())
	require.Equal(t, "0 false", pass())
	clk.Set(clk.Now().Add(-time.Hour))
	require.Equal(t, "1 true", pass(), "a clock that went back")
}
