package query

import (
	"cmp"
	"context"
	"math"
	"slices"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
)

// MaxTop bounds each list of a Cardinality.
const MaxTop = 10_000

// topBytes is what an entry of a list takes, while the list is made.
const topBytes = 2 * 64

// Cardinality says how many series have which labels. Series without any data left count, too. The lists have the
// largest numbers first.
type Cardinality struct {
	// Series, Labels and Pairs are the numbers of all series, label names, and pairs of a name and a value.
	Series, Labels, Pairs int
	// ByValues and ByBytes are the labels with the most values, and with the most memory.
	ByValues, ByBytes []LabelCount
	// ByPair are the pairs with the most series, ByMetric and BySource those of the metric's name and of the source.
	ByPair, ByMetric, BySource []PairCount
}

// LabelCount is a label.
type LabelCount struct {
	Name string
	// Values is the number of its values, Series that of the series that have it.
	Values, Series int
	// Bytes is what it takes in memory in all these series, by the estimate of Index.Bytes.
	Bytes int64
}

// PairCount is a value of a label.
type PairCount struct {
	Name, Value string
	Series      int
}

// Cardinality counts the series that match any of the selectors, or all series if there are none. Each list has at most
// limit entries. ByPair is about the given label only, unless label is "". What it takes is charged to the request of
// ctx. For all series the cost grows with the number of values, otherwise with that of the series and their labels. The
// error is a *RequestError, limits.ErrNoRoom, or the cause of ctx's end.
func (q *Querier) Cardinality(ctx context.Context, limit int, label string, warn *Warnings, sels ...Selector) (*Cardinality, error) {
	if limit < 1 || limit > MaxTop {
		return nil, badRequest("limit must be between 1 and %d", MaxTop)
	}
	q.WarnUnread(warn)
	if err := limits.Charge(ctx, int64(5*limit*topBytes)); err != nil {
		return nil, err
	}
	c := newCounting(limit, label)
	if len(sels) == 0 && bound.FromContext(ctx) == nil {
		c.out.Series = q.index.Len()
		return c.result(q.index.countAll(ctx, c.add))
	}
	ids, err := q.index.matched(ctx, sels)
	if err != nil {
		return nil, err
	}
	c.out.Series = len(ids)
	return c.result(q.index.countIDs(ctx, ids, c.add))
}

// CardinalityOf is Cardinality of series by their ids, of which it keeps none. It counts those that the request may have.
func (q *Querier) CardinalityOf(ctx context.Context, limit int, ids []metric.ScheduleID) (*Cardinality, error) {
	if limit < 1 || limit > MaxTop {
		return nil, badRequest("limit must be between 1 and %d", MaxTop)
	}
	if err := limits.Charge(ctx, int64(5*limit*topBytes)); err != nil {
		return nil, err
	}
	ids, err := q.index.within(ctx, slices.Clone(ids))
	if err != nil {
		return nil, err
	}
	c := newCounting(limit, "")
	c.out.Series = len(ids)
	return c.result(q.index.countIDs(ctx, ids, c.add))
}

// MaxDays bounds the days of Days.
const MaxDays = 31

// DayCount is about series on one UTC day.
type DayCount struct {
	StartMs int64
	// Last is the number of series whose last sample is of this day: those that have vanished after it, unless it is
	// today.
	Last int
	// Met is the number of series that the index met on this day, since CountNew.
	Met int
}

