package query

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// Index finds series by their labels, in memory: for each value of each label, the
// sorted ids of the series that have it. It is safe for concurrent use.
//
//  1. Slices that readers may hold are never changed in what they can see: values and
//     ids are appended behind their ends, or put into a new slice. So a reader takes
//     the lock only to pick slices up, and a slow expression holds up nobody.
//  2. Every label string is stored once: series refer to those of the index.
type Index struct {
	mu sync.RWMutex
	// pages are the labels by id, pageSize to a page; ids are dense.
	pages  []*page
	labels map[string]*label
	n      int

	// refreshing is held by who reads what is missing: it guards polls, one for each page, and how many there were.
	refreshing sync.Mutex
	polls      []poll
	polled     int
}

// poll is how a page that is not full is looked at again. Times are numbers of polls.
type poll struct {
	end      metric.ScheduleID // of what is leased of it
	leased   int               // when that was seen first
	grew     int               // when a series in it was found, or it was leased
	next     int               // when it is due
	had      int               // series, at the last look
	finished bool              // no more can come
}

const pageSize = 512

type page struct {
	n      int
	labels [pageSize]metric.Labels
}

// label is one label name and its values, in the order in which they came.
type label struct {
	name    string
	byValue map[string]*postings
	values  []*postings
}

// postings are the series with one value of one label.
type postings struct {
	value string
	ids   []metric.ScheduleID
}

// NewIndex makes an empty index. Refresh fills it.
func NewIndex() *Index { return &Index{labels: make(map[string]*label)} }

const (
	// refreshIDs are read at a time, and again if that fails: where many are asked for, of thousands of requests one or
	// the other is not answered, and to begin anew each time would never come to an end.
	refreshIDs      = 8 * pageSize
	refreshAttempts = 5
)

// RefreshEvery is how often Refresh is to be called where other processes register series, and no more often.
const RefreshEvery = 5 * time.Second

const (
	// idleShare and mostPolls say how rarely ids are looked for of which none has been used for a while: after an eighth of that
	// while, at most each five minutes.
	idleShare = 8
	mostPolls = 64
	// finishedPolls is after how many polls ids are not looked for any more: nobody uses a lease for so long, and what was claimed
	// last has an hour to arrive.
	finishedPolls = int((registry.LeaseAge + time.Hour) / RefreshEvery)
)

// Refresh adds the series that the store has and the index does not. It reads only
// where ids are missing, so that it may be called again for series that other
// processes have registered; see RefreshEvery. What a process leaves of a lease is looked at ever more rarely, and after a day
// not at all: what a call costs follows from who is there, not from who has been. Errors are those of the store.
func (x *Index) Refresh(ctx context.Context, store storage.Registry) error {
	x.refreshing.Lock()
	defer x.refreshing.Unlock()
	x.polled++
	ids, err := store.LeasedIDs(ctx)
	if err != nil {
		return fmt.Errorf("refresh the label index: %w", err)
	}
	for _, missing := range x.missing(ids) {
		for _, r := range missing.Cover(refreshIDs) {
			r = blocks.Range{Start: max(r.Start, missing.Start), End: min(r.End, missing.End)}
			for range refreshAttempts {
				if err = x.read(ctx, store, r); !storage.IsAway(err) || ctx.Err() != nil {
					break
				}
			}
			if err != nil {
				return fmt.Errorf("refresh the label index: %w", err)
			}
			x.looked(r)
		}
	}
	return nil
}

// looked notes that a range of pages has been read.
func (x *Index) looked(r blocks.Range) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i := int(r.Start / pageSize); i <= int((r.End-1)/pageSize); i++ {
		n, p := 0, &x.polls[i]
		if i < len(x.pages) && x.pages[i] != nil {
			n = x.pages[i].n
		}
		if n > p.had {
			p.had, p.grew = n, x.polled
		}
		p.finished = x.polled-p.leased >= finishedPolls
		p.next = x.polled + min(max((x.polled-p.grew)/idleShare, 1), mostPolls)
	}
}

// read adds the series with ids in r.
func (x *Index) read(ctx context.Context, store storage.Registry, r blocks.Range) error {
	var found []storage.Schedule
	for s, err := range store.Schedules(ctx, r) {
		if err != nil {
			return err
		}
		found = append(found, s)
	}
	x.Add(found)
	return nil
}

