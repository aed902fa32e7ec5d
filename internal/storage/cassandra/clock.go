package cassandra

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
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

// checkClock compares this process's clock with those of several nodes.
func (s *Store) checkClock(ctx context.Context) error {
	most := s.policy().MaxClockSkew()
	if most == 0 {
		return ctx.Err()
	}
	now := clock.Read(s.clk) // first: if the clock is set during the check, timestamps are not taken by it
	found, err := s.session.clocks(ctx, most)
	if err != nil {
		return err
	}
	err = s.clocks.check(found, most, s.log)
	if s.nodes != nil {
		s.nodes.distrust(s.clocks.contradicted())
	}
	if err != nil {
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

// own is this machine's clock as a reading.
var own = reading{}

// apart returns by how much two clocks differ at least.
func apart(a, b reading) time.Duration { return max(a.least-b.most, b.least-a.most, 0) }

// String says how the clock differs from this machine's.
func (r reading) String() string {
	if r.ahead() < 0 {
		return fmt.Sprintf("%s is %s behind", r.node, -r.ahead().Round(time.Second))
	}
	return fmt.Sprintf("%s is %s ahead", r.node, r.ahead().Round(time.Second))
}

// enough says whether more than half of the nodes that were asked agree with this machine's clock,
// or more than half of them do not.
func enough(found []reading, asked int, most time.Duration) bool {
	agree := 0
	for _, r := range found {
		if apart(r, own) <= most {
			agree++
		}
	}
	return agree > asked/2 || len(found)-agree > asked/2
}

// clocks is what is known of the nodes' clocks. The zero value knows nothing.
type clocks struct {
	mu sync.Mutex
	// last is the last reading of each node, by address.
	last map[string]reading
	// wrong are the nodes whose clock a majority has contradicted when it was last read.
	wrong map[string]bool
}

// check refuses this machine's clock if the majority of the readings differs from it by more than
// most. It logs each node that begins or ceases to contradict the majority.
func (c *clocks) check(found []reading, most time.Duration, log *slog.Logger) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last, c.wrong = make(map[string]reading), make(map[string]bool)
	}
	for _, r := range found {
		c.last[r.node] = r
	}
	wrong, err := judge(found, c.wrong, most)
	if wrong == nil {
		return err
	}
	for _, r := range found {
		switch is := wrong[r.node]; {
		case is == c.wrong[r.node]:
		case is:
			c.wrong[r.node] = true
			log.Warn("the clock of a Cassandra node differs from those of most other nodes: set it (NTP); it is asked last until then",
				"node", r.node, "ahead_of_this_machine", r.ahead().Round(time.Millisecond))
		default:
			delete(c.wrong, r.node)
			log.Info("the clock of a Cassandra node agrees with those of the others again", "node", r.node)
		}
	}
	return err
}

// contradicted returns the addresses of the nodes whose clock a majority has contradicted.
func (c *clocks) contradicted() map[string]bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.wrong)
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

// judge goes by the middle reading, or by the two in the middle of an even number:
//
//  1. If the two in the middle differ by more than most, there is no majority. Then the nodes in
//     known, which an earlier majority has contradicted, have no say: while one of three nodes is
//     restarted, another one with a wrong clock must not stop everything.
//  2. If there is still no majority, the clock is refused. Of two nodes the one that agrees with
//     this machine may run on it.
//  3. Otherwise the clock is refused if one in the middle differs from it by more than most.
//
// wrong are the nodes that differ by more than most from the middle, nil if that is not known. A
// single reading says nothing of its own node.
func judge(found []reading, known map[string]bool, most time.Duration) (wrong map[string]bool, err error) {
	low, high := middle(found)
	if apart(low, high) > most {
		rest := slices.DeleteFunc(slices.Clone(found), func(r reading) bool { return known[r.node] })
		if len(rest) == 0 {
			rest = found
		}
		if low, high = middle(rest); apart(low, high) > most {
			return nil, refuse("the clocks of the Cassandra nodes differ by more than the limit of %s, "+
				"and no majority says whether this machine's clock is right (%s): set the clocks (NTP)", most, list(found))
		}
	}
	var say []reading // which are in the majority
	wrong = make(map[string]bool)
	for _, r := range found {
		if apart(r, low) > most && apart(r, high) > most {
			wrong[r.node] = true
			continue
		}
		say = append(say, r)
	}
	if len(found) == 1 {
		wrong = nil
	}
	far := low
	if apart(high, own) > apart(low, own) {
		far = high
	}
	if apart(far, own) <= most {
		return wrong, nil
	}
	off, direction := -far.most, "ahead of"
	if far.least > 0 {
		off, direction = far.least, "behind"
	}
	return wrong, refuse("this machine's clock is %s %s the servers' (%s), more than the limit of %s: "+
		"set the clocks (NTP), or raise the limit by changing --late-grace and --aggregation-delay with `quern settings set`",
		off.Round(time.Second), direction, addresses(say), most)
}

// middle returns the middle reading twice, or the two readings in the middle.
func middle(found []reading) (low, high reading) {
	sorted := slices.SortedFunc(slices.Values(found), func(a, b reading) int { return cmp.Compare(a.ahead(), b.ahead()) })
	return sorted[(len(sorted)-1)/2], sorted[len(sorted)/2]
}

func addresses(found []reading) string {
	var out []string
	for _, r := range found {
		out = append(out, r.node)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func list(found []reading) string {
	var out []string
	for _, r := range found {
		out = append(out, r.String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// clocks implements session. It asks several nodes at once, each for its own clock.
func (d *driver) clocks(ctx context.Context, most time.Duration) ([]reading, error) {
	in, cancel := context.WithCancelCause(ctx)
	defer cancel(errBeaten)
	answers, asked, err := askEach[int64](in, d, mostClocks, cqlNow)
	if err != nil {
		return nil, err
	}
	var found []reading
	var errs []error
	waited, late := false, d.nodes.clk.After(speculateAfter)
	for len(found)+len(errs) < asked && !(waited && enough(found, asked, most)) {
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
