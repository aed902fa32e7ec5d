package clock

import (
	"fmt"
	"sync"
	"time"
)

const (
	// MostAhead is how far a believed clock may be ahead of the newest believed time, beyond the
	// time that has elapsed since.
	MostAhead = 24 * time.Hour
	// SteadyFor is how long, in total, a clock that is further ahead has to run steadily before the
	// guard believes it.
	SteadyFor = 24 * time.Hour
	// MostOff is how far such a clock may move ahead unobserved between two checks: the machine may
	// be off or asleep.
	MostOff = 7 * 24 * time.Hour
	// MostStep is how far such a clock may be set back in one step and still count as steady.
	MostStep = time.Minute
)

// Reading is the time of a clock and its Elapsed, read together.
type Reading struct {
	now time.Time
	at  time.Duration
}

// Read takes a reading of a clock.
func Read(c Clock) Reading { return Reading{c.Now(), c.Elapsed()} }

// Step returns by how much the clock has been set since the reading: ahead if positive, back if
// negative.
func (r Reading) Step(c Clock) time.Duration {
	now := Read(c)
	return now.now.Sub(r.now) - (now.at - r.at)
}

// Guard decides whether to believe a clock before something irreversible is done by it. It doubts a
// clock that has jumped ahead, over a restart or while the process ran. It believes the clock again
// in any of three cases: the clock is back at a plausible time, it has run for SteadyFor without
// being set back, or somebody has confirmed it. The guard cannot distinguish such a jump from a
// process that was off for as long.
//
// The run time of a doubted clock is counted over restarts, as far as processes observed it: a
// machine that is off every night would never reach SteadyFor in one go. The count starts again in
// two cases:
//
//  1. The clock is set back. Whoever corrects a clock that is ahead does that.
//  2. The clock is further ahead than MostOff explains. Then little is known of the current time.
type Guard struct {
	clk Clock

	mu sync.Mutex
	// newest is the newest believed time, zero for none. seen is the clock's Elapsed at that time.
	newest time.Time
	seen   time.Duration
	// doubt is nil while the clock is believed.
	doubt *doubt
}

// doubt is the state of a doubted clock.
type doubt struct {
	last Reading
	// ran is how long the clock has run steadily.
	ran time.Duration
}

// Memory is the state that a guard passes on to the guard of the next process.
type Memory struct {
	// Newest is the newest believed time, zero for none.
	Newest time.Time
	// Doubted is the time of a doubted clock at the last check, zero if the clock was believed. Ran
	// is how long that clock had run steadily.
	Doubted time.Time
	Ran     time.Duration
}

// NewGuard returns a guard that continues from the memory of an earlier guard.
func NewGuard(clk Clock, before Memory) *Guard {
	g := &Guard{clk: clk, newest: before.Newest, seen: clk.Elapsed()}
	if !before.Doubted.IsZero() {
		g.doubt = &doubt{Reading{before.Doubted, g.seen}, before.Ran}
	}
	return g
}

// Check returns nil while the clock may be acted on. Otherwise the error says what is wrong.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Read(g.clk)
	expected := g.newest.Add(r.at - g.seen)
	if g.newest.IsZero() || !r.now.After(expected.Add(MostAhead)) {
		if r.now.After(g.newest) {
			g.newest, g.seen = r.now, r.at
		}
		g.doubt = nil
		return nil
	}
	if g.doubt == nil {
		g.doubt = &doubt{last: r}
	}
	g.doubt.saw(r)
	left := SteadyFor - g.doubt.ran
	if left <= 0 {
		g.believe(r)
		return nil
	}
	return fmt.Errorf("the clock says %s, %s ahead of the newest time that was seen before: it is confirmed, or has run on for another %s, before anything expires by it",
		r.now.Format(time.RFC3339), r.now.Sub(expected).Round(time.Minute), left.Round(time.Minute))
}

// saw adds the time since the last reading, or starts the count again if the clock was set
// meanwhile.
func (d *doubt) saw(r Reading) {
	ran := r.at - d.last.at
	step := r.now.Sub(d.last.now) - ran
	if step < -MostStep || step > MostOff {
		d.ran = 0
	} else {
		d.ran += ran
	}
	d.last = r
}

// Confirm makes the guard believe the clock as it is.
func (g *Guard) Confirm() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.believe(Read(g.clk))
}

func (g *Guard) believe(r Reading) { g.newest, g.seen, g.doubt = r.now, r.at, nil }

// Memory returns the guard's state as of the last Check, for the next process.
func (g *Guard) Memory() Memory {
	g.mu.Lock()
	defer g.mu.Unlock()
	m := Memory{Newest: g.newest}
	if g.doubt != nil {
		m.Doubted, m.Ran = g.doubt.last.now, g.doubt.ran
	}
	return m
}
