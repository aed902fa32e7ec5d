package promquery

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/promql"

	"github.com/quern/quern/internal/query"
)

// readAhead is the number of groups of a selector that are read concurrently.
const readAhead = 4

// loader reads the groups of a selector on demand, and a few ahead.
//
//  1. The engine asks for one series after the other, in the order of their groups. The loader
//     drops the groups before the requested group. So its memory does not grow with the number of
//     groups; the sample limit bounds it as well.
//  2. If series are needed in another order, or all together, the loader keeps their groups until
//     another selector has its turn; see account.
type loader[T any] struct {
	*held
	mu    sync.Mutex
	first int // groups before this index have been dropped
	loads []*load[T]
	// recycle takes what groups that are dropped had, if it is set. Nobody may then hold any of it when series of another group
	// are asked for.
	recycle func([]T)
}

// held is the state that loaders of all types have in common.
type held struct {
	*account
	ctx    context.Context //nolint:containedctx // that of Select: an iterator is given none
	reads  *sync.WaitGroup
	groups []query.Group
	keep   bool
}

// account counts the samples that all selectors of a query hold against the query's limit. A storage without a
// preparation has one account per querier.
//
//  1. An Engine evaluates a query in one goroutine. It reads one selector to its end, copies what it
//     needs, and then reads the next one. So when it begins a selector, the one before gives back
//     all that it holds. The expression refers to all selectors until the query ends: without this,
//     each of them would keep the groups that it read last.
//  2. Other users may read several selectors at once. Selectors then keep their last groups, and
//     these count until the querier's end.
type account struct {
	most int64
	n    atomic.Int64 // samples held

	inTurn bool   // see 1; the fields below are for this case
	now    source // the selector that is read
	turn   int    // the number of selectors before it
}

// begin says that an iterator of s is about to read, and returns what the iterator owns.
func (a *account) begin(s source) own {
	if a.inTurn && a.now != s {
		if a.now != nil {
			a.now.release()
		}
		// What is left are the points of the iterators of the selector before.
		a.n.Store(0)
		a.now = s
		a.turn++
	}
	return own{in: a, turn: a.turn}
}

// hold counts samples that are held.
func (a *account) hold(n int) error {
	if a.n.Add(int64(n)) > a.most {
		return promql.ErrTooManySamples("query execution")
	}
	return nil
}

// load is a group that is being read, or has been when done is closed.
type load[T any] struct {
	done   chan struct{}
	places []T
	n      atomic.Int64 // samples held
	err    error
}

func newHeld(ctx context.Context, reads *sync.WaitGroup, groups []query.Group, in *account, keep bool) *held {
	return &held{account: in, ctx: ctx, reads: reads, groups: groups, keep: keep}
}

func newLoader[T any](h *held) *loader[T] {
	return &loader[T]{held: h, loads: make([]*load[T], len(h.groups))}
}

// reader reads a group, by its place: for each series what it has. It calls hold for what it holds
// more, also on the way, or less; several goroutines may.
type reader[T any] func(ctx context.Context, group int, hold func(n int) error) ([]T, error)

// get returns the data of a group. It reads that group itself, unless another call does, and those ahead in goroutines of their own.
func (l *loader[T]) get(group int, read reader[T]) ([]T, error) {
	l.mu.Lock()
	if !l.keep {
		l.drop(group)
	}
	l.first = min(l.first, group)
	mine := l.loads[group]
	fresh := mine == nil
	if fresh {
		mine = &load[T]{done: make(chan struct{})}
		l.loads[group] = mine
		l.reads.Add(1)
	}
	for i := group + 1; i < min(group+readAhead, len(l.groups)); i++ {
		if l.loads[i] == nil {
			ahead := &load[T]{done: make(chan struct{})}
			l.loads[i] = ahead
			l.reads.Go(func() { l.load(ahead, i, read) })
		}
	}
	l.mu.Unlock()
	if fresh {
		defer l.reads.Done()
		l.load(mine, group, read)
	} else {
		<-mine.done
	}
	return mine.places, mine.err
}

// drop lets go of the groups before the given one, whose reads it waits for. The caller holds mu.
func (l *loader[T]) drop(group int) {
	for ; l.first < group; l.first++ {
		if gone := l.loads[l.first]; gone != nil {
			<-gone.done // it was requested, or read ahead, so this ends
			l.n.Add(-gone.n.Load())
			l.loads[l.first] = nil
			if l.recycle != nil {
				l.recycle(gone.places)
			}
		}
	}
}

// release lets go of all groups. A group that is requested again is read again.
func (l *loader[T]) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(len(l.loads))
}

// load reads a group.
func (l *loader[T]) load(into *load[T], group int, read reader[T]) {
	defer close(into.done)
	into.places, into.err = read(l.ctx, group, func(n int) error {
		into.n.Add(int64(n))
		return l.hold(n)
	})
}
