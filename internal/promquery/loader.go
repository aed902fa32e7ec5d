package promquery

import (
	"context"
	"sync"
	"sync/atomic"

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
type loader struct {
	*account
	ctx    context.Context //nolint:containedctx // that of Select: an iterator is given none
	reads  *sync.WaitGroup
	groups []query.Group
	read   reader
	keep   bool
	// recycles says that what groups had that are dropped is used again. Nobody may then hold any of it when series of
	// another group are asked for.
	recycles bool
	windowed *windowed // nil, except for windows: their points are marks
	exact    *exact    // reads in place of read, if rows may prove windows
	marks    int       // that are held

	mu    sync.Mutex
	first int // groups before this index have been dropped
	loads []*load
}

// reader reads a group: for each series its points. It calls hold for what it holds more, also on the way, or less; several
// goroutines may.
type reader func(ctx context.Context, g query.Group, hold func(n int) error) ([]points, error)

// load is a group that is being read, or has been when done is closed.
type load struct {
	done   chan struct{}
	points []points
	marks  []points     // of windows, if they are known
	n      atomic.Int64 // samples held
	err    error
}

func newLoader(ctx context.Context, reads *sync.WaitGroup, groups []query.Group, in *account, keep bool) *loader {
	return &loader{account: in, ctx: ctx, reads: reads, groups: groups, keep: keep, loads: make([]*load, len(groups))}
}

// points returns the points of a series, which are valid until those of the next one are asked for.
func (l *loader) points(at place) (points, error) {
	l.begin(l)
	if l.windowed != nil {
		l.windowed.points = nil
	}
	group, err := l.get(at.group)
	switch {
	case err != nil:
		return nil, err
	case l.windowed == nil:
		return group.points[at.i], nil
	}
	var known points
	if group.marks != nil {
		known = group.marks[at.i]
	}
	marks, err := l.windowed.begin(l.ctx, group.points[at.i], known)
	if err != nil {
		return nil, err
	}
	more := len(marks) - l.marks
	l.marks += more
	return marks, l.hold(more)
}

// get returns a group that is loaded. It reads that group itself, unless another call does, and those ahead in goroutines of
// their own.
func (l *loader) get(group int) (*load, error) {
	l.mu.Lock()
	if !l.keep {
		l.drop(group)
	}
	l.first = min(l.first, group)
	mine := l.loads[group]
	fresh := mine == nil
	if fresh {
		mine = &load{done: make(chan struct{})}
		l.loads[group] = mine
		l.reads.Add(1)
	}
	for i := group + 1; i < min(group+readAhead, len(l.groups)); i++ {
		if l.loads[i] == nil {
			ahead := &load{done: make(chan struct{})}
			l.loads[i] = ahead
			l.reads.Go(func() { l.load(ahead, i) })
		}
	}
	l.mu.Unlock()
	if fresh {
		defer l.reads.Done()
		l.load(mine, group)
	} else {
		<-mine.done
	}
	return mine, mine.err
}

// drop lets go of the groups before the given one, whose reads it waits for. The caller holds mu.
func (l *loader) drop(group int) {
	for ; l.first < group; l.first++ {
		if gone := l.loads[l.first]; gone != nil {
			<-gone.done // it was requested, or read ahead, so this ends
			l.n.Add(-gone.n.Load())
			l.loads[l.first] = nil
			if l.recycles {
				recycle(gone.points)
			}
		}
	}
}

// release lets go of all that has been read. A group that is requested again is read again.
func (l *loader) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(len(l.loads))
	if l.windowed != nil {
		l.windowed.points, l.windowed.marks = nil, nil
	}
	l.n.Add(-int64(l.marks))
	l.marks = 0
}

// load reads a group.
func (l *loader) load(into *load, group int) {
	defer close(into.done)
	hold := func(n int) error {
		into.n.Add(int64(n))
		return l.hold(n)
	}
	if l.exact != nil {
		into.points, into.marks, into.err = l.exact.read(l.ctx, l.groups[group], hold)
		return
	}
	into.points, into.err = l.read(l.ctx, l.groups[group], hold)
}
