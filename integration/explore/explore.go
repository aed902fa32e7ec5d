// Package explore runs a small system of actors in every order of their steps, up to a number of
// preemptions, and reports an order in which something goes wrong. It is a stateless model checker:
// each execution starts anew and follows another branch. It does not continue from a state that it
// has already reached another way.
//
// Most concurrency bugs need few preemptions (Musuvathi and Qadeer, 2007). So preemptions are
// bounded, and bounds are tried in ascending order: the first failing schedule has the fewest.
//
// Its tests explore workers and ingest on a store, at the level of the store's operations.
package explore

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// System is one execution. The order of its steps decides everything about it.
type System interface {
	// Enabled returns the actors that can take a step now, ascending; none when the execution is
	// over.
	Enabled() []int
	// Event reports whether an actor only stands for an event: the actor that was running continues
	// after it.
	Event(actor int) bool
	// Step makes an actor take its step, and returns when the actor stands before the next step or
	// has ended.
	Step(actor int)
	// State returns a key that is equal for states with the same future. ok is false if there is no
	// such key.
	State() (key uint64, ok bool)
	// Name returns the name of an actor in schedules and traces; it has no digits.
	Name(actor int) string
	// Finish ends an execution without enabled actors, and returns what is wrong.
	Finish() error
	// Abandon ends an execution at any point.
	Abandon()
	// Trace returns what has happened, a line per step.
	Trace() []string
}

// Explorer explores the executions of a system.
type Explorer struct {
	Start func() System
	// Preemptions is the maximum number of times that an actor which could continue has to wait for
	// another, or that an event comes in between.
	Preemptions int
}

// Result counts what was done.
type Result struct {
	// Executions is the number of executions begun. Complete is the number brought to an end; the
	// others reached a known state.
	Executions, Complete int
	Steps, States        int
}

// Failure is an execution in which something is wrong.
type Failure struct {
	Err      error
	Schedule string
	Trace    []string
}

// Error returns what is wrong, and the steps that led to it.
func (f *Failure) Error() string {
	return fmt.Sprintf("%v\nschedule: %s\n%s", f.Err, f.Schedule, strings.Join(f.Trace, "\n"))
}

// choice is a point at which several actors could take the step.
type choice struct {
	actors []int // the enabled actors, in the order in which they are tried
	costs  []int // 1 if the choice is a preemption
	next   int
}

// Run explores until something is wrong. With a bound of n it tries the bounds 0 to n in order.
func (e *Explorer) Run() (Result, *Failure) {
	var r Result
	for bound := range e.Preemptions + 1 {
		if f := e.run(bound, &r); f != nil {
			return r, f
		}
	}
	return r, nil
}

func (e *Explorer) run(bound int, r *Result) *Failure {
	seen := map[uint64]int{} // by state, the most preemptions that were left in it
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

// execute follows path, and continues from its end with the first options.
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

// options returns the actors that may take the next step. The actor that took the last step comes
// first.
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

// schedule formats the order of steps: A3 B1 is three steps of A and one of B.
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

// Replay runs one execution by the schedule of a Failure. Where the schedule ends, or does not fit,
// the first enabled actor continues. It fails as before, or not at all.
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
