package promquery

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// Queryable makes Quern readable for Prometheus' engine and API. It returns raw samples, except for
// selectors that an Engine has prepared; for these it returns what the preparation says. It is safe for
// concurrent use.
type Queryable struct {
	q          *query.Querier
	maxSamples int64
	watch      *watch
	prep       *preparation // nil, except in queries of an Engine
}

var _ storage.Queryable = (*Queryable)(nil)

// during returns the storage for one prepared query.
func (s *Queryable) during(p *preparation) *Queryable {
	p.account.most = s.maxSamples
	return &Queryable{q: s.q, maxSamples: s.maxSamples, watch: s.watch, prep: p}
}

// Querier implements storage.Queryable.
func (s *Queryable) Querier(mint, maxt int64) (storage.Querier, error) {
	q := &querier{Queryable: s, mint: mint, maxt: maxt}
	if s.prep != nil {
		q.account = s.prep.account
	} else {
		q.account = &account{most: s.maxSamples}
	}
	return q, nil
}

type querier struct {
	*Queryable
	mint, maxt int64
	account    *account

	mu      sync.Mutex
	cancels []context.CancelFunc
	reads   sync.WaitGroup

	// found caches the results of selectors by what they ask for: an expression may repeat a
	// selector many times.
	found map[string]*found
	// named are the labels of series, by ids.
	named map[metric.ScheduleID]*labels.Labels
	// matches counts the series held for all selectors; see query.Querier.Bound.
	matches int
	// work is what all selectors look at.
	work query.Work
}

// Close implements storage.LabelQuerier. It cancels reads that are still running.
func (q *querier) Close() error {
	q.mu.Lock()
	for _, cancel := range q.cancels {
		cancel()
	}
	q.mu.Unlock()
	q.reads.Wait()
	return nil
}

// LabelValues implements storage.LabelQuerier. It returns the values of series that lived
// from mint to maxt.
func (q *querier) LabelValues(
	ctx context.Context, name string, hints *storage.LabelHints, matchers ...*labels.Matcher,
) ([]string, annotations.Annotations, error) {
	warn := new(query.Warnings)
	values, err := q.q.LabelValues(query.WithWork(ctx, &q.work), q.mint, q.maxt, warn, name, selectors(matchers)...)
	return atMost(hints, values), annotated(warn), asStored(err)
}

// LabelNames implements storage.LabelQuerier. It looks at the same series as LabelValues.
func (q *querier) LabelNames(
	ctx context.Context, hints *storage.LabelHints, matchers ...*labels.Matcher,
) ([]string, annotations.Annotations, error) {
	warn := new(query.Warnings)
	names, err := q.q.LabelNames(query.WithWork(ctx, &q.work), q.mint, q.maxt, warn, selectors(matchers)...)
	return atMost(hints, names), annotated(warn), asStored(err)
}

func selectors(matchers []*labels.Matcher) []query.Selector {
	if len(matchers) == 0 {
		return nil
	}
	return []query.Selector{matchers}
}

func atMost(hints *storage.LabelHints, words []string) []string {
	if hints != nil && hints.Limit > 0 && len(words) > hints.Limit {
		return words[:hints.Limit]
	}
	return words
}

