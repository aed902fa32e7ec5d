package registry

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/quern/quern/internal/blocks"
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
}

func newAllocator(store storage.Registry, leaseSize int) allocator {
	return allocator{store: store, leaseSize: leaseSize, leasing: make(chan struct{}, 1)}
}

// take hands out n consecutive ids, from next on if those are free.
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
		// Somebody else may have leased, or used up, ids in the meantime.
		if r, ok := a.takeFree(n, next); ok {
			return r, nil
		}
		lease, err := a.store.LeaseIDs(ctx, max(n, a.leaseSize))
		if err != nil {
			return blocks.Range{}, fmt.Errorf("lease schedule ids: %w", err)
		}
		if lease.Len() < n {
			return blocks.Range{}, fmt.Errorf("lease schedule ids: asked for %d, got %d", max(n, a.leaseSize), lease.Len())
		}
		a.giveBack(lease)
	}
}

func (a *allocator) takeFree(n int, next metric.ScheduleID) (blocks.Range, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
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

// giveBack makes ids available that nobody uses and that no claim still under way
// can bring into use.
func (a *allocator) giveBack(r blocks.Range) {
	a.mu.Lock()
	defer a.mu.Unlock()
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
