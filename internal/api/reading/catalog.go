package reading

import (
	"cmp"
	"context"
	"math"
	"net/http"
	"strconv"

	"github.com/prometheus/prometheus/model/labels"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/wire"
)

// Catalog has the endpoints that say what series and sources there are.
type Catalog struct {
	opts CatalogOptions
}

// CatalogOptions configure a Catalog. All but Turns are required.
type CatalogOptions struct {
	Querier  *query.Querier
	Registry *registry.Registry
	// Labels say which label names the source of a series.
	Labels metric.SourceLabels
	// SinceMs is when the process began to take samples, in Unix ms.
	SinceMs int64
	// Turns bound how many requests are answered at once. The default bounds nothing.
	Turns Turns
}

// NewCatalog makes the endpoints.
func NewCatalog(opts CatalogOptions) *Catalog { return &Catalog{opts} }

// Register implements api.Registrar.
func (h *Catalog) Register(to *route.Table) {
	cardinality := h.opts.Turns.query(document(h.cardinality), "match[]", "label", "limit", "days")
	to.Handle(access.Read, route.Filtered, "GET "+wire.CardinalityPath, cardinality)
	to.Handle(access.Read, route.Filtered, "POST "+wire.CardinalityPath, cardinality)
	to.Handle(access.Read, route.Filtered, "GET "+wire.SourcesPath, h.opts.Turns.query(document(h.sources), "source", "derived", "sort", "limit"))
}

// listed is how many entries a list has unless the request says otherwise.
const listed = 20

