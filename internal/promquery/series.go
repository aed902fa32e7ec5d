package promquery

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// found is the result of a selector. Selectors with the same matchers share it.
type found struct {
	groups []query.Group
	series []foundSeries
}

// refs returns pointers to the series, which callers may sort and cut.
func (f *found) refs() []*foundSeries {
	out := make([]*foundSeries, len(f.series))
	for i := range f.series {
		out[i] = &f.series[i]
	}
	return out
}

// foundSeries is a series and its place in the groups.
type foundSeries struct {
	place
	stored query.Packed

	named *labels.Labels // filled by labels; nil to keep none
}

// labels converts the labels once for all selectors of a query. One goroutine evaluates them.
func (f *foundSeries) labels() labels.Labels {
	if f.named == nil {
		return converted(f.stored)
	}
	if f.named.IsEmpty() {
		*f.named = converted(f.stored)
	}
	return *f.named
}

func converted(stored query.Packed) labels.Labels {
	b := labels.NewScratchBuilder(stored.Len())
	for l := range stored.All() {
		b.Add(l.Name, l.Value)
	}
	return b.Labels()
}

type place struct {
	group, i int
}

// seriesOf returns the series of groups, with what name returns for them.
func seriesOf(ctx context.Context, groups []query.Group, name func(metric.ScheduleID) *labels.Labels) ([]foundSeries, error) {
	n := 0
	for _, g := range groups {
		n += len(g.IDs())
	}
	found := make([]foundSeries, 0, n)
	for gi, g := range groups {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		for i, id := range g.IDs() {
			found = append(found, foundSeries{place: place{gi, i}, stored: g.Packed(i), named: name(id)})
		}
	}
	return found, nil
}

// set is a storage.SeriesSet.
type set struct {
	ctx    context.Context //nolint:containedctx // that of Select
	all    []*foundSeries
	at     int
	warn   *query.Warnings
	loader *loader
}

func (s *set) Next() bool {
	s.at++
	return s.at < len(s.all)
}

func (s *set) At() storage.Series { return &series{foundSeries: s.all[s.at], set: s} }

func (s *set) Err() error { return nil }

// Warnings implements storage.SeriesSet. They cover what has been read so far.
func (s *set) Warnings() annotations.Annotations { return annotated(s.warn) }

func annotated(warn *query.Warnings) annotations.Annotations {
	var out annotations.Annotations
	for _, w := range warn.List() {
		out.Add(fmt.Errorf("%w: %s", annotations.PromQLWarning, w))
	}
	return out
}

// series is a storage.Series.
type series struct {
	*foundSeries
	set *set
}

func (s *series) Labels() labels.Labels { return s.labels() }

func (s *series) Iterator(it chunkenc.Iterator) chunkenc.Iterator {
	into, ok := it.(*iterator)
	if !ok {
		into = new(iterator)
	}
	*into = iterator{at: -1, ctx: s.set.ctx}
	p, err := s.set.loader.points(s.place)
	if err == nil {
		err = s.set.ctx.Err()
	}
	if err != nil {
		p = nil
	}
	into.points, into.err = p, asStored(err)
	return into
}

// asStored wraps a store failure in promql.ErrStorage. Cancellation, timeouts and the query's
// sample limit pass through.
func asStored(err error) error {
	var most promql.ErrTooManySamples
	if err == nil || errors.As(err, &most) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return promql.ErrStorage{Err: err}
}
