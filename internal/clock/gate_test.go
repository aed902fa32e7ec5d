package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGate(t *testing.T) {
	const day = 24 * time.Hour
	noon := time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		newest time.Time // what earlier processes have seen; zero for none
		do     func(t *testing.T, clk *Simulated, g *Gate)
	}{
		{"a new store takes any clock", time.Time{}, func(t *testing.T, _ *Simulated, g *Gate) {
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Newest())
		}},
		{"off for a day", noon.Add(-mostAhead), func(t *testing.T, _ *Simulated, g *Gate) {
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Newest())
		}},
		{"ahead at start, and right again", noon.Add(-9 * day), func(t *testing.T, clk *Simulated, g *Gate) {
			require.ErrorContains(t, g.Check(), "the clock says 2025-11-21T12:00:00Z, 216h0m0s ahead of the newest time that the store has seen, 2025-11-12T12:00:00Z")
			require.ErrorContains(t, g.Check(), "--accept-clock")
			require.Equal(t, noon.Add(-9*day), g.Newest(), "what is refused is not remembered")
			clk.Jump(-9 * day)
			require.NoError(t, g.Check())
		}},
		{"ahead for ever", noon.Add(-9 * day), func(t *testing.T, clk *Simulated, g *Gate) {
			for range 100 {
				require.Error(t, g.Check(), "a clock is not right because it runs")
				clk.Set(clk.Now().Add(time.Hour))
			}
		}},
		{"ahead in the middle", noon, func(t *testing.T, clk *Simulated, g *Gate) {
			clk.Set(noon.Add(10 * day)) // counts as elapsed time
			require.NoError(t, g.Check())
			clk.Jump(mostAhead)
			require.NoError(t, g.Check())
			clk.Jump(mostAhead + time.Second)
			require.Error(t, g.Check())
			require.Equal(t, noon.Add(10*day+mostAhead), g.Newest())
		}},
		{"behind, until it has come so far", noon, func(t *testing.T, clk *Simulated, g *Gate) {
			require.NoError(t, g.Check())
			clk.Jump(-MostStep)
			require.NoError(t, g.Check())
			clk.Jump(-time.Second)
			require.ErrorContains(t, g.Check(), "the clock says 2025-11-21T11:58:59Z, 1m1s behind the newest time that the store has seen, 2025-11-21T12:00:00Z")
			require.Equal(t, noon, g.Newest())
			clk.Set(clk.Now().Add(time.Second))
			require.NoError(t, g.Check())
		}},
		{"a boot in 1970", noon.Add(-time.Hour), func(t *testing.T, clk *Simulated, g *Gate) {
			clk.Jump(-55 * 365 * day)
			require.Error(t, g.Check())
			clk.Jump(55 * 365 * day)
			require.NoError(t, g.Check())
		}},
		{"accepted", noon.Add(-9 * day), func(t *testing.T, clk *Simulated, g *Gate) {
			require.Error(t, g.Check())
			g.Accept()
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Newest())
			clk.Jump(mostAhead + time.Second)
			require.Error(t, g.Check(), "once is not for ever")
			clk.Jump(-9 * day)
			g.Accept()
			require.NoError(t, g.Check(), "also back")
			require.Equal(t, noon.Add(mostAhead+time.Second-9*day), g.Newest())
		}},
		{"behind by more than is tolerated", noon, func(t *testing.T, clk *Simulated, g *Gate) {
			g.Tolerate(time.Second)
			require.NoError(t, g.Check())
			clk.Jump(-time.Second)
			require.NoError(t, g.Check())
			clk.Jump(-time.Millisecond)
			require.Error(t, g.Check())
		}},
		{"a reading", noon, func(t *testing.T, clk *Simulated, g *Gate) {
			before := Read(clk)
			clk.Jump(3 * day)
			require.NoError(t, g.Confirms(before))
			require.Error(t, g.Confirms(Read(clk)))
			now, err := g.Now()
			require.Equal(t, clk.Now(), now)
			require.Error(t, err)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := NewSimulated(noon)
			c.do(t, clk, NewGate(clk, c.newest))
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
