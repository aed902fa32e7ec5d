package query

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// Index finds series by their labels, in memory. For each value of each label it keeps the sorted
// ids of the series that have the value. It is safe for concurrent use.
//
//  1. The part of a slice that readers may see never changes: values and ids are appended beyond
//     its end, or go into a new slice. So a reader holds the lock only while it fetches slices, and
//     a slow expression blocks nobody.
//  2. Each label string is stored once: series share the strings of the index.
type Index struct {
	mu sync.RWMutex
	// pages hold the labels by id, pageSize to a page; ids are dense.
	pages  []*page
	labels map[string]*label
	n      int

	// refreshing serializes calls of Refresh. It guards polls, one per page, and polled, the number
	// of calls so far.
	refreshing sync.Mutex
	polls      []poll
	polled     int
}

// poll schedules the next look at a page that is not full. Times are poll numbers.
type poll struct {
	end      metric.ScheduleID // end of the leased ids in the page
	leased   int               // when this end was first seen
	grew     int               // when a look last found a new series, or the end moved
	next     int               // when the next look is due
	had      int               // series at the last look
	finished bool              // no more series can come
}

const pageSize = 512

type page struct {
	n      int
	labels [pageSize]metric.Labels
}

// label is one label name with its values, in order of arrival.
type label struct {
	name    string
	byValue map[string]*postings
	values  []*postings
}

// postings are the series that have one value of one label.
type postings struct {
	value string
	ids   []metric.ScheduleID
}

// NewIndex makes an empty index; Refresh fills it.
func NewIndex() *Index { return &Index{labels: make(map[string]*label)} }

const (
	// Refresh reads refreshIDs ids at a time and retries each read up to refreshAttempts times. Of
	// thousands of reads, one or the other fails; a Refresh that began anew each time would never
	// finish.
	refreshIDs      = 8 * pageSize
	refreshAttempts = 5
)

// RefreshEvery is the interval at which to call Refresh where other processes register series.
const RefreshEvery = 5 * time.Second

const (
	// idleShare and mostPolls space out the looks at ids that stay unused: the wait is an eighth of
	// the idle time, at most about five minutes.
	idleShare = 8
	mostPolls = 64
	// finishedPolls is the number of polls after which ids are no longer looked for. No process
	// uses a lease for that long; the extra hour lets the last claims arrive.
	finishedPolls = int((registry.LeaseAge + time.Hour) / RefreshEvery)
)

// Refresh adds the series that the store has and the index lacks. It reads only ranges with missing
// ids, so it can be called repeatedly for series that other processes register; see RefreshEvery.
// It looks at the unused rest of a lease ever more rarely, and after about a day never again. So
// the cost of a call depends on the processes that run now, not on past ones. Errors are those of
// the store.
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

// looked records that the pages of a range have been read.
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

// missing returns the ranges of ids whose pages are not full and are due for a look. It joins
// adjacent pages.
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

// Add adds series. If an id is known with other labels, the new labels replace them. Add can serve
// as a registry's OnNew.
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
		// The id was lost in a race that left its row behind, and was then given to another series.
		x.remove(s.ID, old)
	}
	own := make(metric.Labels, len(s.Labels))
	for i, l := range s.Labels {
		own[i] = x.insert(s.ID, l)
	}
	p.labels[s.ID%pageSize] = own
}

// insert puts id into the postings of l and returns l with the index's own strings.
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

// Len returns the number of series.
func (x *Index) Len() int {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.n
}

// Labels returns the labels of a series, nil if it is unknown. Callers MUST NOT change them.
func (x *Index) Labels(id metric.ScheduleID) metric.Labels {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if id < 0 || int(id/pageSize) >= len(x.pages) || x.pages[id/pageSize] == nil {
		return nil
	}
	return x.pages[id/pageSize].labels[id%pageSize]
}

// LabelNames are the names of the labels that series have which match any of the
// selectors, of all series when there is none, sorted. The error is why ctx is done, or that
// of words.hold.
func (x *Index) LabelNames(ctx context.Context, sels ...Selector) ([]string, error) {
	if len(sels) > 0 {
		ids, err := x.Select(ctx, sels...)
		if err != nil {
			return nil, err
		}
		return x.namesOf(ctx, ids)
	}
	out, err := x.names(ctx)
	slices.Sort(out)
	return out, err
}

