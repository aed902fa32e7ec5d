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
//  2. If series are needed in another order, or all together, the loader keeps their groups.
type loader[T any] struct {
	*held
	mu    sync.Mutex
	first int // groups before this index have been dropped
	loads []*load[T]
}

// held is the state that loaders of all types have in common.
type held struct {
	ctx    context.Context //nolint:containedctx // that of Select: an iterator is given none
	reads  *sync.WaitGroup
	groups []query.Group
	keep   bool
	n      atomic.Int64 // samples held
	most   int64
}

// hold counts samples that are held.
func (h *held) hold(n int) error {
	if h.n.Add(int64(n)) > h.most {
		return promql.ErrTooManySamples("query execution")
	}
	return nil
}

// load is a group that is being read, or has been when done is closed.
type load[T any] struct {
	done   chan struct{}
	places []T
	n      int64 // samples held
	err    error
}

func newHeld(ctx context.Context, reads *sync.WaitGroup, groups []query.Group, most int64, keep bool) *held {
	return &held{ctx: ctx, reads: reads, groups: groups, most: most, keep: keep}
}

func newLoader[T any](h *held) *loader[T] {
	return &loader[T]{held: h, loads: make([]*load[T], len(h.groups))}
}

// reader reads a group, by its place: for each series what it has. It calls hold for what it holds more, also on the way, or less.
type reader[T any] func(ctx context.Context, group int, hold func(n int) error) ([]T, error)

// get returns the data of a group.
func (l *loader[T]) get(group int, read reader[T]) ([]T, error) {
	l.mu.Lock()
	for ; !l.keep && l.first < group; l.first++ {
		if gone := l.loads[l.first]; gone != nil {
			<-gone.done // it was requested before, so this ends
			l.n.Add(-gone.n)
			l.loads[l.first] = nil
		}
	}
	l.first = min(l.first, group)
	for i := group; i < min(group+readAhead, len(l.groups)); i++ {
		if l.loads[i] == nil {
			l.loads[i] = &load[T]{done: make(chan struct{})}
			l.begin(l.loads[i], i, read)
		}
	}
	mine := l.loads[group]
	l.mu.Unlock()
	<-mine.done
	return mine.places, mine.err
}

func (l *loader[T]) begin(into *load[T], group int, read reader[T]) {
	l.reads.Go(func() {
		defer close(into.done)
		into.places, into.err = read(l.ctx, group, func(n int) error {
			into.n += int64(n)
			return l.hold(n)
		})
	})
}
