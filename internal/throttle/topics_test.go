package throttle

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

func TestThrottleForgetsRatherThanGrows(t *testing.T) {
	const most = 64
	th := NewTopics(clock.NewSimulated(time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)), time.Minute, most)
	for i := range 10 * most {
		_, ok := th.Pass(strconv.Itoa(i))
		require.True(t, ok)
		require.LessOrEqual(t, len(th.of), most)
	}
}
