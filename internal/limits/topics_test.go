package limits

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
)

// TestTopicsAreBounded: however many topics there are, few messages pass and few topics are remembered. Each that is
// skipped is counted once.
func TestTopicsAreBounded(t *testing.T) {
	const most, rounds, each = 64, 3, 10 * 64
	clk := clock.NewSimulated(time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC))
	th := NewTopics(clk, time.Minute, most)
	passed, skipped, n := 0, 0, 0
	pass := func(topic string) {
		more, ok := th.Pass(topic)
		skipped += more
		if ok {
			passed++
		}
		require.LessOrEqual(t, len(th.skipped), most+1)
	}
	for range rounds {
		for range each {
			pass(strconv.Itoa(n / 2)) // each topic twice
			n++
		}
		clk.Set(clk.Now().Add(time.Minute))
	}
	require.Equal(t, rounds*(most+1), passed, "each topic that is told apart, and the rest")
	for range 2 * most {
		pass("new " + strconv.Itoa(n))
		n++
	}
	pass("rest")
	left := th.forgotten
	for _, counts := range []map[string]int{th.skipped, th.before} {
		for _, n := range counts {
			left += n
		}
	}
	require.Equal(t, n+1-passed, skipped+left)
}
