package cassandra

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
)

var noon = time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)

func TestTimestampsAscend(t *testing.T) {
	clk := clock.NewSimulated(noon)
	ts := &timestamps{clk: clk}
	last := ts.next()
	require.Equal(t, noon.UnixMicro(), last, "µs since 1970")
	for _, step := range []struct {
		name string
		to   time.Time
	}{
		{"the clock stands still", noon},
		{"it goes on by less than was given out", noon.Add(2 * time.Microsecond)},
		{"it goes back", noon.Add(-time.Hour)},
		{"it goes on, to before where it was", noon.Add(-time.Minute)},
	} {
		clk.Set(step.to)
		for range 5 {
			next := ts.next()
			require.Equal(t, last+1, next, step.name)
			last = next
		}
	}
	clk.Set(noon.Add(time.Hour))
	require.Equal(t, noon.Add(time.Hour).UnixMicro(), ts.next(), "it is right again")
}

// What is written after a run's fence was seen is not covered by the run's deletes.
func TestTimestampsLieAboveFences(t *testing.T) {
	clk := clock.NewSimulated(noon)
	ts := &timestamps{clk: clk}
	ahead := storage.Fence(noon.Add(time.Hour).UnixMicro()) // of a worker whose clock is ahead
	ts.observe(ahead)
	require.Equal(t, int64(ahead)+1, ts.next())
	ts.observe(ahead) // seen again
	require.Equal(t, int64(ahead)+2, ts.next())
	ts.observe(0)
	ts.observe(storage.Fence(noon.UnixMicro()))
	require.Equal(t, int64(ahead)+3, ts.next())
}

func TestTimestampOfAFence(t *testing.T) {
	clk := clock.NewSimulated(noon)
	ts := &timestamps{clk: clk}
	require.EqualValues(t, 42, ts.of(42), "a run writes with its fence, whatever the time")
	first := ts.of(0)
	require.Equal(t, noon.UnixMicro(), first)
	require.Equal(t, first+1, ts.of(0))
}

func TestTimestampsOfMany(t *testing.T) {
	ts := &timestamps{clk: clock.NewSimulated(noon)}
	const writers, each = 16, 500
	var mu sync.Mutex
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			last := int64(0)
			for range each {
				next := ts.next()
				if next <= last {
					t.Errorf("%d after %d", next, last)
				}
				last = next
				mu.Lock()
				seen[next] = true
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	require.Len(t, seen, writers*each)
}
