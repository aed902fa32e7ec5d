// Package explore runs a small system of actors in every order that their steps can be taken in, up to a number of
// preemptions, and says in which one something goes wrong. It is a stateless model checker: each execution starts anew
// and is led down another branch; a state that was reached before on another way is not gone on with.
//
// Most mistakes of concurrency need few preemptions (Musuvathi and Qadeer, 2007), so these are bounded, and tried in
// the order of their number: the first schedule that fails has the fewest.
//
// Its tests explore workers and ingest on a store, at the level of the store's operations.
package explore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// System is one execution. Everything about it is decided by the order of its steps.
type System interface {
	// Enabled are the actors that can take a step now, ascending; none when all is over.
	Enabled() []int
	// Event says that an actor only stands for something that happens: whoever was running runs on after it.
	Event(actor int) bool
	// Step has an actor take its step, and returns when it stands before the next one or has ended.
	Step(actor int)
	// State is the same for states with the same future. With ok false there is no such number.
	State() (key uint64, ok bool)
	// Name is what schedules and traces call an actor; it has no digits.
	Name(actor int) string
	// Finish ends an execution in which nobody is enabled, and says what is wrong.
	Finish() error
	// Abandon ends an execution wherever it stands.
	Abandon()
	// Trace is what has happened, a line for each step.
	Trace() []string
}

// Explorer explores the executions of a system.
type Explorer struct {
	Start func() System
	// Preemptions is how often an actor that could go on may be kept waiting for another, or an event come
	// in between; below 0 there is no bound.
	Preemptions int
}

// Result is what was done.
type Result struct {
	// Executions were begun, and Complete of them brought to an end; the others led to a state that was known.
	Executions, Complete int
	Steps, States        int
}

// Failure is an execution in which something is wrong.
type Failure struct {
	Err      error
	Schedule string
	Trace    []string
}

// Error is what is wrong, and how it came to that.
func (f *Failure) Error() string {
	return fmt.Sprintf("%v\nschedule: %s\n%s", f.Err, f.Schedule, strings.Join(f.Trace, "\n"))
}

// choice is a point at which several actors could have taken the step.
type choice struct {
	actors []int // those that may, in the order in which they are tried
	costs  []int // whether that is a preemption
	next   int
}

// Run explores until something is wrong. With a bound of n it does so for the bounds 0 to n, one after the other.
func (e *Explorer) Run() (Result, *Failure) {
	var r Result
	if e.Preemptions < 0 {
		f := e.run(-1, &r)
		return r, f
	}
	for bound := range e.Preemptions + 1 {
		if f := e.run(bound, &r); f != nil {
			return r, f
		}
	}
	return r, nil
}

const unbounded = 1 << 30

func (e *Explorer) run(bound int, r *Result) *Failure {
	if bound < 0 {
		bound = unbounded
	}
	seen := map[uint64]int{} // the most preemptions that were left in a state
	var path []*choice
	for {
		if f := e.execute(&path, seen, bound, r); f != nil {
			return f
		}
		for len(path) > 0 {
			last := path[len(path)-1]
			if last.next++; last.next < len(last.actors) {
				break
			}
			path = path[:len(path)-1]
		}
		if len(path) == 0 {
			r.States += len(seen)
			return nil
		}
	}
}

// execute follows path, and goes on from its end with the first of what can be tried there.
func (e *Explorer) execute(path *[]*choice, seen map[uint64]int, bound int, r *Result) *Failure {
	sys := e.Start()
	r.Executions++
	var done []int
	current, left := -1, bound
	for depth := 0; ; {
		enabled := sys.Enabled()
		if len(enabled) == 0 {
			break
		}
		actors, costs := options(sys, enabled, current, left)
		chosen, cost := actors[0], costs[0]
		if len(actors) > 1 {
			if depth == len(*path) {
				if key, ok := sys.State(); ok {
					key += uint64(current+1) * 0x9e3779b97f4a7c15
					if most, known := seen[key]; known && most >= left {
						sys.Abandon()
						return nil
					}
					seen[key] = left
				}
				*path = append(*path, &choice{actors: actors, costs: costs})
			}
			c := (*path)[depth]
			chosen, cost = c.actors[c.next], c.costs[c.next]
			depth++
		}
		sys.Step(chosen)
		done = append(done, chosen)
		r.Steps++
		left -= cost
		if !sys.Event(chosen) {
			current = chosen
		}
	}
	r.Complete++
	if err := sys.Finish(); err != nil {
		return &Failure{Err: err, Schedule: schedule(sys, done), Trace: sys.Trace()}
	}
	return nil
}

// options are the actors that may take the next step. Whoever took the last one goes first.
func options(sys System, enabled []int, current, left int) (actors, costs []int) {
	running := slices.Contains(enabled, current)
	if running {
		actors, costs = append(actors, current), append(costs, 0)
	}
	for _, a := range enabled {
		cost := 0
		if running || sys.Event(a) && slices.ContainsFunc(enabled, func(b int) bool { return !sys.Event(b) }) {
			cost = 1
		}
		if a != current && cost <= left {
			actors, costs = append(actors, a), append(costs, cost)
		}
	}
	return actors, costs
}

// schedule writes down who took the steps: A3 B1 are three of A and one of B.
func schedule(sys System, done []int) string {
	var out []string
	for i := 0; i < len(done); {
		n := i
		for n < len(done) && done[n] == done[i] {
			n++
		}
		out = append(out, sys.Name(done[i])+strconv.Itoa(n-i))
		i = n
	}
	return strings.Join(out, " ")
}

// Replay runs one execution by a schedule that a Failure has named. Where it ends, or does not fit, whoever
// is enabled first goes on. It fails as that did, or not at all.
func (e *Explorer) Replay(schedule string) *Failure {
	sys := e.Start()
	for _, part := range strings.Fields(schedule) {
		name := strings.TrimRight(part, "0123456789")
		n, err := strconv.Atoi(part[len(name):])
		if err != nil {
			sys.Abandon()
			return &Failure{Err: fmt.Errorf("schedule: %q: %w", part, err), Schedule: schedule}
		}
		for range n {
			i := slices.IndexFunc(sys.Enabled(), func(a int) bool { return sys.Name(a) == name })
			if i < 0 {
				break
			}
			sys.Step(sys.Enabled()[i])
		}
	}
	for enabled := sys.Enabled(); len(enabled) > 0; enabled = sys.Enabled() {
		sys.Step(enabled[0])
	}
	err := sys.Finish()
	return &Failure{Err: err, Schedule: schedule, Trace: sys.Trace()}
}
