package query

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query/postings"
)

// matched returns the series that match any of the selectors, or all series that the request may have if
// there are none, sorted by id.
func (x *Index) matched(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	if len(sels) > 0 {
		return x.Select(ctx, sels...)
	}
	if bound, ok := all(ctx); ok {
		return x.selectAny(ctx, bound)
	}
	x.mu.RLock()
	ids := x.all.Snapshot()
	x.mu.RUnlock()
	return listOf(ctx, ids)
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
	var found postings.Union
	for _, sel := range sels {
		ids, err := x.selectOne(ctx, sel, work)
		if err != nil {
			return nil, err
		}
		found.Add(ids)
	}
	return listOf(ctx, found.List())
}

// listOf returns the ids in a list, nil if there are none.
func listOf(ctx context.Context, ids postings.List) ([]metric.ScheduleID, error) {
	if ids.Len() == 0 {
		return nil, nil
	}
	out := make([]metric.ScheduleID, 0, ids.Len())
	for id := range ids.All() {
		if err := ended(ctx, len(out)); err != nil {
			return nil, err
		}
		out = append(out, metric.ScheduleID(id))
	}
	return out, nil
}

// selectOne intersects the series of the matchers one after the other. A matcher that matches the
// empty string also selects series without the label; for it, selectOne subtracts the series whose
// value does not match. It stops when no series is left.
func (x *Index) selectOne(ctx context.Context, sel Selector, work *Work) (postings.List, error) {
	var out postings.List
	sel = x.ordered(sel)
	for i, m := range sel {
		absent := m.Matches("")
		if i == 0 && absent {
			return postings.List{}, nil
		}
		c, err := x.candidates(ctx, m, !absent, work)
		switch {
		case err != nil:
		case i == 0:
			if out, err = x.matching(ctx, m, !absent, c, work); err == nil {
				// The other matchers look at no more series than these. A request that may be too much work is
				// refused before the work is done.
				err = work.Add(ctx, out.Len()*len(sel))
			}
		case !c.exact && len(c.values) > directShare*out.Len():
			out, err = x.keep(ctx, m, out, work)
		default:
			var ids postings.List
			if ids, err = x.matching(ctx, m, !absent, c, work); absent {
				out = postings.AndNot(out, ids)
			} else {
				out = postings.And(out, ids)
			}
		}
		if err != nil || out.Len() == 0 {
			return postings.List{}, err
		}
	}
	return out, nil
}

// directShare: if a pattern has this many times as many values to look at as there are series left, the labels of the
// series are looked at instead.
const directShare = 4

// keep returns the series of ids whose label a matcher matches.
func (x *Index) keep(ctx context.Context, m *labels.Matcher, ids postings.List, work *Work) (out postings.List, err error) {
	for id := range ids.All() {
		if err := work.Add(ctx, 1); err != nil { // a match may take a second
			return out, err
		}
		if m.Matches(x.Packed(metric.ScheduleID(id)).Get(m.Name)) {
			out.Add(id)
		}
	}
	return out, nil
}

