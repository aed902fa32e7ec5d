package ingest

import (
	"errors"
	"fmt"

	"github.com/quern/quern/internal/bound"
	"github.com/quern/quern/internal/excerpt"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
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

// assign gives ids to the new series of a source, NoID to those that a limit forbids. limit says which one.
func (r *resolver) assign(held *hold, source *registry.Source) (ids []metric.ScheduleID, limit, err error) {
	register := func(series []metric.Labels) ([]metric.ScheduleID, error) {
		ids, err := source.Register(held.ctx, series)
		if forbids := (*registry.LimitError)(nil); errors.As(err, &forbids) {
			limit, err = forbids, nil
		}
		return ids, err
	}
	if r.bound == nil || r.bound.MaxSeries() == 0 {
		ids, err = register(r.series)
		return ids, limit, err
	}
	// A series may be there several times, and takes one place.
	place := make([]int, len(r.series))
	places, distinct, key := make(map[string]int), []metric.Labels(nil), []byte(nil)
	for i, ls := range r.series {
		key = ls.AppendKey(key[:0])
		at, known := places[string(key)]
		if !known {
			at = len(distinct)
			places[string(key)], distinct = at, append(distinct, ls)
		}
		place[i] = at
	}
	room, err := r.bound.Room(len(distinct), held.in.clk.Elapsed(), func() (int, error) { return held.in.opts.Within(held.ctx) })
	if err != nil {
		return nil, nil, err
	}
	made := 0
	defer func() { r.bound.Unused(room - made) }()
	got, err := register(distinct[:room])
	if err != nil {
		return nil, nil, err
	}
	for _, id := range got {
		if id != registry.NoID {
			made++
		}
	}
	if room < len(distinct) && limit == nil {
		limit = &fullError{r.bound}
	}
	ids = make([]metric.ScheduleID, len(r.series))
	for i, at := range place {
		if ids[i] = registry.NoID; at < room {
			ids[i] = got[at]
		}
	}
	return ids, limit, nil
}

// fullError says that there are as many series as the token may have.
type fullError struct{ of *bound.Bound }

// Error implements error.
func (e *fullError) Error() string {
	return fmt.Sprintf("there are %d series of %s, the most that the token may make", e.of.MaxSeries(), e.of)
}