// Select implements storage.Querier. It reads no samples before a series is asked for them; then it
// reads the series' whole group. The set has all matching series, also those without samples in the
// time range. Only for the series API (hint "series") it leaves out series that did not live
// from hints.Start to hints.End.
func (q *querier) Select(
	ctx context.Context, sortSeries bool, hints *storage.SelectHints, matchers ...*labels.Matcher,
) storage.SeriesSet {
	warn := new(query.Warnings)
	if q.prep != nil {
		warn = &q.prep.warnings
	}
	found, err := q.find(ctx, hints, warn, matchers)
	if err != nil {
		return storage.ErrSeriesSet(err)
	}
	mint, maxt, limit := q.mint, q.maxt, 0
	if hints != nil {
		mint, maxt, limit = hints.Start, hints.End, hints.Limit
	}
	series := found.refs()
	if sortSeries {
		slices.SortFunc(series, func(a, b *foundSeries) int { return a.stored.Compare(b.stored) })
	}
	if limit > 0 && len(series) > limit {
		series = slices.Clone(series[:limit])
	}
	ctx, cancel := context.WithCancel(ctx)
	q.mu.Lock()
	q.cancels = append(q.cancels, cancel)
	q.mu.Unlock()
	// For timestamp(), the engine takes the iterators of all series at once.
	keep := sortSeries || hints != nil && hints.Func == "timestamp"
	warn = q.prep.reads(matchers).Warnings(warn)
	asked := q.prep.selection(matchers)
	l := newLoader(ctx, &q.reads, found.groups, q.account, keep)
	if r := asked.rows; r != nil {
		l.read = (&rows{reading: r, q: q.q, warn: warn}).read
	} else {
		l.windowed = asked.windows
		// The engine evaluates one series after the other.
		l.recycles = q.prep != nil && !keep
		s := samples{mint: mint, maxt: maxt, windows: l.windowed != nil, alone: len(found.groups) == 1, recycles: l.recycles, warn: warn}
		if w := l.windowed; w != nil {
			s.mint, s.maxt = w.grid.startMs-w.rangeMs+1, w.grid.last()
		}
		l.read = s.read
		if w := l.windowed; w != nil && w.rows != nil {
			l.exact = &exact{reading: w.rows, raw: &s, q: q.q, most: q.account.most / 2}
		}
	}
	return &set{ctx: ctx, all: series, at: -1, warn: warn, loader: l}
}

// find returns the series that the matchers select and the hints allow. The error is a
// *query.RequestError, the cause of ctx's end, or the store's.
func (q *querier) find(ctx context.Context, hints *storage.SelectHints, warn *query.Warnings, matchers []*labels.Matcher) (*found, error) {
	if err := ctx.Err(); err != nil { // the engine still asks other selectors after one has failed
		return nil, err
	}
	if err := q.q.Bound(q.matches); err != nil {
		return nil, err
	}
	listed := hints != nil && hints.Func == "series"
	var key strings.Builder
	if listed {
		fmt.Fprint(&key, hints.Start, ",", hints.End)
	}
	for _, m := range matchers {
		key.WriteByte(',')
		key.WriteString(m.String())
	}
	if f := q.found[key.String()]; f != nil {
		n := len(f.series)
		if hints != nil && hints.Limit > 0 {
			n = min(n, hints.Limit)
		}
		q.matches += n
		return f, cmp.Or(q.q.Bound(q.matches), q.makes(f))
	}
	q.q.WarnUnread(warn)
	var groups []query.Group
	var err error
	working := query.WithWork(ctx, &q.work)
	if listed {
		groups, err = q.q.GroupsLived(working, hints.Start, hints.End, warn, matchers)
	} else {
		groups, err = q.q.Groups(working, matchers)
	}
	if err != nil {
		return nil, err
	}
	f := &found{groups: groups}
	n := 0
	for _, g := range groups {
		n += len(g.IDs())
	}
	q.matches += n
	if err := q.q.Bound(q.matches); err != nil {
		return nil, err
	}
	name := q.name
	if listed { // the labels of one series at a time
		name = func(metric.ScheduleID) *labels.Labels { return nil }
	}
	if f.series, err = seriesOf(ctx, groups, name); err != nil {
		return nil, err
	}
	if err := q.makes(f); err != nil {
		return nil, err
	}
	if q.found == nil {
		q.found = make(map[string]*found)
	}
	q.found[key.String()] = f
	return f, nil
}

// makes returns an error if the functions of the expression may make too many labels of what a selector has found.
func (q *querier) makes(f *found) error {
	if q.prep == nil {
		return nil
	}
	return q.prep.made.over(f.series, q.maxSamples)
}

// name returns where the labels of a series are converted to, for all selectors of a query.
func (q *querier) name(id metric.ScheduleID) *labels.Labels {
	named := q.named[id]
	if named == nil {
		if q.named == nil {
			q.named = make(map[metric.ScheduleID]*labels.Labels)
		}
		named = new(labels.Labels)
		q.named[id] = named
	}
	return named
}
