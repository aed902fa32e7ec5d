package agent

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestQueueAgainstModel runs random operations on the queue and on a plain slice.
func TestQueueAgainstModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))

	for range 200 {
		limit := 1 + rnd.IntN(40)
		q := queue{limit: limit}
		var model []Measurement
		var first, dropped uint64
		next := 0.0
		for range 200 {
			switch rnd.IntN(3) {
			case 0:
				ms := make([]Measurement, rnd.IntN(20))
				for i := range ms {
					ms[i] = Measurement{Metric: "m", Value: next}
					next++
				}
				model = append(model, ms...)
				over := max(0, len(model)-limit)
				require.Equal(t, over, q.push(ms))
				model = model[over:]
				first += uint64(over)
				dropped += uint64(over)
			case 1:
				n := rnd.IntN(30)
				got, end := q.front(n)
				n = min(n, len(model))
				require.Equal(t, first+uint64(n), end)
				require.Equal(t, append([]Measurement(nil), model[:n]...), got)
			case 2:
				// Some of it may have been dropped since the look.
				end := first + uint64(rnd.IntN(10)) - min(first, 3)
				q.remove(end)
				n := min(int(max(end, first)-first), len(model))
				model = model[n:]
				first += uint64(n)
			}
			queued, d := q.state()
			require.Equal(t, len(model), queued)
			require.Equal(t, dropped, d)
			require.Equal(t, first, q.first)
		}
		require.Equal(t, len(model), q.clear())
	}
}
