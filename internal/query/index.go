package query

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/bound"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Index finds series by their labels, in memory. For each value of each label it keeps the ids of
// the series that have the value; readers get them sorted. It is safe for concurrent use.
//
//  1. The part of a slice that readers may see never changes: values and ids are appended beyond
//     its end, or go into a new slice. So a reader holds the lock only while it fetches slices, and
//     a slow expression blocks nobody.
//  2. Each label string is stored once: series share the strings of the index.
//  3. Adding series costs the same in any order of their ids, up to a constant factor.
type Index struct {
	mu sync.RWMutex
	// pages hold the labels by id, pageSize to a page; ids are dense.
	pages  []*page
	labels map[string]*label
	n      int
	bytes  int64 // see Bytes
	// clock is set when CountNew has been called, at sinceMs. met are the days on which series were met since.
	clock   clock.Clock
	sinceMs int64
	met     days
	twins   twins

	// refreshing serializes calls of Refresh. It guards polls, one per page, and polled, the number
	// of calls so far.
	refreshing sync.Mutex
	polls      []poll
	polled     int
	// unread says what the last Refresh could not read; nil if it was nothing.
	unread atomic.Pointer[UnreadError]
}

// poll schedules the next look at a page that is not full. Times are poll numbers.
type poll struct {
	end      metric.ScheduleID // end of the leased ids in the page
	leased   int               // when this end was first seen
	grew     int               // when a look last found a new series, or the end moved
	next     int               // when the next look is due
	had      int               // series at the last look
	finished bool              // no more series can come
	away     error             // why the last look did not read the whole page
}

// UnreadError says that the labels of some series are out of reach. The index has all others.
type UnreadError struct {
	// IDs is how many ids the series may have.
	IDs int
	Err error
}

// Error implements error.
func (e *UnreadError) Error() string {
	return fmt.Sprintf("the labels of up to %d series cannot be read: %v", e.IDs, e.Err)
}

// Unwrap returns the store's error.
func (e *UnreadError) Unwrap() error { return e.Err }

// Unread returns a *UnreadError while the labels of some series are out of reach, and nil otherwise.
func (x *Index) Unread() error {
	if e := x.unread.Load(); e != nil {
		return e
	}
	return nil
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
	// sorted are ids in order. late are those that came when sorted had a higher id, in order of
	// arrival: each would cost a copy of sorted. They are merged into sorted when there are many, or
	// when somebody reads; see Index.idsOf. No id is in both.
	sorted, late []metric.ScheduleID
}

// lateShare: a writer merges late when it has 1/lateShare as many ids as sorted. So a late id costs
// about lateShare copies of an id.
const lateShare = 8

func (p *postings) count() int { return len(p.sorted) + len(p.late) }

func (p *postings) insert(id metric.ScheduleID) {
	if n := len(p.sorted); n == 0 || p.sorted[n-1] < id {
		p.sorted = append(p.sorted, id)
		return
	}
	// A series that has the label twice is in the list already.
	if _, found := slices.BinarySearch(p.sorted, id); found || len(p.late) > 0 && p.late[len(p.late)-1] == id {
		return
	}
	if p.late = append(p.late, id); len(p.late)*lateShare >= len(p.sorted) {
		p.sorted, p.late = merge(p.sorted, p.late), nil
	}
}

func (p *postings) remove(id metric.ScheduleID) {
	if i, found := slices.BinarySearch(p.sorted, id); found {
		p.sorted = slices.Concat(p.sorted[:i], p.sorted[i+1:])
	} else if i := slices.Index(p.late, id); i >= 0 {
		p.late = slices.Concat(p.late[:i], p.late[i+1:])
	}
}

// merge returns a new slice with all ids, sorted, and with room for some more.
func merge(sorted, late []metric.ScheduleID) []metric.ScheduleID {
	n := len(sorted) + len(late)
	out := make([]metric.ScheduleID, 0, n+n/lateShare)
	for _, id := range slices.Sorted(slices.Values(late)) {
		i, _ := slices.BinarySearch(sorted, id)
		out = append(append(out, sorted[:i]...), id)
		sorted = sorted[i:]
	}
	return append(out, sorted...)
}

