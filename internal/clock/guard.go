package clock

import (
	"fmt"
	"sync"
	"time"
)

const (
	// mostAhead is how far a believed clock may be ahead of the newest believed time, beyond the
	// time that has elapsed since.
	mostAhead = 24 * time.Hour
	// steadyFor is how long, in total, a clock that is further ahead has to run steadily before the
	// guard believes it.
	steadyFor = 24 * time.Hour
	// mostOff is how far such a clock may move ahead unobserved between two checks: the machine may
	// be off or asleep.
	mostOff = 7 * 24 * time.Hour
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

// Since returns how long ago the reading was, by the wall clock or the monotonic one, whichever says
// more: the wall clock may have been set back, and the monotonic one stands still while the machine
// sleeps.
func (r Reading) Since(c Clock) time.Duration {
	now := Read(c)
	return max(now.now.Sub(r.now), now.at-r.at)
}

// Time returns what the wall clock said.
func (r Reading) Time() time.Time { return r.now }

// Step returns by how much the clock has been set between the reading and a later one: ahead if
// positive, back if negative.
func (r Reading) Step(later Reading) time.Duration { return later.now.Sub(r.now) - (later.at - r.at) }

// Guard decides whether to believe a clock before something irreversible is done by it. It doubts a
// clock that has jumped ahead, over a restart or while the process ran. It believes the clock again
// in any of three cases: the clock is back at a plausible time, it has run for steadyFor without
// being set back, or somebody has confirmed it. The guard cannot distinguish such a jump from a
// process that was off for as long.
//
// How long a doubted clock has run on is counted over restarts, as far as processes saw it run: a
// machine that is off every night would never come to steadyFor in one go. Whoever puts a clock
// right that is ahead sets it back, and then the count begins anew; so it does when the clock is
// further ahead than mostOff explains, since little is known then of where it is now.
//
// A clock that is further than mostAhead behind what was believed is acted on, since nothing
// expires by it. When it has run on for steadyFor, counted in the same way, it is what was believed
// that was wrong: it is the newest time then, and guarded like any other.
type Guard struct {
	clk Clock

	mu sync.Mutex
	// newest is the newest believed time, zero for none. seen is the clock's Elapsed at that time.
	newest time.Time
	seen   time.Duration
	// doubt is nil while the clock is near what was believed.
	doubt *doubt
}

// doubt is of a clock that is doubted, or of the newest time if the clock is behind it.
type doubt struct {
	last Reading
	// ran is how long the clock has run on.
	ran    time.Duration
	behind bool
}

// Memory is the state that a guard passes on to the guard of the next process.
type Memory struct {
	// Newest is the newest believed time, zero for none.
	Newest time.Time
	// Doubted is the time of a clock that was far ahead of Newest, or far behind, when it was last
	// looked at, zero for none, and Ran how long it had run on.
	Doubted time.Time
	Ran     time.Duration
}

// NewGuard returns a guard that continues from the memory of an earlier guard.
func NewGuard(clk Clock, before Memory) *Guard {
	g := &Guard{clk: clk, newest: before.Newest, seen: clk.Elapsed()}
	if !before.Doubted.IsZero() {
		g.doubt = &doubt{Reading{before.Doubted, g.seen}, before.Ran, before.Doubted.Before(before.Newest)}
	}
	return g
}

// Check returns nil while the clock may be acted on. Otherwise the error says what is wrong.
func (g *Guard) Check() error {
	_, err := g.Now()
	return err
}

// Behind returns an error if the clock is behind the newest believed time by more than MostStep. Check has no doubt of
// such a clock, since nothing expires by it. But what is decided for the time after the present may then be for a time
// that is over.
func (g *Guard) Behind() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Read(g.clk)
	behind := g.newest.Add(r.at - g.seen).Sub(r.now)
	if g.newest.IsZero() || behind <= MostStep || !r.now.Before(g.newest) {
		return nil
	}
	return fmt.Errorf("the clock says %s, %s behind the newest time seen before: put it right, or confirm it", r.now.Format(time.RFC3339), behind.Round(time.Second))
}

// Now returns the clock's time, and what Check says of exactly that time.
func (g *Guard) Now() (time.Time, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Read(g.clk)
	expected := g.newest.Add(r.at - g.seen)
	off := r.now.Sub(expected)
	if g.newest.IsZero() || off.Abs() <= mostAhead {
		if r.now.After(g.newest) {
			g.newest, g.seen = r.now, r.at
		}
		g.doubt = nil
		return r.now, nil
	}
	if g.doubt == nil || g.doubt.behind != (off < 0) {
		g.doubt = &doubt{last: r, behind: off < 0}
	}
	g.doubt.saw(r)
	left := steadyFor - g.doubt.ran
	if left <= 0 {
		g.believe(r)
		return r.now, nil
	}
	if off < 0 {
		return r.now, nil
	}
	return r.now, fmt.Errorf("the clock says %s, %s ahead of the newest time seen before: it must be confirmed, or run on for another %s, before data expires",
		r.now.Format(time.RFC3339), off.Round(time.Minute), left.Round(time.Minute))
}

// saw adds the time since the last reading, or starts the count again if the clock was set
// meanwhile.
func (d *doubt) saw(r Reading) {
	if step := d.last.Step(r); step < -MostStep || step > mostOff {
		d.ran = 0
	} else {
		d.ran += r.at - d.last.at
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