// missing are the pages within ids that are not full, and due, neighbours put together.
func (x *Index) missing(ids blocks.Range) []blocks.Range {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var out []blocks.Range
	for _, r := range ids.Cover(pageSize) {
		r = blocks.Range{Start: max(r.Start, ids.Start), End: min(r.End, ids.End)}
		i := int(r.Start / pageSize)
		if i < len(x.pages) && x.pages[i] != nil && x.pages[i].n == pageSize {
			continue
		}
		if i >= len(x.polls) {
			x.polls = append(x.polls, make([]poll, i+1-len(x.polls))...)
		}
		p := &x.polls[i]
		if p.end != r.End {
			*p = poll{end: r.End, leased: x.polled, grew: x.polled, had: p.had}
		}
		if p.finished || x.polled < p.next {
			continue
		}
		if n := len(out); n > 0 && out[n-1].End == r.Start {
			out[n-1].End = r.End
		} else {
			out = append(out, r)
		}
	}
	return out
}

// Add adds series; those that are there already stay. A registry's OnNew may be this.
func (x *Index) Add(schedules []storage.Schedule) {
	if len(schedules) == 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range schedules {
		x.add(s)
	}
}

func (x *Index) add(s storage.Schedule) {
	if s.ID < 0 {
		return
	}
	if n := int(s.ID/pageSize) + 1; n > len(x.pages) {
		x.pages = append(x.pages, make([]*page, n-len(x.pages))...)
	}
	p := x.pages[s.ID/pageSize]
	if p == nil {
		p = new(page)
		x.pages[s.ID/pageSize] = p
	}
	old := p.labels[s.ID%pageSize]
	if slices.Equal(old, s.Labels) {
		return
	}
	if old == nil {
		p.n++
		x.n++
	} else {
		// An id that was lost in a race, with its row left behind, and then given to
		// another series.
		x.remove(s.ID, old)
	}
	own := make(metric.Labels, len(s.Labels))
	for i, l := range s.Labels {
		own[i] = x.insert(s.ID, l)
	}
	p.labels[s.ID%pageSize] = own
}

// insert puts id into the postings of l and returns l in the index's own strings.
func (x *Index) insert(id metric.ScheduleID, l metric.Label) metric.Label {
	name := x.labels[l.Name]
	if name == nil {
		name = &label{name: l.Name, byValue: make(map[string]*postings)}
		x.labels[l.Name] = name
	}
	value := name.byValue[l.Value]
	if value == nil {
		value = &postings{value: l.Value}
		name.byValue[l.Value] = value
		name.values = append(name.values, value)
	}
	if n := len(value.ids); n == 0 || value.ids[n-1] < id {
		value.ids = append(value.ids, id)
	} else if i, found := slices.BinarySearch(value.ids, id); !found {
		value.ids = slices.Concat(value.ids[:i], []metric.ScheduleID{id}, value.ids[i:])
	}
	return metric.Label{Name: name.name, Value: value.value}
}

func (x *Index) remove(id metric.ScheduleID, ls metric.Labels) {
	for _, l := range ls {
		p := x.labels[l.Name].byValue[l.Value]
		if i, found := slices.BinarySearch(p.ids, id); found {
			p.ids = slices.Concat(p.ids[:i], p.ids[i+1:])
		}
	}
}

// Len is the number of series.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.n
}

// Labels are the labels of a series, nil when it is not known. They MUST NOT be changed.
func (x *Index) Labels(id metric.ScheduleID) metric.Labels {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if id < 0 || int(id/pageSize) >= len(x.pages) || x.pages[id/pageSize] == nil {
		return nil
	}
	return x.pages[id/pageSize].labels[id%pageSize]
}