// idsOf returns the ids of each postings, sorted. It merges late ids without the lock.
func (x *Index) idsOf(all []*postings) [][]metric.ScheduleID {
	type unmerged struct {
		at   int
		late []metric.ScheduleID
	}
	var some []unmerged
	out := make([][]metric.ScheduleID, len(all))
	x.mu.RLock()
	for i, p := range all {
		if out[i] = p.sorted; len(p.late) > 0 {
			some = append(some, unmerged{i, p.late})
		}
	}
	x.mu.RUnlock()
	for _, u := range some {
		out[u.at] = x.merged(all[u.at], out[u.at], u.late)
	}
	return out
}

// merged merges p as it was read. If p is unchanged, it keeps the result.
func (x *Index) merged(p *postings, sorted, late []metric.ScheduleID) []metric.ScheduleID {
	out := merge(sorted, late)
	x.mu.Lock()
	defer x.mu.Unlock()
	if same(p.sorted, sorted) && same(p.late, late) {
		p.sorted, p.late = out, nil
	}
	return out
}

// same returns whether a and b are the same part of one array. Postings only grow or move.
func same(a, b []metric.ScheduleID) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// NewIndex makes an empty index; Refresh fills it.
func NewIndex() *Index { return &Index{labels: make(map[string]*label), twins: newTwins()} }

// Add adds series. If an id is known with other labels, the new labels replace them. Add can serve
// as a registry's OnNew. Readers may see a part of the series before the others.
func (x *Index) Add(schedules []storage.Schedule) {
	for some := range slices.Chunk(schedules, addAtOnce) {
		x.addAll(some, true)
	}
}

// CountNew has the index note the UTC day on which it meets each series that is new to it from now on. Call it when the
// index has the series of the store. Those that were out of reach until now are not new.
func (x *Index) CountNew(clk clock.Clock) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.clock, x.sinceMs = clk, clock.NowMs(clk)
}

// addAtOnce is how many series are added before readers get their turn.
const addAtOnce = 128

func (x *Index) addAll(schedules []storage.Schedule, fresh bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, s := range schedules {
		if x.add(s) && fresh && x.clock != nil {
			x.met.set(s.ID, dayOf(clock.NowMs(x.clock)))
		}
	}
}

// add returns whether the id is new.
func (x *Index) add(s storage.Schedule) bool {
	if s.ID < 0 {
		return false
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
		return false
	}
	if old == nil {
		p.n++
		x.n++
	} else {
		// A writer that lost a race left a row with this id, which now belongs to another series.
		x.remove(s.ID, old)
		x.twins.remove(s.ID, old, x.at)
		x.bytes -= x.weight(old)
	}
	x.bytes += x.weight(s.Labels)
	own := make(metric.Labels, len(s.Labels))
	for i, l := range s.Labels {
		own[i] = x.insert(s.ID, l)
	}
	p.labels[s.ID%pageSize] = own
	x.twins.add(s.ID, own, x.at)
	return old == nil
}

// several splits sorted ids into those that are the only ids of their series, and all ids of the other series.
func (x *Index) several(ids []metric.ScheduleID) (single []metric.ScheduleID, several [][]metric.ScheduleID) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if len(x.twins.of) == 0 {
		return ids, nil
	}
	first := map[metric.ScheduleID]bool{} // the first ids of the series in several
	for _, id := range ids {
		all := x.twins.of[id]
		switch {
		case all == nil:
			single = append(single, id)
		case !first[all[0]]:
			first[all[0]] = true
			several = append(several, all)
		}
	}
	return single, several
}

// first returns the lowest id of the series that has the given one.
func (x *Index) first(id metric.ScheduleID) metric.ScheduleID {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if all := x.twins.of[id]; all != nil {
		return all[0]
	}
	return id
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
	value.insert(id)
	return metric.Label{Name: name.name, Value: value.value}
}

func (x *Index) remove(id metric.ScheduleID, ls metric.Labels) {
	for _, l := range ls {
		x.labels[l.Name].byValue[l.Value].remove(id)
	}
}

// What a series takes in memory, measured and rounded up; see TestBytesAreWhatIsHeld.
const (
	// seriesBytes are for its places in pages, and in the maps of the registry and of Sightings.
	seriesBytes = 200
	// labelBytes are for a label of the series and its id among the value's, beside the text, of
	// which the registry's key has a copy.
	labelBytes = 64
	// valueBytes and nameBytes are for a value and a name that no other series has, beside the text.
	valueBytes = 160
	nameBytes  = 500
)

