package query

import (
	"sync/atomic"

	"github.com/quern/quern/internal/metric"
)

// pageSize is how many ids have their labels in a page.
const pageSize = 512

// pages hold the labels of series by id, as numbers of symbols; ids are dense. Reading needs no lock. Changes are guarded
// by Index.mu.
type pages struct {
	all atomic.Pointer[[]atomic.Pointer[page]]
}

// page has the series of pageSize ids.
type page struct {
	// at is where in refs the labels of a series begin, plus one; 0 if there is no series.
	at [pageSize]atomic.Uint32
	// refs are the numbers of labels, those of a series beside each other. It is replaced when it grows. What a reader finds
	// through at never changes.
	refs atomic.Pointer[[]uint32]

	// For changes: n is the number of series, used how many of refs have been used, unused how many of these no series has
	// any more.
	n, used, unused int
}

// lastRef marks the last label of a series.
const lastRef = 1 << 31

func newPage() *page {
	p := new(page)
	p.refs.Store(new([]uint32))
	return p
}

// page returns the page of an id, nil if there is none.
func (p *pages) page(id metric.ScheduleID) *page {
	all := p.all.Load()
	if all == nil || id < 0 || id/pageSize >= metric.ScheduleID(len(*all)) {
		return nil
	}
	return (*all)[id/pageSize].Load()
}

// refs returns the numbers of a series' labels, with lastRef in the last; nil if there is no such series.
func (p *pages) refs(id metric.ScheduleID) []uint32 {
	if page := p.page(id); page != nil {
		return page.refsOf(int(id % pageSize))
	}
	return nil
}

func (p *page) refsOf(i int) []uint32 {
	at := p.at[i].Load()
	if at == 0 {
		return nil
	}
	refs := (*p.refs.Load())[at-1:]
	n := 1
	for refs[n-1]&lastRef == 0 {
		n++
	}
	return refs[:n]
}

// set gives a series labels, by their numbers. It returns whether the id is new, and how many bytes more are held.
func (p *pages) set(id metric.ScheduleID, refs []uint32) (fresh bool, bytes int) {
	i := int(id / pageSize)
	all := p.all.Load()
	if all == nil || i >= len(*all) {
		more := make([]atomic.Pointer[page], max(i+1, 8))
		if all != nil {
			more = make([]atomic.Pointer[page], max(i+1, 2*len(*all)))
			for i := range *all {
				more[i].Store((*all)[i].Load())
			}
		}
		all = &more
		p.all.Store(all)
	}
	to := (*all)[i].Load()
	if to == nil {
		to = newPage()
		bytes += pageBytes
	}
	old := to.refsOf(int(id % pageSize))
	bytes -= 4 * len(*to.refs.Load())
	if old == nil {
		to.n++
	} else if to.unused += len(old); to.unused > to.used/2+len(refs) {
		to = to.without(int(id % pageSize))
	}
	to.put(int(id%pageSize), refs)
	if (*all)[i].Load() != to {
		(*all)[i].Store(to) // readers see no page without the series
	}
	return old == nil, bytes + 4*len(*to.refs.Load())
}

func (p *page) put(i int, refs []uint32) {
	into := *p.refs.Load()
	if p.used+len(refs) > len(into) {
		n := p.used + len(refs)
		if p.n < pageSize {
			n += min(n, (pageSize-p.n)*len(refs)) // there will be more such series
		}
		grown := make([]uint32, n)
		copy(grown, into[:p.used])
		into = grown
		p.refs.Store(&into)
	}
	copy(into[p.used:], refs)
	into[p.used+len(refs)-1] |= lastRef
	p.at[i].Store(uint32(p.used) + 1)
	if p.used += len(refs); p.n == pageSize && p.used < len(into) {
		into = append(make([]uint32, 0, p.used), into[:p.used]...)
		p.refs.Store(&into)
	}
}

// without returns a page without the labels of one series, and without what no series has any more.
func (p *page) without(i int) *page {
	out := newPage()
	out.n = p.n
	kept := make([]uint32, 0, p.used-p.unused)
	for j := range p.at {
		if refs := p.refsOf(j); refs != nil && j != i {
			out.at[j].Store(uint32(len(kept)) + 1)
			kept = append(kept, refs...)
		}
	}
	out.used = len(kept)
	out.refs.Store(&kept)
	return out
}
