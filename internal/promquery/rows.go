package promquery

import (
	"context"
	"sync"

	"github.com/quern/quern/internal/query"
)

// rowSource is the source for selectors that read roll-ups.
type rowSource struct {
	*reading
	q      *query.Querier
	warn   *query.Warnings
	loader *loader[[]query.Span]

	mu      sync.Mutex
	planner *query.Planner
	plans   map[int]*query.Plan // by index of the group
}

// planOf returns the plan for reading a group.
func (r *rowSource) planOf(group int) (*query.Plan, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.planner == nil {
		p, err := r.newPlanner(r.loader.ctx, r.q, r.warn)
		if err != nil {
			return nil, err
		}
		r.planner, r.plans = p, make(map[int]*query.Plan)
	}
	p := r.plans[group]
	if p == nil {
		p = r.planner.For(r.loader.groups[group])
		r.plans[group] = p
	}
	return p, nil
}

func (r *rowSource) points(at place, own *own) (points, error) {
	*own = r.loader.begin(r)
	plan, err := r.planOf(at.group)
	if err != nil {
		return nil, err
	}
	found, err := r.loader.get(at.group, func(ctx context.Context, group int, hold func(n int) error) ([][]query.Span, error) {
		g := r.loader.groups[group]
		out := make([][]query.Span, len(g.IDs()))
		plan, err := r.planOf(group)
		if err != nil {
			return nil, err
		}
		err = g.Spans(ctx, plan, r.warn, hold, func(i int, s *query.Span) error {
			if n := len(out[i]); n == cap(out[i]) {
				size := max(2*n, r.rowEstimate(r.q))
				if err := hold(samplesIn((size - n) * spanBytes)); err != nil {
					return err
				}
				out[i] = append(make([]query.Span, 0, size), out[i]...)
			}
			kept := r.keep(s)
			out[i] = append(out[i], kept)
			return hold(samplesIn(len(kept.Sketch)))
		})
		return out, err
	})
	if err != nil {
		return nil, err
	}
	return r.reading.points(r.loader.ctx, plan, r.q.Ladder().WidthMs(r.level), found[at.i], own.add, r.warn.Add)
}

// release also lets go of the plans, which know each slice of the time range.
func (r *rowSource) release() {
	r.loader.release()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.planner, r.plans = nil, nil
}
