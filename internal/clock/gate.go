package clock

import (
	"fmt"
	"sync"
	"time"
)

const (
	// MostStep is how far a clock may be behind the newest time that a store has seen, at most. Time services correct a running
	// clock by less. See Gate.Tolerate.
	MostStep = time.Minute
	// mostAhead is how far a clock may be ahead of the newest time that a store has seen, beyond the time that has elapsed
	// since. A machine may be off for a night and start by itself. Retentions are days, so a clock that is wrong by less
	// removes little early.
	mostAhead = 24 * time.Hour
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

// Gate decides whether a process may act by its clock on a store that has only this clock. It compares each
// reading with the newest time that the store has seen, which outlives the process:
//
//  1. A reading more than a step (Tolerate) behind the newest time is refused: it may lie in a slice that is ground, and ids
//     and deadlines would go back.
//  2. A reading more than mostAhead beyond the newest time, and beyond what has elapsed since by the monotonic clock, is
//     refused: what it would expire does not come back. A new store has seen no time, and takes any clock.
//  3. Every other reading passes, and is the newest time if it is later.
//
// A refused reading changes nothing, so the gate opens by itself when the clock is right again. The gate cannot tell a clock
// that is wrong from a machine that was off for long. An operator can, and says so with Accept.
//
// Who asks: what draws ids for writes of users (storage.Store.Confirms), what begins a run, goes on with it or drops work
// (storage.Store.CheckFit), and what expires rows. Reads do not ask.
type Gate struct {
	clk Clock

	mu   sync.Mutex
	step time.Duration
	// newest is the newest time seen, zero for none. seen is the clock's Elapsed at that time.
	newest time.Time
	seen   time.Duration
}

// NewGate returns a gate for a store whose earlier processes have seen the time newest, zero for none.
func NewGate(clk Clock, newest time.Time) *Gate {
	return &Gate{clk: clk, step: MostStep, newest: newest, seen: clk.Elapsed()}
}

// Tolerate sets how far a clock may be behind the newest time, MostStep unless it is set. It must not be more than the time
// between the closing of a slice and its run: then no slice whose run has begun takes samples on time again.
func (g *Gate) Tolerate(step time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.step = step
}

// Check returns nil while the clock may be acted on. Otherwise the error says what is wrong, and what to do.
func (g *Gate) Check() error {
	_, err := g.Now()
	return err
}

// Now returns the clock's time, and what Check says of exactly that time.
func (g *Gate) Now() (time.Time, error) {
	r := Read(g.clk)
	return r.now, g.Confirms(r)
}

// Confirms is Check for a reading of the clock.
func (g *Gate) Confirms(r Reading) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.newest.IsZero() {
		if behind := g.newest.Sub(r.now); behind > g.step {
			return g.refuse(r, behind, "behind")
		}
		if ahead := r.now.Sub(g.newest.Add(r.at - g.seen)); ahead > mostAhead {
			return g.refuse(r, ahead, "ahead of")
		}
	}
	if r.now.After(g.newest) {
		g.newest, g.seen = r.now, r.at
	}
	return nil
}

func (g *Gate) refuse(r Reading, by time.Duration, direction string) error {
	return fmt.Errorf("the clock says %s, %s %s the newest time that the store has seen, %s: nothing is written, ground or expired; "+
		"set the clock or, if it is right, start once with --accept-clock",
		r.now.Format(time.RFC3339), by.Round(time.Second), direction, g.newest.Format(time.RFC3339))
}

// Newest returns the newest time seen, zero for none.
func (g *Gate) Newest() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.newest
}

// Accept takes the clock's time for the newest time seen, whatever was seen before.
func (g *Gate) Accept() {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := Read(g.clk)
	g.newest, g.seen = r.now, r.at
}
