package cassandra

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

const cqlNow = `SELECT toUnixTimestamp(now()) FROM system.local`

// mostClocks is how many nodes one check asks for their time.
const mostClocks = 5

// CheckFit implements storage.Store. It compares the clocks because TTLs run by the servers'
// clocks.
func (s *Store) CheckFit(ctx context.Context) error {
	if err := s.checkClock(ctx); err != nil {
		return named("check the clock", err)
	}
	return named("check the settings", s.checkPolicy(ctx))
}

// checkClock compares this process's clock with those of several nodes: at start, at each heartbeat, before a run begins,
// drops work and completes its slice, and before a write if the clock was set since the last check.
func (s *Store) checkClock(ctx context.Context) error {
	most := s.policy().MaxClockSkew()
	if most == 0 {
		return ctx.Err()
	}
	now := clock.Read(s.clk) // first: if the clock is set during the check, timestamps are not taken by it
	found, err := s.session.clocks(ctx)
	if err != nil {
		return err
	}
	if err := s.clocks.check(found, most); err != nil {
		return err
	}
	s.stamps.confirm(now)
	return nil
}

// reading is what one node's clock said. The node read its clock at some moment between the
// request and the answer, so it is ahead of this machine's clock by an unknown time in [least,
// most]. Both are negative for a node that is behind.
type reading struct {
	node        string // its address
	least, most time.Duration
}

// readingOf returns the reading of a node that answered with serverMs, which is cut to the
// millisecond.
func readingOf(node string, serverMs int64, asked, answered time.Time) reading {
	server := time.UnixMilli(serverMs)
	return reading{node, server.Sub(answered), server.Add(time.Millisecond).Sub(asked)}
}

// ahead returns the middle of the possible offsets.
func (r reading) ahead() time.Duration { return r.least + (r.most-r.least)/2 }

// apart returns by how much the clock differs from this machine's at least.
func (r reading) apart() time.Duration { return max(r.least, -r.most, 0) }

// String says how the clock differs from this machine's.
func (r reading) String() string {
	if r.ahead() < 0 {
		return fmt.Sprintf("%s is %s behind", r.node, -r.ahead().Round(time.Second))
	}
	return fmt.Sprintf("%s is %s ahead", r.node, r.ahead().Round(time.Second))
}

// clocks is what is known of the nodes' clocks. The zero value knows nothing.
type clocks struct {
	mu sync.Mutex
	// last is the last reading of each node, by address.
	last map[string]reading
	// refused is the outcome of the last check that nodes answered.
	refused error
}

// check refuses this machine's clock if it differs from that of any node by more than most. Nobody can tell which of the
// two is wrong, and rows live and expire by both.
func (c *clocks) check(found []reading, most time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = make(map[string]reading)
	}
	var far []reading
	for _, r := range found {
		c.last[r.node] = r
		if r.apart() > most {
			far = append(far, r)
		}
	}
	c.refused = nil
	if len(far) > 0 {
		c.refused = refuse("the clocks of Cassandra nodes differ from this machine's by more than the limit of %s (%s): nothing is written, ground or dropped; "+
			"set the clocks (NTP), or raise the limit by changing --late-grace and --aggregation-delay with `quern settings set`", most, list(far))
	}
	return c.refused
}

// ClockRefused returns why nothing is done by the clock for now, going by the last check; nil when it is right.
func (s *Store) ClockRefused() error {
	s.clocks.mu.Lock()
	defer s.clocks.mu.Unlock()
	return s.clocks.refused
}

// offsets returns by how much each node's clock was ahead of this machine's when it was last read,
// by address.
func (c *clocks) offsets() map[string]time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]time.Duration, len(c.last))
	for node, r := range c.last {
		out[node] = r.ahead()
	}
	return out
}

func list(found []reading) string {
	var out []string
	for _, r := range found {
		out = append(out, r.String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// clocks implements session. It asks several nodes at once, each for its own clock, and goes on without those that take
// longer than speculateAfter if another one has answered.
func (d *driver) clocks(ctx context.Context) ([]reading, error) {
	in, cancel := context.WithCancelCause(ctx)
	defer cancel(errBeaten)
	answers, asked, err := askEach[int64](in, d, mostClocks, cqlNow)
	if err != nil {
		return nil, err
	}
	var found []reading
	var errs []error
	waited, late := false, d.nodes.clk.After(speculateAfter)
	for len(found)+len(errs) < asked && !(waited && len(found) > 0) {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
				continue
			}
			found = append(found, readingOf(a.node, a.value, a.asked, a.answered))
		case <-late:
			waited, late = true, nil
		case <-ctx.Done():
			return nil, convert(ctx, ctx.Err())
		}
	}
	if len(found) == 0 {
		return nil, convert(ctx, telling(errs))
	}
	return found, nil
}