// weight returns what a series takes that the index does not have.
func (x *Index) weight(ls metric.Labels) int64 {
	n, text := seriesBytes, 0
	for _, l := range ls {
		n += labelBytes
		text += len(l.Name) + len(l.Value)
		name := x.labels[l.Name]
		if name == nil {
			n += nameBytes
			text += len(l.Name)
		}
		if name == nil || name.byValue[l.Value] == nil || name.byValue[l.Value].count() == 0 {
			n += valueBytes
			text += len(l.Value)
		}
	}
	return int64(n + text + text/8) // size classes of the allocator waste an eighth at most
}

// Bytes returns what all series take in memory, those of the registry included, but not what the
// registry needs for their sources. It is an estimate that errs upwards; values that several series share count once.
func (x *Index) Bytes() int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.bytes
}

// Weight returns how many bytes more a new series would take.
func (x *Index) Weight(ls metric.Labels) int64 {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.weight(ls)
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
	return x.at(id)
}

func (x *Index) at(id metric.ScheduleID) metric.Labels {
	if id < 0 || int(id/pageSize) >= len(x.pages) || x.pages[id/pageSize] == nil {
		return nil
	}
	return x.pages[id/pageSize].labels[id%pageSize]
}

// HasName returns whether any series has a label of that name.
func (x *Index) HasName(name string) bool {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.labels[name] != nil
}

