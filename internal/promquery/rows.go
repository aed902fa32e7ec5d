package promquery

import (
	"context"
	"sync"

	"github.com/quern/quern/internal/query"
)

// rows reads the points of selectors over roll-ups.
type rows struct {
	*reading
	q    *query.Querier
	warn *query.Warnings

	mu      sync.Mutex
	planner *query.Planner
}

// plan returns the plan for reading a group.
func (r *rows) plan(ctx context.Context, g query.Group) (*query.Plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.planner == nil {
		var err error
		if r.planner, err = r.newPlanner(ctx, r.q, r.warn); err != nil {
			return nil, err
		}
	}
	return r.planner.For(g), nil
}

// read is a reader. It holds the spans of a group until their points are made.
func (r *rows) read(ctx context.Context, g query.Group, hold func(n int) error) ([]points, error) {
	plan, err := r.plan(ctx, g)
	if err != nil {
		return nil, err
	}
	spans, held, err := r.collect(r.q, g, hold, func(visit func(i int, s *query.Span) error) error {
		return g.Spans(ctx, plan, r.warn, hold, visit)
	})
	if err != nil {
		return nil, err
	}
	out := make([]points, len(spans))
	const some = 256 // readers of groups share what counts
	counted := 0
	holdSome := func(n int) error {
		if counted += n; counted < some {
			return nil
		}
		n, counted = counted, 0
		return hold(n)
	}
	for i := range spans {
		if out[i], err = r.points(ctx, plan, r.q.Ladder().WidthMs(r.level), spans[i], holdSome, r.warn.Add); err != nil {
			return nil, err
		}
		spans[i] = nil
		if err := hold(counted - held[i]); err != nil {
			return nil, err
		}
		counted = 0
	}
	return out, nil
}