// Days counts the series that match any of the selectors, or all series if there are none, by the days of their last
// samples: those of the last n days, today included, oldest first. It looks for the series that are not known to have
// samples, see Lived: the first time after a start, that reads rows of all series that do not report any more. sinceMs
// is the time of CountNew, 0 without it. The error is as for Cardinality, or the store's.
func (q *Querier) Days(ctx context.Context, n int, warn *Warnings, sels ...Selector) (all []DayCount, sinceMs int64, err error) {
	if n < 1 || n > MaxDays {
		return nil, 0, badRequest("days must be between 1 and %d", MaxDays)
	}
	if err := limits.Charge(ctx, int64(q.index.Len())*daysBytes); err != nil {
		return nil, 0, err
	}
	ids, err := q.index.matched(ctx, sels)
	if err != nil {
		return nil, 0, err
	}
	today := dayOf(q.nowMs())
	all = make([]DayCount, n)
	met, sinceMs := q.index.metOn(ids)
	rest := slices.Clone(ids)
	for i := range slices.Backward(all) {
		day := today - int32(n-1-i)
		seen, err := q.seen(ctx, after, rest, max(day, q.firstDay()), warn)
		if err != nil {
			return nil, 0, err
		}
		all[i] = DayCount{StartMs: startMs(day), Last: len(seen), Met: met[day]}
		if rest, err = without(ctx, rest, seen); err != nil {
			return nil, 0, err
		}
	}
	return all, sinceMs, nil
}

// daysBytes is what a series takes while days are counted: its id, in four lists.
const daysBytes = 32

// metOn counts the series that were met on each day.
func (x *Index) metOn(ids []metric.ScheduleID) (on map[int32]int, sinceMs int64) {
	on = make(map[int32]int)
	for some := range slices.Chunk(ids, countsAtOnce) {
		x.mu.RLock()
		for _, id := range some {
			if day := x.met.day(id); day != 0 {
				on[day]++
			}
		}
		x.mu.RUnlock()
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return on, x.sinceMs
}

// NewestMs returns the time of the newest sample that this process has taken, 0 if there is none, or if the request may
// not have all series.
func (q *Querier) NewestMs(ctx context.Context) int64 {
	if bound.FromContext(ctx) != nil {
		return 0
	}
	return q.opts.Sightings.newest()
}

// WholeFromMs returns the time from which all raw samples are kept, math.MinInt64 if none expires.
func (q *Querier) WholeFromMs() int64 { return q.sinceMs(metric.Raw, math.MinInt64) }

// counting is a Cardinality that is being counted.
type counting struct {
	label                      string
	out                        Cardinality
	labels                     map[*name]*LabelCount
	byValues, byBytes          *Top[LabelCount]
	byPair, byMetric, bySource *Top[PairCount]
}

func newCounting(limit int, label string) *counting {
	pairs := func() *Top[PairCount] {
		return NewTop(limit, func(a, b PairCount) int {
			return cmp.Or(cmp.Compare(b.Series, a.Series), cmp.Compare(a.Name, b.Name), cmp.Compare(a.Value, b.Value))
		})
	}
	return &counting{
		label: label, labels: make(map[*name]*LabelCount),
		byValues: NewTop(limit, func(a, b LabelCount) int {
			return cmp.Or(cmp.Compare(b.Values, a.Values), cmp.Compare(a.Name, b.Name))
		}),
		byBytes: NewTop(limit, func(a, b LabelCount) int {
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Name, b.Name))
		}),
		byPair: pairs(), byMetric: pairs(), bySource: pairs(),
	}
}

// add counts that n series have a label.
func (c *counting) add(l *symbol, n int) {
	count := c.labels[l.name]
	if count == nil {
		count = &LabelCount{Name: l.name.text, Bytes: int64(nameBytes + len(l.name.text))}
		c.labels[l.name] = count
	}
	count.Values++
	count.Series += n
	count.Bytes += int64(valueBytes+len(l.value)) + int64(n)*labelBytes
	if n > 1 {
		count.Bytes += gapsBytes
	}
	c.out.Pairs++
	p := PairCount{count.Name, l.value, n}
	if c.label == "" || c.label == count.Name {
		c.byPair.Add(p)
	}
	switch count.Name {
	case metric.NameLabel:
		c.byMetric.Add(p)
	case metric.SourceLabel:
		c.bySource.Add(p)
	}
}