// LabelNames returns the label names of the series that match any of the selectors, of all
// series when there is none, sorted. The error is why ctx is done, or that of words.hold.
func (x *Index) LabelNames(ctx context.Context, sels ...Selector) ([]string, error) {
	if len(sels) > 0 || bound.Of(ctx) != nil {
		ids, err := x.matched(ctx, sels)
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

// LabelValues returns the values of a label of the series that match any of the selectors, of
// all series when there is none, sorted. The error is as for LabelNames.
func (x *Index) LabelValues(ctx context.Context, name string, sels ...Selector) ([]string, error) {
	if len(sels) > 0 || bound.Of(ctx) != nil {
		ids, err := x.matched(ctx, sels)
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
	// headerBytes is what a list takes for each word: the texts are the index's own.
	headerBytes = 16
	// wordInSetBytes is the most that a set takes for each word: when it grows, until it is sorted.
	wordInSetBytes = 96
	// maxWordsBytes bounds what the words of one selector take.
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
		return badRequest("there are so many names or values that a list of them takes more than %d MB, the limit for one request: "+
			"narrow them with match[]", maxWordsBytes>>20)
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

// ended returns why ctx is done. It asks every 64th turn i.
func ended(ctx context.Context, i int) error {
	if i%64 == 0 && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// matched returns the series that match any of the selectors, or all series that the request may have if
// there are none, sorted by id.
func (x *Index) matched(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	if len(sels) > 0 {
		return x.Select(ctx, sels...)
	}
	if own, ok := all(ctx); ok {
		return x.selectAny(ctx, own)
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

// maxWork bounds what the selectors of one request look at: the series of a selector's first matcher,
// times its matchers, and the values for each pattern. This many take some ten seconds.
const maxWork = 500_000_000

// Work counts what the selectors of one request, and what weighs the request, look at. It is safe for
// concurrent use.
type Work struct {
	done atomic.Int64
}

type workKey struct{}

// WithWork returns a context in which w counts for all selections. Without it, each call of Select
// counts for itself.
func WithWork(ctx context.Context, w *Work) context.Context {
	return context.WithValue(ctx, workKey{}, w)
}

// workOf returns what counts the work of a request, or of one call without one.
func workOf(ctx context.Context) *Work {
	if work, ok := ctx.Value(workKey{}).(*Work); ok {
		return work
	}
	return new(Work)
}

// Add counts n more, before they are looked at. The error is a *RequestError or the cause of ctx's
// end.
func (w *Work) Add(ctx context.Context, n int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if w.done.Add(int64(n)) > maxWork {
		return badRequest("the selectors look at more than %d million series together, the limit for one request, each counted for every "+
			"matcher of a selector: use fewer matchers or selectors, or narrow them", maxWork/1_000_000)
	}
	return nil
}

// Select returns the series that match any of the selectors, sorted by id. Whatever the number of
// selectors, it holds the matches of one of them and one bit per series. It finds only series that the
// request may have; see bound.Of. The error is a *RequestError, see maxWork, or the cause of ctx's end.
func (x *Index) Select(ctx context.Context, sels ...Selector) ([]metric.ScheduleID, error) {
	return x.selectAny(ctx, bounded(ctx, sels))
}

// selectAny is Select without what the request is restricted to.
func (x *Index) selectAny(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	work := workOf(ctx)
	if len(sels) == 1 {
		return x.selectOne(ctx, sels[0], work)
	}
	var all set
	for _, sel := range sels {
		ids, err := x.selectOne(ctx, sel, work)
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
// value does not match. It stops when no series is left.
func (x *Index) selectOne(ctx context.Context, sel Selector, work *Work) ([]metric.ScheduleID, error) {
	var out []metric.ScheduleID
	sel = x.ordered(sel)
	for i, m := range sel {
		absent := m.Matches("")
		if i == 0 && absent {
			return nil, nil
		}
		found, err := x.matching(ctx, m, !absent, work)
		if err != nil {
			return nil, err
		}
		// Take all values at once: a label may have as many values as there are series.
		ids, err := union(ctx, found, work)
		switch {
		case err != nil:
		case i == 0:
			// The other matchers look at no more series than these. A request that may be too much work is
			// refused before the work is done.
			if err = work.Add(ctx, len(ids)*len(sel)); err == nil {
				out = slices.Clone(ids)
			}
		case absent && len(ids) == 0:
		case len(ids) == 0:
			return nil, nil
		default:
			out, err = filter(ctx, out, ids, !absent)
		}
		if err != nil {
			return nil, err
		}
		if len(out) == 0 {
			return nil, nil
		}
	}
	return out, nil
}

// ordered returns the different matchers in the order in which to apply them: equality matchers come
// first, the rarest value before the others.
func (x *Index) ordered(sel Selector) Selector {
	type text struct {
		of          labels.MatchType
		name, value string
	}
	type place struct {
		*labels.Matcher
		rank, count int
	}
	known := make(map[text]bool, len(sel))
	places := make([]place, 0, len(sel))
	for _, m := range sel {
		if t := (text{m.Type, m.Name, m.Value}); !known[t] {
			known[t] = true
			places = append(places, place{m, rank(m), x.count(m)})
		}
	}
	slices.SortStableFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.count, b.count))
	})
	out := make(Selector, len(places))
	for i, p := range places {
		out[i] = p.Matcher
	}
	return out
}

// count returns the number of series with the value of an equality matcher, 0 for other matchers.
func (x *Index) count(m *labels.Matcher) int {
	if m.Type != labels.MatchEqual {
		return 0
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	if l := x.labels[m.Name]; l != nil && l.byValue[m.Value] != nil {
		return l.byValue[m.Value].count()
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
func (x *Index) matching(ctx context.Context, m *labels.Matcher, want bool, work *Work) ([][]metric.ScheduleID, error) {
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
		if err := work.Add(ctx, len(some)); err != nil {
			return nil, err
		}
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
			if err := work.Add(ctx, 1); err != nil { // a match may take a second
				return nil, err
			}
			if m.Matches(p.value) == want {
				found = append(found, p)
			}
		}
	}
	return x.idsOf(found), nil
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
func union(ctx context.Context, all [][]metric.ScheduleID, work *Work) ([]metric.ScheduleID, error) {
	if len(all) == 1 {
		return all[0], nil
	}
	n := 0
	for _, ids := range all {
		n += len(ids)
	}
	if err := work.Add(ctx, n); err != nil {
		return nil, err
	}
	out := slices.Concat(all...)
	slices.Sort(out)
	return slices.Compact(out), nil
}

// filter keeps, in place, the ids that are also in others, or with want false those that are not.
// Both are sorted.
func filter(ctx context.Context, ids, others []metric.ScheduleID, want bool) ([]metric.ScheduleID, error) {
	out := ids[:0]
	for i, id := range ids {
		if err := ended(ctx, i); err != nil {
			return nil, err
		}
		var found bool
		if others, found = skipTo(others, id); found == want {
			out = append(out, id)
		}
	}
	return out, nil
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
