package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// allocator hands out ranges of consecutive ids from the process's leases.
//
// A range is never split: each report of a source is written to all blocks of the source. take
// looks for a range in this order:
//
//  1. Where it continues the source's last range.
//  2. In the smallest hole that fits. So the rest of a large hole serves small ranges, and blocks
//     fill up.
//  3. In a new lease.
type allocator struct {
	store     storage.Registry
	leaseSize int

	// leasing is held while a lease is taken, so that goroutines that find no ids left do not each
	// take a lease.
	leasing chan struct{}
	mu      sync.Mutex
	// free are the leased ids that are not handed out: sorted, disjoint, not adjacent.
	free []blocks.Range

	// Leases are used up to an age. When the oldest lease, taken at since, is as old as age, the
	// rest of all leases is given up: ids below from are not used any more. next is the end of the
	// last lease. Leases ascend.
	age        time.Duration
	clk        clock.Clock
	since      clock.Reading
	from, next metric.ScheduleID
}

func newAllocator(store storage.Registry, opts Options) allocator {
	return allocator{
		store: store, leaseSize: opts.LeaseSize, leasing: make(chan struct{}, 1), age: opts.LeaseAge, clk: opts.Clock,
	}
}

// giveUpOld gives up all leased ids once the oldest lease is too old.
func (a *allocator) giveUpOld() {
	if a.age > 0 && a.from < a.next && a.since.Since(a.clk) >= a.age {
		a.free, a.from = nil, a.next
	}
}

// usable says whether an id that was handed out may still be claimed.
func (a *allocator) usable(id metric.ScheduleID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.giveUpOld()
	return id >= a.from
}

// leased adds a lease that was requested at the given reading.
func (a *allocator) leased(r blocks.Range, at clock.Reading) {
	a.mu.Lock()
	if a.from == a.next { // all earlier leases are given up, or there are none
		a.since = at
	}
	a.next = max(a.next, r.End)
	a.mu.Unlock()
	a.giveBack(r)
}

// now reads the clock. The reading is zero if leases have no maximum age.
func (a *allocator) now() clock.Reading {
	if a.age == 0 {
		return clock.Reading{}
	}
	return clock.Read(a.clk)
}

// fewIDs is how many ids are leased when a full lease fails. The store checks that the ids are
// unused, which takes as many of its partitions as they lie in. Some of these may be out of reach.
const fewIDs = 128

// take hands out n consecutive ids, starting at next if those are free.
func (a *allocator) take(ctx context.Context, n int, next metric.ScheduleID) (blocks.Range, error) {
	if r, ok := a.takeFree(n, next); ok {
		return r, nil
	}
	select {
	case a.leasing <- struct{}{}:
		defer func() { <-a.leasing }()
	case <-ctx.Done():
		return blocks.Range{}, context.Cause(ctx)
	}
	for {
		// Another goroutine may have leased, or used up, ids meanwhile.
		if r, ok := a.takeFree(n, next); ok {
			return r, nil
		}
		at := a.now()
		lease, err := a.store.LeaseIDs(ctx, max(n, a.leaseSize))
		if storage.IsAway(err) && ctx.Err() == nil && n < a.leaseSize {
			lease, err = a.store.LeaseIDs(ctx, max(n, fewIDs))
		}
		if err != nil {
			return blocks.Range{}, fmt.Errorf("lease schedule ids: %w", err)
		}
		if lease.Len() < n {
			return blocks.Range{}, fmt.Errorf("lease schedule ids: asked for %d, got %d", max(n, a.leaseSize), lease.Len())
		}
		a.leased(lease, at)
	}
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

// giveBack frees ids of one lease. Nobody may use these ids, and no claim under way may bring them
// into use.
func (a *allocator) giveBack(r blocks.Range) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Start < a.from {
		return
	}
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