func (x *Index) names(ctx context.Context) ([]string, error) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	w := words{ctx: ctx}
	if err := w.hold(len(x.labels), headerBytes); err != nil {
		return nil, err
	}
	return slices.AppendSeq(make([]string, 0, len(x.labels)), maps.Keys(x.labels)), nil
}

// LabelValues are the values of a label that series have which match any of the
// selectors, of all series when there is none, sorted. The error is why ctx is done, or that
// of words.hold.
func (x *Index) LabelValues(ctx context.Context, name string, sels ...Selector) ([]string, error) {
	if len(sels) > 0 {
		ids, err := x.Select(ctx, sels...)
		if err != nil {
			return nil, err
		}
		return x.valuesOf(ctx, name, ids)
	}
	found := x.values(name)
	if len(found) == 0 {
		return nil, nil
	}
	w := words{ctx: ctx}
	if err := w.hold(len(found), headerBytes); err != nil {
		return nil, err
	}
	out := make([]string, len(found))
	for i, p := range found {
		out[i] = p.value
	}
	slices.Sort(out)
	return out, nil
}

// namesOf returns the label names of the given series, sorted.
func (x *Index) namesOf(ctx context.Context, ids []metric.ScheduleID) ([]string, error) {
	names := words{ctx: ctx}
	for i, id := range ids {
		if err := ended(ctx, i); err != nil {
			return nil, err
		}
		for _, l := range x.Labels(id) {
			if err := names.add(l.Name); err != nil {
				return nil, err
			}
		}
	}
	return slices.Sorted(maps.Keys(names.found)), nil
}

// valuesOf returns the values of a label among the given series, sorted.
func (x *Index) valuesOf(ctx context.Context, name string, ids []metric.ScheduleID) ([]string, error) {
	values := words{ctx: ctx}
	for i, id := range ids {
		if err := ended(ctx, i); err != nil {
			return nil, err
		}
		if v := x.Labels(id).Get(name); v != "" {
			if err := values.add(v); err != nil {
				return nil, err
			}
		}
	}
	return slices.Sorted(maps.Keys(values.found)), nil
}

const (
	// headerBytes is what a list of words takes for each: the words themselves are the index's own.
	headerBytes = 16
	// wordInSetBytes is what a set takes for each of its words until they are sorted, when it grows.
	wordInSetBytes = 96
	// maxWordsBytes bounds what is held of one selector's words.
	maxWordsBytes = 64 << 20
)

// words are names or values that are found for a request. What they take is charged to it; see admission.Charge.
type words struct {
	ctx   context.Context //nolint:containedctx // that of the request
	found map[string]struct{}
	bytes int64
}

// hold charges n words more, before they are found. The error is a *RequestError or admission.ErrNoRoom.
func (w *words) hold(n int, each int64) error {
	grow := int64(n) * each
	if w.bytes += grow; w.bytes > maxWordsBytes {
		return badRequest("there are so many names or values that a list of them takes more than the %d MB that one request may: "+
			"narrow them by match[]", maxWordsBytes>>20)
	}
	return admission.Charge(w.ctx, grow)
}

func (w *words) add(word string) error {
	if _, known := w.found[word]; known {
		return nil
	}
	if err := w.hold(1, wordInSetBytes); err != nil {
		return err
	}
	if w.found == nil {
		w.found = make(map[string]struct{})
	}
	w.found[word] = struct{}{}
	return nil
}