// number parses a whole number from 1 to most.
func number(r *http.Request, name string, absent, most int) (int, error) {
	s := r.Form.Get(name)
	if s == "" {
		return absent, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || n > most {
		return 0, badParameter(name, s, "a whole number from 1 to "+strconv.Itoa(most))
	}
	return n, nil
}

func (h *Catalog) cardinality(r *http.Request) (any, error) {
	limit, err := number(r, "limit", listed, query.MaxTop)
	if err != nil {
		return nil, err
	}
	days, err := number(r, "days", 0, query.MaxDays)
	if err != nil {
		return nil, err
	}
	ctx := query.WithWork(r.Context(), new(query.Work))
	var sels []query.Selector
	if texts := r.Form["match[]"]; len(texts) > 0 {
		if sels, err = query.ParseSelectors(r.Context(), texts); err != nil {
			return nil, err
		}
	}
	var warn query.Warnings
	c, err := h.opts.Querier.Cardinality(ctx, limit, r.Form.Get("label"), &warn, sels...)
	if err != nil {
		return nil, err
	}
	reply := wire.Cardinality{
		Series: c.Series, LabelNames: c.Labels, LabelPairs: c.Pairs, Metrics: named(c.ByMetric), Sources: named(c.BySource),
		Labels: make([]wire.LabelSeries, len(c.ByValues)), Values: make([]wire.ValueSeries, len(c.ByPair)),
	}
	for i, l := range c.ByValues {
		reply.Labels[i] = wire.LabelSeries(l)
	}
	for i, p := range c.ByPair {
		reply.Values[i] = wire.ValueSeries{Label: p.Name, Value: p.Value, Series: p.Series}
	}
	if days > 0 {
		found, sinceMs, err := h.opts.Querier.Days(ctx, days, &warn, sels...)
		if err != nil {
			return nil, err
		}
		reply.MetSince = sinceMs
		for _, d := range found {
			reply.Days = append(reply.Days, wire.DaySeries{Start: d.StartMs, Last: d.Last, Met: d.Met})
		}
	}
	reply.Warnings = warn.List()
	return reply, nil
}

func named(all []query.PairCount) []wire.NameSeries {
	out := make([]wire.NameSeries, len(all))
	for i, p := range all {
		out[i] = wire.NameSeries{Name: p.Value, Series: p.Series}
	}
	return out
}

// orders are the orders of sources, by the parameter sort. Sources that are equal are ordered by name.
var orders = map[string]func(a, b wire.Source) int{
	"samples": func(a, b wire.Source) int { return cmp.Compare(b.Samples, a.Samples) },
	"bytes":   func(a, b wire.Source) int { return cmp.Compare(b.Bytes, a.Bytes) },
	"series":  func(a, b wire.Source) int { return cmp.Compare(b.Series, a.Series) },
	"last":    func(a, b wire.Source) int { return cmp.Compare(lastMs(b), lastMs(a)) },
	"silent":  func(a, b wire.Source) int { return cmp.Compare(lastMs(a), lastMs(b)) },
	"name":    func(wire.Source, wire.Source) int { return 0 },
}

func lastMs(s wire.Source) int64 {
	if s.Last == nil {
		return math.MinInt64
	}
	return *s.Last
}

func (h *Catalog) sources(r *http.Request) (any, error) {
	limit, err := number(r, "limit", listed, query.MaxTop)
	if err != nil {
		return nil, err
	}
	derived, err := flag(r, "derived")
	if err != nil {
		return nil, err
	}
	by := cmp.Or(r.Form.Get("sort"), "samples")
	first, ok := orders[by]
	if !ok {
		return nil, badParameter("sort", by, "samples, bytes, series, last, silent or name")
	}
	if r.Form.Has("source") {
		return h.one(r.Context(), r.Form.Get("source"), derived, limit)
	}
	return h.all(r.Context(), limit, func(a, b wire.Source) int {
		return cmp.Or(first(a, b), cmp.Compare(a.Name, b.Name), cmp.Compare(strconv.FormatBool(a.Derived), strconv.FormatBool(b.Derived)))
	})
}

func source(t registry.Taken) wire.Source {
	out := wire.Source{Name: t.Name, Derived: t.Derived, Series: t.Series, Samples: t.Samples, Bytes: t.Bytes}
	if t.LastMs > 0 {
		out.Last = &t.LastMs
	}
	return out
}

// sourceBytes is what a source takes in the list that is made.
const sourceBytes = 2 * 96

// all returns the first sources by an order: those in memory, with what was taken of them, and those of which only the
// series are known.
func (h *Catalog) all(ctx context.Context, limit int, order func(a, b wire.Source) int) (wire.Sources, error) {
	reg, warn := h.opts.Registry, new(query.Warnings)
	if err := limits.Charge(ctx, reg.SourcesBytes()+int64(limit*sourceBytes)); err != nil {
		return wire.Sources{}, err
	}
	h.opts.Querier.WarnUnread(warn)
	reply := wire.Sources{Since: h.opts.SinceMs}
	top := query.NewTop(limit, order)
	add := func(s wire.Source) {
		reply.Total++
		top.Add(s)
	}
	if bound.FromContext(ctx) != nil {
		err := h.opts.Querier.EachSource(ctx, h.opts.Labels, func(name query.SourceName, series int) {
			add(h.bound(name, series))
		})
		reply.Sources, reply.Warnings = top.List(), warn.List()
		return reply, err
	}
	reply.Forgotten = reg.Sources(func(t registry.Taken) bool {
		add(source(t))
		return ctx.Err() == nil
	})
	if ctx.Err() != nil {
		return reply, context.Cause(ctx)
	}
	if err := h.opts.Querier.EachValue(ctx, metric.SourceLabel, func(name string, series int) {
		if !reg.HasSource(name, false) { // a derived source of that name has no such label, and is another one
			add(wire.Source{Name: name, Series: series})
		}
	}); err != nil {
		return reply, err
	}
	reply.Sources, reply.Warnings = top.List(), warn.List()
	return reply, nil
}

// bound returns a source for a client that may have some series of it. What was taken of the source is told if these
// are all that it has: the numbers are those of the source.
func (h *Catalog) bound(src query.SourceName, series int) wire.Source {
	if taken, _, ok := h.opts.Registry.SourceTaken(src.Name, src.Derived); ok && taken.Series == series {
		return source(taken)
	}
	return wire.Source{Name: src.Name, Derived: src.Derived, Series: series}
}

// one returns a source with its metrics.
func (h *Catalog) one(ctx context.Context, name string, derived bool, limit int) (wire.Sources, error) {
	q, warn := h.opts.Querier, new(query.Warnings)
	reply := wire.Sources{Since: h.opts.SinceMs, Sources: []wire.Source{}}
	taken, ids, known := h.opts.Registry.SourceTaken(name, derived)
	var c *query.Cardinality
	var err error
	switch {
	case known:
		if err = limits.Charge(ctx, int64(8*len(ids))); err == nil {
			c, err = q.CardinalityOf(ctx, limit, ids)
		}
	case derived: // nothing but its series tell its name
		return reply, nil
	default:
		var m *labels.Matcher
		if m, err = labels.NewMatcher(labels.MatchEqual, metric.SourceLabel, name); err == nil {
			c, err = q.Cardinality(ctx, limit, "", warn, query.Selector{m})
			taken = registry.Taken{Name: name}
		}
	}
	if err != nil {
		return reply, err
	}
	if bound.FromContext(ctx) != nil && taken.Series != c.Series {
		taken = registry.Taken{Name: name, Derived: derived}
	}
	if taken.Series = c.Series; c.Series > 0 {
		reply.Total, reply.Sources, reply.Metrics = 1, []wire.Source{source(taken)}, named(c.ByMetric)
	}
	reply.Warnings = warn.List()
	return reply, nil
}
