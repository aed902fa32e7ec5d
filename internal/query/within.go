package query

import (
	"context"
	"slices"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/metric"
)

// A request whose token is bound to some series, see bound.Of, finds no others: the index leaves them out of all that it
// is asked for with the context of a request. Each question by selectors goes through Select or matched. Whoever brings
// ids from elsewhere has them cut by within.

// bounded returns the selectors of a request together with what it is restricted to: a series matches any of them if it
// matches any of sels and any of the bound's.
func bounded(ctx context.Context, sels []Selector) []Selector {
	b := bound.FromContext(ctx)
	if b == nil {
		return sels
	}
	out := make([]Selector, 0, len(sels)*len(b.Selectors()))
	for _, sel := range sels {
		for _, must := range b.Selectors() {
			out = append(out, slices.Concat(sel, must))
		}
	}
	return out
}

// within keeps, in place, the ids of series that the request may have.
func (x *Index) within(ctx context.Context, ids []metric.ScheduleID) ([]metric.ScheduleID, error) {
	b := bound.FromContext(ctx)
	if b == nil {
		return ids, nil
	}
	out, work := ids[:0], workOf(ctx)
	for _, id := range ids {
		if err := work.Add(ctx, 1); err != nil {
			return nil, err
		}
		if b.Has(x.Packed(id).Get) {
			out = append(out, id)
		}
	}
	return out, nil
}

// all returns selectors that match all series that a request may have, if it is restricted; ok is false if it is not.
func all(ctx context.Context) (sels []Selector, ok bool) {
	b := bound.FromContext(ctx)
	if b == nil {
		return nil, false
	}
	for _, must := range b.Selectors() {
		sels = append(sels, must)
	}
	return sels, true
}

// Within returns the number of series that a request may have.
func (x *Index) Within(ctx context.Context) (int, error) {
	if bound.FromContext(ctx) == nil {
		return x.Len(), nil
	}
	ids, err := x.matched(ctx, nil)
	return len(ids), err
}

// SourceName is a source, or the value of the label that stands for one.
type SourceName struct {
	Name    string
	Derived bool
}

// EachSource calls visit for each source of the series that a request may have, in no order, with the number of these
// series. sources say which label names the source of a series. The error is as for Cardinality.
func (q *Querier) EachSource(ctx context.Context, sources metric.SourceLabels, visit func(source SourceName, series int)) error {
	ids, err := q.index.matched(ctx, nil)
	if err != nil {
		return err
	}
	found, held := make(map[SourceName]int), words{ctx: ctx}
	var ls metric.Labels
	for i, id := range ids {
		if err := ended(ctx, i); err != nil {
			return err
		}
		ls = q.index.Packed(id).appendTo(ls[:0])
		var source SourceName
		source.Name, source.Derived, _ = sources.SourceOf(ls)
		if found[source]++; found[source] > 1 {
			continue
		}
		if err := held.hold(1, wordInSetBytes); err != nil {
			return err
		}
	}
	for source, n := range found {
		visit(source, n)
	}
	return nil
}
