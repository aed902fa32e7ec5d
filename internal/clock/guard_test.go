package clock

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGuard(t *testing.T) {
	noon := time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		newest time.Time // the newest believed time before the process; zero for none
		do     func(t *testing.T, clk *Simulated, g *Guard)
	}{
		{"a new store believes whatever clock it has", time.Time{}, func(t *testing.T, _ *Simulated, g *Guard) {
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Memory().Newest)
		}},
		{"a short outage", noon.Add(-mostAhead), func(t *testing.T, _ *Simulated, g *Guard) { require.NoError(t, g.Check()) }},
		{"ahead at start, and right again", noon.Add(-9 * 24 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			require.ErrorContains(t, g.Check(), "the clock says 2025-11-21T12:00:00Z, 216h0m0s ahead of the newest time seen before")
			clk.Jump(-9 * 24 * time.Hour)
			require.NoError(t, g.Check())
			require.Equal(t, noon.Add(-9*24*time.Hour), g.Memory().Newest)
		}},
		{"ahead in the middle", noon, func(t *testing.T, clk *Simulated, g *Guard) {
			clk.Set(noon.Add(240 * time.Hour)) // counts as elapsed time
			require.NoError(t, g.Check())
			clk.Jump(mostAhead)
			require.NoError(t, g.Check())
			clk.Jump(mostAhead + time.Second)
			require.Error(t, g.Check())
			require.Equal(t, noon.Add(240*time.Hour+mostAhead), g.Memory().Newest, "what is doubted is not remembered")
		}},
		{"behind, and right again", noon, func(t *testing.T, clk *Simulated, g *Guard) {
			clk.Jump(-50 * 365 * 24 * time.Hour)
			require.NoError(t, g.Check(), "nothing expires by a clock that is behind")
			require.Equal(t, noon, g.Memory().Newest)
			clk.Set(clk.Now().Add(time.Hour))
			require.NoError(t, g.Check())
			clk.Jump(50*365*24*time.Hour + mostAhead)
			require.NoError(t, g.Check())
			clk.Jump(time.Minute)
			require.NoError(t, g.Check(), "the newest is what was seen last")
		}},
		{"behind for long", noon.Add(9 * 24 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 24 {
				require.NoError(t, g.Check())
				require.Equal(t, noon.Add(9*24*time.Hour), g.Memory().Newest)
				clk.Set(clk.Now().Add(time.Hour))
			}
			require.NoError(t, g.Check())
			require.Equal(t, noon.Add(24*time.Hour), g.Memory().Newest, "that was ahead")
			clk.Jump(mostAhead + time.Minute)
			require.Error(t, g.Check(), "it is guarded again")
			clk.Jump(-2 * time.Minute)
			require.NoError(t, g.Check())
		}},
		{"behind again and again", noon.Add(9 * 24 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 30 {
				require.NoError(t, g.Check())
				clk.Set(clk.Now().Add(23 * time.Hour))
				require.NoError(t, g.Check())
				clk.Jump(-23*time.Hour - MostStep - time.Second)
			}
			require.Equal(t, noon.Add(9*24*time.Hour), g.Memory().Newest, "as at each boot without a clock")
		}},
		{"behind, and ahead", noon, func(t *testing.T, clk *Simulated, g *Guard) {
			clk.Jump(-mostAhead - time.Minute)
			require.NoError(t, g.Check())
			clk.Set(clk.Now().Add(23 * time.Hour))
			require.NoError(t, g.Check())
			clk.Jump(2*mostAhead + 2*time.Hour)
			require.Error(t, g.Check())
			clk.Set(clk.Now().Add(23 * time.Hour))
			require.Error(t, g.Check(), "what it ran while it was behind does not count")
		}},
		{"steady for long", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 24 {
				require.Error(t, g.Check())
				clk.Set(clk.Now().Add(time.Hour))
			}
			require.NoError(t, g.Check())
			clk.Jump(mostAhead + time.Minute)
			require.Error(t, g.Check(), "once is not for ever")
		}},
		{"put back again and again", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 30 {
				require.Error(t, g.Check())
				clk.Set(clk.Now().Add(time.Hour))
				clk.Jump(-MostStep - time.Second)
			}
		}},
		{"further and further ahead", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 30 {
				require.Error(t, g.Check())
				clk.Set(clk.Now().Add(23 * time.Hour))
				clk.Jump(mostOff + time.Second)
			}
		}},
		{"asleep every night", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 3 {
				require.Error(t, g.Check())
				clk.Set(clk.Now().Add(9 * time.Hour))
				clk.Jump(15 * time.Hour)
			}
			require.NoError(t, g.Check())
		}},
		{"confirmed", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			require.Error(t, g.Check())
			g.Confirm()
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Memory().Newest)
			clk.Jump(-72 * time.Hour)
			g.Confirm()
			require.Equal(t, noon.Add(-72*time.Hour), g.Memory().Newest, "also back")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := NewSimulated(noon)
			c.do(t, clk, NewGuard(clk, Memory{Newest: c.newest}))
		})
	}
}

