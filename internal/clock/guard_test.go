package clock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestGuard(t *testing.T) {
	noon := time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		name   string
		newest time.Time // before the process; zero for none
		do     func(t *testing.T, clk *Simulated, g *Guard)
	}{
		{"a new store believes whatever clock it has", time.Time{}, func(t *testing.T, _ *Simulated, g *Guard) {
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Newest())
		}},
		{"a short outage", noon.Add(-MostAhead), func(t *testing.T, _ *Simulated, g *Guard) { require.NoError(t, g.Check()) }},
		{"ahead at start, and right again", noon.Add(-9 * 24 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			require.ErrorContains(t, g.Check(), "the clock says 2025-11-21T12:00:00Z, 216h0m0s ahead of the newest time that was seen before")
			clk.Jump(-9 * 24 * time.Hour)
			require.NoError(t, g.Check())
			require.Equal(t, noon.Add(-9*24*time.Hour), g.Newest())
		}},
		{"ahead in the middle", noon, func(t *testing.T, clk *Simulated, g *Guard) {
			clk.Set(noon.Add(240 * time.Hour)) // which is time that passes
			require.NoError(t, g.Check())
			clk.Jump(MostAhead)
			require.NoError(t, g.Check())
			clk.Jump(MostAhead + time.Second)
			require.Error(t, g.Check())
			require.Equal(t, noon.Add(240*time.Hour+MostAhead), g.Newest(), "what is doubted is not remembered")
		}},
		{"behind, and right again", noon, func(t *testing.T, clk *Simulated, g *Guard) {
			clk.Jump(-50 * 365 * 24 * time.Hour)
			require.NoError(t, g.Check(), "nothing expires by a clock that is behind")
			require.Equal(t, noon, g.Newest())
			clk.Set(clk.Now().Add(time.Hour))
			require.NoError(t, g.Check())
			clk.Jump(50*365*24*time.Hour + MostAhead)
			require.NoError(t, g.Check())
			clk.Jump(time.Minute)
			require.NoError(t, g.Check(), "the newest is what was seen last")
		}},
		{"steady for long", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 24 {
				require.Error(t, g.Check())
				clk.Set(clk.Now().Add(time.Hour))
			}
			require.NoError(t, g.Check())
			clk.Jump(MostAhead + time.Minute)
			require.Error(t, g.Check(), "once is not for ever")
		}},
		{"not steady", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			for range 30 {
				require.Error(t, g.Check())
				clk.Set(clk.Now().Add(time.Hour))
				clk.Jump(2 * time.Minute)
			}
		}},
		{"confirmed", noon.Add(-72 * time.Hour), func(t *testing.T, clk *Simulated, g *Guard) {
			require.Error(t, g.Check())
			g.Confirm()
			require.NoError(t, g.Check())
			require.Equal(t, noon, g.Newest())
			clk.Jump(-72 * time.Hour)
			g.Confirm()
			require.Equal(t, noon.Add(-72*time.Hour), g.Newest(), "also back")
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			clk := NewSimulated(noon)
			c.do(t, clk, NewGuard(clk, c.newest))
		})
	}
}