// LabelNames are the names of the labels that series have which match any of the
// selectors, of all series when there is none, sorted.
func (x *Index) LabelNames(sels ...Selector) []string {
	if len(sels) > 0 {
		return x.namesOf(x.Select(sels...))
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Sorted(maps.Keys(x.labels))
}

// LabelValues are the values of a label that series have which match any of the
// selectors, of all series when there is none, sorted.
func (x *Index) LabelValues(name string, sels ...Selector) []string {
	if len(sels) > 0 {
		return x.valuesOf(name, x.Select(sels...))
	}
	var out []string
	for _, p := range x.values(name) {
		out = append(out, p.value)
	}
	slices.Sort(out)
	return out
}

// namesOf are the names of the labels of series, sorted.
func (x *Index) namesOf(ids []metric.ScheduleID) []string {
	names := make(map[string]struct{})
	for _, id := range ids {
		for _, l := range x.Labels(id) {
			names[l.Name] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// valuesOf are the values of a label of series, sorted.
func (x *Index) valuesOf(name string, ids []metric.ScheduleID) []string {
	values := make(map[string]struct{})
	for _, id := range ids {
		if v := x.Labels(id).Get(name); v != "" {
			values[v] = struct{}{}
		}
	}
	return slices.Sorted(maps.Keys(values))
}

// matched are the series that match any of the selectors, all if there is none, by id.
func (x *Index) matched(sels []Selector) []metric.ScheduleID {
	if len(sels) > 0 {
		return x.Select(sels...)
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	out := make([]metric.ScheduleID, 0, x.n)
	for i, p := range x.pages {
		if p == nil {
			continue
		}
		for j, ls := range p.labels {
			if ls != nil {
				out = append(out, metric.ScheduleID(i*pageSize+j))
			}
		}
	}
	return out
}

// Select returns the series that match any of the selectors, by id.
func (x *Index) Select(sels ...Selector) []metric.ScheduleID {
	var out []metric.ScheduleID
	for i, sel := range sels {
		ids := x.selectOne(sel)
		if i == 0 {
			out = ids
			continue
		}
		out = append(out, ids...)
		slices.Sort(out)
		out = slices.Compact(out)
	}
	return out
}

// selectOne intersects the series that have a matching value, then takes away those
// that have a value which does not match: a matcher that matches the empty string is
// for the series without the label, too.
func (x *Index) selectOne(sel Selector) []metric.ScheduleID {
	var with, without [][]metric.ScheduleID
	for _, m := range sel {
		if m.Matches("") {
			without = append(without, x.matching(m, false)...)
		} else {
			with = append(with, union(x.matching(m, true)))
		}
	}
	if len(with) == 0 {
		return nil
	}
	slices.SortFunc(with, func(a, b []metric.ScheduleID) int { return len(a) - len(b) })
	out := slices.Clone(with[0])
	for _, ids := range with[1:] {
		out = intersect(out, ids)
	}
	// All at once: a label may have as many values as there are series.
	return subtract(out, union(without))
}

// matching are the series of every value that m matches, or does not match if want is
// false, one slice for each value.
func (x *Index) matching(m *labels.Matcher, want bool) [][]metric.ScheduleID {
	var some []string
	switch {
	case m.Type == labels.MatchEqual && want, m.Type == labels.MatchNotEqual && !want:
		some = []string{m.Value}
	case m.Type == labels.MatchRegexp && want, m.Type == labels.MatchNotRegexp && !want:
		// The values that an expression such as a|b|c lists, nil when it does more.
		some = m.SetMatches()
	}
	var found []*postings
	if len(some) > 0 {
		x.mu.RLock()
		if l := x.labels[m.Name]; l != nil {
			for _, v := range some {
				if p := l.byValue[v]; p != nil {
					found = append(found, p)
				}
			}
		}
		x.mu.RUnlock()
	} else {
		for _, p := range x.values(m.Name) {
			if m.Matches(p.value) == want {
				found = append(found, p)
			}
		}
	}
	out := make([][]metric.ScheduleID, len(found))
	x.mu.RLock()
	defer x.mu.RUnlock()
	for i, p := range found {
		out[i] = p.ids
	}
	return out
}

func (x *Index) values(name string) []*postings {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.labels[name]; l != nil {
		return l.values
	}
	return nil
}

// union puts sorted, disjoint slices together. The result may be the only one.
func union(all [][]metric.ScheduleID) []metric.ScheduleID {
	if len(all) == 1 {
		return all[0]
	}
	out := slices.Concat(all...)
	slices.Sort(out)
	return slices.Compact(out)
}

// intersect keeps, in place, the sorted ids that are among the sorted others.
func intersect(ids, others []metric.ScheduleID) []metric.ScheduleID {
	out := ids[:0]
	for _, id := range ids {
		var found bool
		if others, found = skipTo(others, id); found {
			out = append(out, id)
		}
	}
	return out
}

// subtract keeps, in place, the sorted ids that are not among the sorted others.
func subtract(ids, others []metric.ScheduleID) []metric.ScheduleID {
	out := ids[:0]
	for _, id := range ids {
		var found bool
		if others, found = skipTo(others, id); !found {
			out = append(out, id)
		}
	}
	return out
}

// skipTo cuts off the ids below id, in doubling steps: a few ids among a million cost
// no walk past all of them.
func skipTo(ids []metric.ScheduleID, id metric.ScheduleID) (rest []metric.ScheduleID, found bool) {
	step := 1
	for step < len(ids) && ids[step] < id {
		step *= 2
	}
	i, found := slices.BinarySearch(ids[step/2:min(step+1, len(ids))], id)
	return ids[step/2+i:], found
}