// ended is why ctx is done, looked at each few turns of a loop.
func ended(ctx context.Context, i int) error {
	if i%64 == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// matched returns the series that match any of the selectors, or all series if there are none,
// sorted by id.
func (x *Index) matched(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	if len(sels) > 0 {
		return x.Select(ctx, sels...)
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
	return out, nil
}

// Select returns the series that match any of the selectors, sorted by id. Whatever the number of
// selectors, it holds the matches of one of them and one bit per series. The error is the cause of
// ctx's end.
func (x *Index) Select(ctx context.Context, sels ...Selector) ([]metric.ScheduleID, error) {
	if len(sels) == 1 {
		return x.selectOne(ctx, sels[0])
	}
	var all set
	for _, sel := range sels {
		ids, err := x.selectOne(ctx, sel)
		if err != nil {
			return nil, err
		}
		all.add(ids)
	}
	return all.ids(), nil
}

// set is a bit set of ids, which are dense.
type set []uint64

func (s *set) add(ids []metric.ScheduleID) {
	if len(ids) == 0 {
		return
	}
	if n := int(ids[len(ids)-1]/64) + 1; n > len(*s) {
		*s = append(*s, make(set, n-len(*s))...)
	}
	for _, id := range ids {
		(*s)[id/64] |= 1 << (id % 64)
	}
}

// ids returns the ids in the set, sorted.
func (s set) ids() []metric.ScheduleID {
	n := 0
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	out := make([]metric.ScheduleID, 0, n)
	for i, word := range s {
		for ; word != 0; word &= word - 1 {
			out = append(out, metric.ScheduleID(i*64+bits.TrailingZeros64(word)))
		}
	}
	return out
}

// selectOne intersects the series of the matchers one after the other. A matcher that matches the
// empty string also selects series without the label; for it, selectOne subtracts the series whose
// value does not match. Equality matchers come first, the rarest value before the others. It stops
// when no series is left.
func (x *Index) selectOne(ctx context.Context, sel Selector) ([]metric.ScheduleID, error) {
	sel = slices.Clone(sel)
	slices.SortStableFunc(sel, func(a, b *labels.Matcher) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(x.count(a), x.count(b)))
	})
	var out []metric.ScheduleID
	for i, m := range sel {
		absent := m.Matches("")
		if i == 0 && absent {
			return nil, nil
		}
		found, err := x.matching(ctx, m, !absent)
		if err != nil {
			return nil, err
		}
		// Take all values at once: a label may have as many values as there are series.
		switch ids := union(found); {
		case i == 0:
			out = slices.Clone(ids)
		case absent:
			out = subtract(out, ids)
		default:
			out = intersect(out, ids)
		}
		if len(out) == 0 {
			return nil, nil
		}
	}
	return out, nil
}

// count returns the number of series with the value of an equality matcher, 0 for other matchers.
func (x *Index) count(m *labels.Matcher) int {
	if m.Type != labels.MatchEqual {
		return 0
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.labels[m.Name]; l != nil && l.byValue[m.Value] != nil {
		return len(l.byValue[m.Value].ids)
	}
	return 0
}

// rank returns the position of m in the cheapest order of evaluation.
func rank(m *labels.Matcher) int {
	switch {
	case m.Matches(""):
		return 2
	case m.Type == labels.MatchEqual:
		return 0
	}
	return 1
}

// matching returns the series of every value that m matches, or does not match if want is false,
// one slice per value.
func (x *Index) matching(ctx context.Context, m *labels.Matcher, want bool) ([][]metric.ScheduleID, error) {
	var some []string
	switch {
	case m.Type == labels.MatchEqual && want, m.Type == labels.MatchNotEqual && !want:
		some = []string{m.Value}
	case m.Type == labels.MatchRegexp && want, m.Type == labels.MatchNotRegexp && !want:
		// SetMatches returns the values that an expression such as a|b|c lists, nil if it does
		// more.
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
			if ctx.Err() != nil { // one value may take a pattern a second
				return nil, context.Cause(ctx)
			}
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
	return out, nil
}

func (x *Index) values(name string) []*postings {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.labels[name]; l != nil {
		return l.values
	}
	return nil
}

// union merges sorted, disjoint slices. For a single slice it returns that slice itself.
func union(all [][]metric.ScheduleID) []metric.ScheduleID {
	if len(all) == 1 {
		return all[0]
	}
	out := slices.Concat(all...)
	slices.Sort(out)
	return slices.Compact(out)
}

// intersect keeps, in place, the ids that are also in others. Both are sorted.
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

// subtract keeps, in place, the ids that are not in others. Both are sorted.
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

// skipTo cuts off the ids below id. It searches in doubling steps, so finding a few ids among a
// million does not scan them all.
func skipTo(ids []metric.ScheduleID, id metric.ScheduleID) (rest []metric.ScheduleID, found bool) {
	step := 1
	for step < len(ids) && ids[step] < id {
		step *= 2
	}
	i, found := slices.BinarySearch(ids[step/2:min(step+1, len(ids))], id)
	return ids[step/2+i:], found
}