// TestGuardOverRestarts runs a clock that is doubted at first over several days. Each day the
// machine is on for some time and off for the rest.
func TestGuardOverRestarts(t *testing.T) {
	const hour = time.Hour
	begin := time.Date(2025, time.November, 24, 8, 0, 0, 0, time.UTC)
	type day struct {
		off, set, on time.Duration // how long it was off, by how much its clock was set meanwhile, how long it is on after that
		doubted      bool
	}
	doubted := func(m Memory) bool { return m.Doubted.After(m.Newest) }
	for _, c := range []struct {
		name string
		days []day
	}{
		{"off every night", []day{{72 * hour, 0, 9 * hour, true}, {15 * hour, 0, 9 * hour, true}, {15 * hour, 0, 6 * hour, false}, {15 * hour, 0, hour, false}}},
		{"on for an hour a day", append(slices.Repeat([]day{{72 * hour, 0, hour, true}}, 23), day{72 * hour, 0, hour, false})},
		{"restarts without a pause", append(slices.Repeat([]day{{72 * hour, 0, 0, true}}, 100), day{0, 0, hour, true})},
		{"wrong at each boot, and put right", slices.Repeat([]day{{0, 216 * hour, 12 * hour, true}, {0, -216 * hour, hour, false}}, 20)},
		{"the same wrong time at each boot", slices.Repeat([]day{{0, 216 * hour, 12 * hour, true}, {0, -228 * hour, 0, false}}, 20)},
		{"put back while it was off, not far enough", []day{{0, 216 * hour, 23 * hour, true}, {0, -hour, 23 * hour, true}, {0, 0, hour, false}}},
		{"ahead once more", []day{{0, 216 * hour, 23 * hour, true}, {0, mostOff + hour, 23 * hour, true}, {0, 0, hour, false}}},
		{"off for weeks", []day{{72 * hour, 0, 23 * hour, true}, {mostOff + hour, 0, 23 * hour, true}, {0, 0, hour, false}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			now, memory := begin, Memory{Newest: begin}
			for i, d := range c.days {
				clk := NewSimulated(now.Add(d.off + d.set)) // its Elapsed starts at 0
				g := NewGuard(clk, memory)
				err := g.Check()
				for range d.on / (10 * time.Minute) {
					clk.Set(clk.Now().Add(10 * time.Minute))
					err = g.Check()
				}
				require.Equal(t, d.doubted, err != nil, "day %d: %v", i, err)
				now, memory = clk.Now(), g.Memory()
				require.Equal(t, d.doubted, doubted(memory))
			}
		})
	}
}

// What has passed since a reading is known although the clock is set, or the machine sleeps.
func TestSince(t *testing.T) {
	c := NewSimulated(time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC))
	r := Read(c)
	c.Set(c.Now().Add(time.Hour))
	require.Equal(t, time.Hour, r.Since(c))
	c.Jump(-2 * time.Hour)
	require.Equal(t, time.Hour, r.Since(c))
	c.Jump(10 * time.Hour)
	require.Equal(t, 9*time.Hour, r.Since(c))
}
