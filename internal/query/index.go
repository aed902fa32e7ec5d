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

// namesOf are the names of the labels of series, sorted.
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

// valuesOf are the values of a label of series, sorted.
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

// matched are the series that match any of the selectors, all if there is none, by id.
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

// Select returns the series that match any of the selectors, by id. However many selectors there are, it holds what one of
// them matches, and a bit for each series. The error is why ctx is done.
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

// set is a set of ids, which are dense: a bit for each.
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

// ids are those in the set, sorted.
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

// selectOne intersects the series that have a matching value, then takes away those
// that have a value which does not match: a matcher that matches the empty string is
// for the series without the label, too. It does so matcher by matcher, those first that are one value, the rarest
// before all others, and ends where no
// series is left.
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
		// All values at once: a label may have as many as there are series.
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

// count is how many series there are with the one value that m is for, 0 if it is for others.
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

// rank is in which order matchers are best looked at.
func rank(m *labels.Matcher) int {
	switch {
	case m.Matches(""):
		return 2
	case m.Type == labels.MatchEqual:
		return 0
	}
	return 1
}

// matching are the series of every value that m matches, or does not match if want is
// false, one slice for each value.
func (x *Index) matching(ctx context.Context, m *labels.Matcher, want bool) ([][]metric.ScheduleID, error) {
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
