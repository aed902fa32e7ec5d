package ingest

import (
	"fmt"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/wire/excerpt"
)

// denies rejects a measurement of a series that the request may not write. It is not looked up, so nothing is known of
// it afterwards.
func (r *resolver) denies(rep *Report, m *Measurement, index int) bool {
	if r.bound == nil {
		return false
	}
	get := func(name string) string {
		switch {
		case name == metric.NameLabel:
			return m.Metric
		case name == metric.SourceLabel && !rep.Derived:
			return rep.Source
		}
		return metric.Labels(r.labels).Get(name)
	}
	if r.denied == nil || !m.sameSeries(r.denied) {
		if r.bound.Has(get) {
			return false
		}
		r.denied, r.lacks = m, r.bound.Lacks(get)
	}
	r.reject(index, ReasonForbidden, "metric %s: label %s is %s, and the token may write only %s",
		excerpt.Of(m.Metric), r.lacks, excerpt.Quoted(get(r.lacks)), r.bound)
	return true
}

// assign gives ids to the newcomers, NoID to those that a limit forbids.
func (r *resolver) assign(held *hold) error {
	if r.bound == nil || r.bound.MaxSeries() == 0 {
		return held.in.registry.Register(held.ctx, r.newcomers)
	}
	// A series may be there several times, and takes one place.
	distinct, places := make([]*registry.Newcomers, len(r.newcomers)), make([][]int, len(r.newcomers))
	total := 0
	for i, g := range r.newcomers {
		distinct[i], places[i] = eachOnce(g)
		total += len(distinct[i].Series)
	}
	room, err := r.bound.Room(total, held.in.clk.Elapsed(), func() (int, error) { return held.in.opts.Within(held.ctx) })
	if err != nil {
		return err
	}
	left := room
	for _, d := range distinct {
		d.Series = d.Series[:min(left, len(d.Series))]
		left -= len(d.Series)
	}
	made := 0
	defer func() { r.bound.Unused(room - made) }()
	if err := held.in.registry.Register(held.ctx, distinct); err != nil {
		return err
	}
	for i, g := range r.newcomers {
		d := distinct[i]
		for _, id := range d.IDs {
			if id != registry.NoID {
				made++
			}
		}
		g.Refused = d.Refused
		for _, at := range places[i] {
			id := registry.NoID
			if at < len(d.IDs) {
				id = d.IDs[at]
			}
			g.IDs = append(g.IDs, id)
		}
	}
	return nil
}

// eachOnce returns newcomers without those that are there again, and where each has its place.
func eachOnce(g *registry.Newcomers) (distinct *registry.Newcomers, places []int) {
	distinct = &registry.Newcomers{Source: g.Source}
	known, key := make(map[string]int), []byte(nil)
	for _, ls := range g.Series {
		key = ls.AppendKey(key[:0])
		at, ok := known[string(key)]
		if !ok {
			at = len(distinct.Series)
			known[string(key)], distinct.Series = at, append(distinct.Series, ls)
		}
		places = append(places, at)
	}
	return distinct, places
}

// limit says why series of some newcomers have no ids.
func (r *resolver) limit(g *registry.Newcomers) error {
	if g.Refused != nil {
		return g.Refused
	}
	return &fullError{r.bound}
}

// fullError says that there are as many series as the token may have.
type fullError struct{ of *bound.Bound }

// Error implements error.
func (e *fullError) Error() string {
	return fmt.Sprintf("there are %d series of %s, the most that the token may make", e.of.MaxSeries(), e.of)
}
