package ingest

import (
	"fmt"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/wire/excerpt"
)

// denied returns why the request may not write the series of a measurement. The series is not looked up then, so nothing is known
// of it afterwards.
func (r *resolver) denied(rep *Report, m *Measurement) flaw {
	if r.bound == nil {
		return flaw{}
	}
	get := func(name string) string {
		switch {
		case name == metric.NameLabel:
			return m.Metric
		case name == metric.SourceLabel && !rep.Derived:
			return rep.Source
		}
		return metric.Labels(r.labels.sorted).Get(name)
	}
	if r.bound.Has(get) {
		return flaw{}
	}
	lacks := r.bound.Lacks(get)
	return flaw{ReasonForbidden, fmt.Sprintf("metric %s: label %s is %s, and the token may write only %s",
		excerpt.Shorten(m.Metric), lacks, excerpt.Quoted(get(lacks)), r.bound)}
}

// assign gives ids to the newcomers, none or NoID to those that a limit forbids.
func (r *resolver) assign() error {
	if r.bound == nil || r.bound.MaxSeries() == 0 {
		return r.in.registry.Register(r.held.ctx, r.newcomers)
	}
	total := 0
	for _, g := range r.newcomers {
		total += len(g.Series)
	}
	room, err := r.bound.Room(total, r.in.clk.Elapsed(), func() (int, error) { return r.in.opts.Within(r.held.ctx) })
	if err != nil {
		return err
	}
	left, made := room, 0
	for _, g := range r.newcomers {
		g.Series = g.Series[:min(left, len(g.Series))]
		left -= len(g.Series)
	}
	defer func() { r.bound.Unused(room - made) }()
	if err := r.in.registry.Register(r.held.ctx, r.newcomers); err != nil {
		return err
	}
	for _, g := range r.newcomers {
		for _, id := range g.IDs {
			if id != registry.NoID {
				made++
			}
		}
	}
	return nil
}

// limit says why series of some newcomers have no ids.
func (r *resolver) limit(g *registry.Newcomers) error {
	if g.Refused != nil {
		return g.Refused
	}
	return &fullError{r.bound}
}

// fullError says that there are as many series as the token may have.
type fullError struct{ bound *bound.Bound }

// Error implements error.
func (e *fullError) Error() string {
	return fmt.Sprintf("there are %d series of %s, the most that the token may make", e.bound.MaxSeries(), e.bound)
}