func (c *counting) result(err error) (*Cardinality, error) {
	if err != nil {
		return nil, err
	}
	c.out.Labels = len(c.labels)
	for _, count := range c.labels {
		c.byValues.Add(*count)
		c.byBytes.Add(*count)
	}
	c.out.ByValues, c.out.ByBytes = c.byValues.List(), c.byBytes.List()
	c.out.ByPair, c.out.ByMetric, c.out.BySource = c.byPair.List(), c.byMetric.List(), c.bySource.List()
	return &c.out, nil
}

// EachValue calls visit for each value of a label and the number of series that have it, in no order. The error is as for
// Cardinality.
func (q *Querier) EachValue(ctx context.Context, label string, visit func(value string, series int)) error {
	if bound.FromContext(ctx) == nil {
		return q.index.countValues(ctx, label, func(l *symbol, n int) { visit(l.value, n) })
	}
	ids, err := q.index.matched(ctx, nil)
	if err != nil {
		return err
	}
	return q.index.countIDs(ctx, ids, func(l *symbol, n int) {
		if l.name.text == label {
			visit(l.value, n)
		}
	})
}

// countAll calls visit for each label and the number of series that have it.
func (x *Index) countAll(ctx context.Context, visit func(l *symbol, n int)) error {
	names, err := x.names(ctx)
	if err != nil {
		return err
	}
	if err := limits.Charge(ctx, int64(len(names))*wordInSetBytes); err != nil {
		return err
	}
	for _, name := range names {
		if err := x.countValues(ctx, name, visit); err != nil {
			return err
		}
	}
	return nil
}

// countsAtOnce is how many values are counted before writers of the index get their turn.
const countsAtOnce = 1024

// countValues is countAll for the labels with one name.
func (x *Index) countValues(ctx context.Context, name string, visit func(l *symbol, n int)) error {
	work := workOf(ctx)
	counts := make([]int, countsAtOnce)
	_, values := x.values(name)
	for some := range slices.Chunk(values, countsAtOnce) {
		if err := work.Add(ctx, len(some)); err != nil {
			return err
		}
		x.mu.RLock()
		for i, number := range some {
			counts[i] = x.symbols.symbol(number).ids.Len()
		}
		x.mu.RUnlock()
		for i, number := range some {
			if counts[i] > 0 { // otherwise the series have other labels now
				visit(x.symbols.symbol(number), counts[i])
			}
		}
	}
	return nil
}

// countIDs calls visit for each label of series and the number of these that have it, in no order.
func (x *Index) countIDs(ctx context.Context, ids []metric.ScheduleID, visit func(l *symbol, n int)) error {
	counts, held := make(map[uint32]int), words{ctx: ctx}
	work := workOf(ctx)
	for _, id := range ids {
		refs := x.pages.refs(id)
		if err := work.Add(ctx, len(refs)); err != nil {
			return err
		}
		for _, ref := range refs {
			number := ref &^ lastRef
			if counts[number]++; counts[number] > 1 {
				continue
			}
			if err := held.hold(1, wordInSetBytes); err != nil {
				return err
			}
		}
	}
	for number, n := range counts {
		visit(x.symbols.symbol(number), n)
	}
	return nil
}

// Top keeps the first values by an order.
type Top[T any] struct {
	limit   int
	compare func(a, b T) int
	all     []T
	// cut says that the first limit values are in order, and that others have been left out.
	cut bool
}

// NewTop returns a Top of at most limit values.
func NewTop[T any](limit int, compare func(a, b T) int) *Top[T] {
	return &Top[T]{limit: limit, compare: compare}
}

// Add adds a value.
func (t *Top[T]) Add(v T) {
	if t.cut && t.compare(v, t.all[t.limit-1]) > 0 {
		return
	}
	if t.all = append(t.all, v); len(t.all) == 2*t.limit {
		t.all, t.cut = t.List(), true
	}
}

// List returns the values in order, never nil.
func (t *Top[T]) List() []T {
	if t.all == nil {
		t.all = []T{}
	}
	slices.SortFunc(t.all, t.compare)
	return t.all[:min(len(t.all), t.limit)]
}