// ordered returns the different matchers in the order in which to apply them: equality matchers come
// first, the rarest value before the others.
func (x *Index) ordered(sel Selector) Selector {
	type text struct {
		match       labels.MatchType
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
	if number, ok := x.symbols.lookUp(m.Name, m.Value); ok {
		return x.symbols.symbol(number).ids.Len()
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

// candidates are what a matcher may match of a label.
type candidates struct {
	// values are the numbers of values to look at. All of them match if exact is set.
	values []uint32
	exact  bool
	// ids are the series, if there are no values.
	ids postings.List
	// remember says that values are all values of the label, in the order of arrival, and that it pays to remember which of
	// them match.
	remember bool
}

// candidates returns what m may match, or may not match if want is false, without a look at each value.
func (x *Index) candidates(ctx context.Context, m *labels.Matcher, want bool, work *Work) (c candidates, err error) {
	listed := (m.Type == labels.MatchEqual || m.Type == labels.MatchRegexp) == want // what the text of m matches is wanted
	equality := m.Type == labels.MatchEqual || m.Type == labels.MatchNotEqual
	var set []string
	switch {
	case equality && listed:
		set = []string{m.Value}
	case equality, m.Value == ".+" && listed: // here m.Value is empty, which no value is
		x.mu.RLock()
		defer x.mu.RUnlock()
		if n := x.symbols.names[m.Name]; n != nil {
			c.ids = n.ids.Snapshot()
		}
		return c, nil
	case (m.Value == ".*" || m.Value == ".+") && !listed:
		return c, nil
	case listed:
		// SetMatches returns the values that an expression such as a|b|c lists, nil if it does more.
		set = m.SetMatches()
	}
	if len(set) > 0 {
		c.exact = true
		if err := work.Add(ctx, len(set)); err != nil {
			return c, err
		}
		x.mu.RLock()
		defer x.mu.RUnlock()
		for _, value := range set {
			switch number, ok := x.symbols.lookUp(m.Name, value); {
			case !ok:
			case len(set) == 1:
				c.ids = x.symbols.symbol(number).ids.Snapshot()
			default:
				c.values = append(c.values, number)
			}
		}
		return c, nil
	}
	n, all := x.values(m.Name)
	if prefix := m.Prefix(); listed && prefix != "" && len(all) >= leastRemembered {
		sorted, rest := x.symbols.inOrder(n, all)
		if some := x.symbols.withPrefix(sorted, rest, prefix); len(some) < leastRemembered {
			c.values = some
			return c, nil
		}
	}
	c.values, c.remember = all, len(all) >= leastRemembered
	return c, nil
}

// matching returns the series of what m matches of c, or does not match if want is false.
func (x *Index) matching(ctx context.Context, m *labels.Matcher, want bool, c candidates, work *Work) (out postings.List, err error) {
	if len(c.values) == 0 {
		return c.ids, nil
	}
	found := c.values
	if !c.exact {
		if found, err = x.valuesMatching(ctx, m, want, c, work); err != nil {
			return out, err
		}
	}
	// Take all lists before any of them is read: a label may have as many values as there are series.
	lists, n := make([]postings.List, 0, len(found)), 0
	for some := range slices.Chunk(found, countsAtOnce) {
		x.mu.RLock()
		for _, number := range some {
			l := x.symbols.symbol(number).ids.Snapshot()
			lists = append(lists, l)
			n += l.Len()
		}
		x.mu.RUnlock()
	}
	if len(lists) == 1 {
		return lists[0], nil
	}
	if err := work.Add(ctx, n); err != nil {
		return out, err
	}
	var all postings.Union
	for _, l := range lists {
		all.Add(l)
	}
	return all.List(), nil
}

// valuesMatching returns the values of c that m matches, or does not match if want is false.
func (x *Index) valuesMatching(ctx context.Context, m *labels.Matcher, want bool, c candidates, work *Work) ([]uint32, error) {
	var found []uint32
	key, known := pattern{m.Name, m.Value, (m.Type == labels.MatchRegexp) == want}, 0
	if c.remember {
		known, found = x.patterns.get(key, len(c.values))
		if err := work.Add(ctx, len(found)); err != nil {
			return nil, err
		}
	}
	for _, number := range c.values[known:] {
		if err := work.Add(ctx, 1); err != nil { // a match may take a second
			return nil, err
		}
		if m.Matches(x.symbols.value(number)) == want {
			found = append(found, number)
		}
	}
	if c.remember && known < len(c.values) {
		x.patterns.put(key, len(c.values), found)
	}
	return found, nil
}

// values returns a name, nil if there is none, and the numbers of its values in the order of arrival.
func (x *Index) values(label string) (*name, []uint32) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if n := x.symbols.names[label]; n != nil {
		return n, n.values
	}
	return nil, nil
}

// without removes, in place, the ids that are also in others. Both are sorted.
func without(ctx context.Context, ids, others []metric.ScheduleID) ([]metric.ScheduleID, error) {
	out := ids[:0]
	for i, id := range ids {
		if err := ended(ctx, i); err != nil {
			return nil, err
		}
		for len(others) > 0 && others[0] < id {
			others = others[1:]
		}
		if len(others) == 0 || others[0] != id {
			out = append(out, id)
		}
	}
	return out, nil
}
