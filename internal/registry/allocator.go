package registry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// allocator hands out runs of ids from the process's leases.
//
// A run is never split: the blocks of a source are what its every report is written
// into. A run goes where it continues the source's last one, else into the smallest
// hole that takes it, so that what a large run leaves over serves small ones and
// blocks fill up; else a new lease is taken.
type allocator struct {
	store     storage.Registry
	leaseSize int

	// leasing is held while a lease is taken, so that many who find none left do not
	// each take one.
	leasing chan struct{}
	mu      sync.Mutex
	// free are the ids leased and not handed out: sorted, disjoint, not adjacent.
	free []blocks.Range
	// leases are all that this process has leased and others have not got since; kept is Doubts of the store by when
	// that was so.
	leases []blocks.Range
	kept   int64

	// What is left of leases is given up when the oldest, which was taken at since, is as old as age: ids below from are not used
	// any more, next is behind the last lease. Leases ascend.
	age        time.Duration
	clk        clock.Clock
	since      time.Time
	from, next metric.ScheduleID
}

func newAllocator(store storage.Registry, opts Options) allocator {
	return allocator{
		store: store, leaseSize: opts.LeaseSize, leasing: make(chan struct{}, 1), age: opts.LeaseAge, clk: opts.Clock,
		kept: store.Doubts(),
	}
}

// giveUpOld gives up what has become too old.
func (a *allocator) giveUpOld() {
	if a.age > 0 && a.from < a.next && a.clk.Now().Sub(a.since) >= a.age {
		a.free, a.from = nil, a.next
	}
}

// usable says whether an id that was handed out may be claimed yet.
func (a *allocator) usable(id metric.ScheduleID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveUpOld()
	return id >= a.from
}

// leased takes in a lease that was asked for at a time.
func (a *allocator) leased(r blocks.Range, at time.Time) {
	a.mu.Lock()
	if a.from == a.next { // all before are given up, or there are none
		a.since = at
	}
	a.next = max(a.next, r.End)
	a.mu.Unlock()
	a.giveBack(r)
}

// now is the time, where it counts.
func (a *allocator) now() time.Time {
	if a.age == 0 {
		return time.Time{}
	}
	return a.clk.Now()
}

// take hands out n consecutive ids, from next on if those are free.
func (a *allocator) take(ctx context.Context, n int, next metric.ScheduleID) (blocks.Range, error) {
	if a.trusted() {
		if r, ok := a.takeFree(n, next); ok {
			return r, nil
		}
	}
	select {
	case a.leasing <- struct{}{}:
		defer func() { <-a.leasing }()
	case <-ctx.Done():
		return blocks.Range{}, context.Cause(ctx)
	}
	if err := a.keep(ctx); err != nil {
		return blocks.Range{}, err
	}
	for {
		// Somebody else may have leased, or used up, ids in the meantime.
		if r, ok := a.takeFree(n, next); ok {
			return r, nil
		}
		at := a.now()
		lease, err := a.store.LeaseIDs(ctx, max(n, a.leaseSize))
		if err != nil {
			return blocks.Range{}, fmt.Errorf("lease schedule ids: %w", err)
		}
		if lease.Len() < n {
			return blocks.Range{}, fmt.Errorf("lease schedule ids: asked for %d, got %d", max(n, a.leaseSize), lease.Len())
		}
		a.mu.Lock()
		a.leases = append(a.leases, lease)
		a.mu.Unlock()
		a.leased(lease, at)
	}
}

// confirm has the store know the leases again, if it may have forgotten them. Those that others have got since are given up.
func (a *allocator) confirm(ctx context.Context) error {
	select {
	case a.leasing <- struct{}{}:
		defer func() { <-a.leasing }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return a.keep(ctx)
}

// keep is confirm for the holder of leasing.
func (a *allocator) keep(ctx context.Context) error {
	doubts := a.store.Doubts()
	a.mu.Lock()
	leases, done := slices.Clone(a.leases), a.kept == doubts
	a.mu.Unlock()
	if done {
		return nil
	}
	var kept []blocks.Range
	for _, l := range leases {
		switch err := a.store.KeepIDs(ctx, l); {
		case err == nil:
			kept = append(kept, l)
		case !errors.Is(err, storage.ErrConflict):
			return fmt.Errorf("keep the lease of schedule ids: %w", err)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.leases, a.kept = kept, doubts
	free := a.free
	a.free = nil
	for _, f := range free { // one may span leases
		for _, l := range kept {
			if both := (blocks.Range{Start: max(f.Start, l.Start), End: min(f.End, l.End)}); both.Start < both.End {
				a.insert(both)
			}
		}
	}
	return nil
}

// owns says whether an id is of a lease of this process. a.mu is held.
func (a *allocator) owns(id metric.ScheduleID) bool {
	return slices.ContainsFunc(a.leases, func(l blocks.Range) bool { return l.Contains(id) })
}

// mine says whether an id is of a lease of this process.
func (a *allocator) mine(id metric.ScheduleID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.owns(id)
}

// trusted says whether what was leased is this process's still.
func (a *allocator) trusted() bool {
	doubts := a.store.Doubts()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept == doubts
}

func (a *allocator) takeFree(n int, next metric.ScheduleID) (blocks.Range, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveUpOld()
	best := -1
	for i, f := range a.free {
		if f.Len() < n {
			continue
		}
		if f.Start == next {
			best = i
			break
		}
		if best < 0 || f.Len() < a.free[best].Len() {
			best = i
		}
	}
	if best < 0 {
		return blocks.Range{}, false
	}
	f := &a.free[best]
	r := blocks.Range{Start: f.Start, End: f.Start + metric.ScheduleID(n)}
	f.Start = r.End
	if f.Len() == 0 {
		a.free = slices.Delete(a.free, best, best+1)
	}
	return r, true
}

// giveBack makes ids of one lease available that nobody uses and that no claim still under way
// can bring into use.
func (a *allocator) giveBack(r blocks.Range) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Start < a.from || !a.owns(r.Start) {
		return
	}
	a.insert(r)
}

// insert adds a range to those that are free. a.mu is held.
func (a *allocator) insert(r blocks.Range) {
	i, _ := slices.BinarySearchFunc(a.free, r.Start, func(f blocks.Range, start metric.ScheduleID) int {
		return cmp.Compare(f.Start, start)
	})
	a.free = slices.Insert(a.free, i, r)
	if i+1 < len(a.free) && a.free[i].End == a.free[i+1].Start {
		a.free[i].End = a.free[i+1].End
		a.free = slices.Delete(a.free, i+1, i+2)
	}
	if i > 0 && a.free[i-1].End == a.free[i].Start {
		a.free[i-1].End = a.free[i].End
		a.free = slices.Delete(a.free, i, i+1)
	}
}
