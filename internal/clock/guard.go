package clock

import (
	"fmt"
	"sync"
	"time"
)

const (
	// MostAhead is how far ahead of the newest time seen a clock may be, and be believed.
	MostAhead = 24 * time.Hour
	// SteadyFor is how long a clock that is further ahead has to run on steadily until it is believed.
	SteadyFor = 24 * time.Hour
	// MostStep is how much a clock that runs steadily may be set in one go.
	MostStep = time.Minute
)

// Reading is a look at a clock.
type Reading struct {
	now time.Time
	at  time.Duration
}

// Read looks at a clock.
func Read(c Clock) Reading { return Reading{c.Now(), c.Elapsed()} }

// Step is by how much the clock has been set since: ahead, or back if it is negative.
func (r Reading) Step(c Clock) time.Duration {
	now := Read(c)
	return now.now.Sub(r.now) - (now.at - r.at)
}

// Guard says whether a clock may be acted on where that cannot be undone. A clock that has jumped ahead, over a restart or
// while the process ran, may not: until it is back where it can be right, or has run on steadily for SteadyFor, or somebody has
// confirmed it. It cannot tell such a jump from a process that was off for as long.
type Guard struct {
	clk Clock

	mu sync.Mutex
	// newest is the newest time that was believed, zero for none, and seen is the clock's Elapsed then.
	newest time.Time
	seen   time.Duration
	// doubted is where the clock was, and its Elapsed, when it jumped last; nil while it is believed.
	doubted *Reading
}

// NewGuard makes one for a clock that was believed at a time before, zero for none.
func NewGuard(clk Clock, newest time.Time) *Guard {
	return &Guard{clk: clk, newest: newest, seen: clk.Elapsed()}
}

// Check is nil while the clock may be acted on. The error says what is wrong.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Read(g.clk)
	expected := g.newest.Add(r.at - g.seen)
	if g.newest.IsZero() || !r.now.After(expected.Add(MostAhead)) {
		if r.now.After(g.newest) {
			g.newest, g.seen = r.now, r.at
		}
		g.doubted = nil
		return nil
	}
	if d := g.doubted; d == nil || d.Step(g.clk).Abs() > MostStep {
		g.doubted = &r
	}
	left := SteadyFor - (r.at - g.doubted.at)
	if left <= 0 {
		g.believe(r)
		return nil
	}
	return fmt.Errorf("the clock says %s, %s ahead of the newest time that was seen before: it is confirmed, or has run on for another %s, before anything expires by it",
		r.now.Format(time.RFC3339), r.now.Sub(expected).Round(time.Minute), left.Round(time.Minute))
}

// Confirm has the clock believed as it is.
func (g *Guard) Confirm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.believe(Read(g.clk))
}

func (g *Guard) believe(r Reading) { g.newest, g.seen, g.doubted = r.now, r.at, nil }

// Newest is the newest time that was believed, for the next process.
func (g *Guard) Newest() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.newest
}
