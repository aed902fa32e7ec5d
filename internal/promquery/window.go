package promquery

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
)

// windowed is a range selector over raw samples, in a call of a function. The engine would iterate over the samples and copy
// each of them into its window, which takes longer than most functions. Instead, it is given a selector with a range of 1 ms
// and a mark at each time of the grid whose window has samples, and a guard replaces the mark by the window: a part of the
// points that were read, which is not copied. The function, its arguments and all that the engine does with the result stay
// the same.
//
// The engine evaluates one series after the other, and each from the first time to the last.
type windowed struct {
	args    parser.Expressions // of the call, before the range became 1 ms
	grid    grid
	rangeMs int64

	points points // of the series that is evaluated
	atMs   int64  // the end of its latest window, which is points[lo:hi]
	lo, hi int
	marks  points // reused from series to series
}

// windows makes the windows of a call over raw samples be taken from what is read. It returns nil if the call has none.
func (r *rewriter) windows(e *parser.Call, g grid) *windowed {
	if promql.FunctionCalls[e.Func.Name] == nil {
		return nil
	}
	for i, arg := range e.Args {
		sel, ok := arg.(*parser.MatrixSelector)
		if !ok {
			continue
		}
		vs := sel.VectorSelector.(*parser.VectorSelector)
		if extended(sel) || r.prep.of(vs.LabelMatchers) != nil { // it looks beyond its windows, or reads rows
			return nil
		}
		w := &windowed{args: e.Args, grid: g.at(vs.Timestamp, vs.OriginalOffset), rangeMs: sel.Range.Milliseconds()}
		e.Args = append(parser.Expressions(nil), e.Args...)
		marked := *sel
		marked.Range = time.Millisecond
		e.Args[i] = &marked
		r.prep.windowed[vs.LabelMatchers[0]] = w
		return w
	}
	return nil
}

// begin makes p the points of the series that is evaluated, and returns its marks. They are valid until the next call.
func (w *windowed) begin(ctx context.Context, p points) (points, error) {
	w.points, w.lo, w.hi = p, 0, 0
	w.marks = w.marks[:0]
	const some = 1024
	hi := 0
	for t, last := w.grid.startMs, w.grid.last(); t <= last && len(p) > 0; t += max(w.grid.stepMs, 1) {
		if len(w.marks)%some == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		hi = p.after(hi, t)
		if hi > 0 && p[hi-1].T > t-w.rangeMs {
			w.marks.add(t, 1)
		} else if hi == len(p) {
			break
		}
	}
	return w.marks, nil
}

// window returns the points in (atMs-range, atMs].
func (w *windowed) window(atMs int64) points {
	if atMs < w.atMs {
		w.lo, w.hi = 0, 0
	}
	w.atMs = atMs
	w.lo, w.hi = w.points.after(w.lo, atMs-w.rangeMs), w.points.after(w.hi, atMs)
	return w.points[w.lo:w.hi:w.hi]
}

// windowSource is the source for a windowed selector: its points are marks. Samples that say that a series has ended are left
// out, since windows do not have them. Only the windowed selector refers to the points that were read, and only to those of one
// series at a time.
type windowSource struct {
	samples
	*windowed
}

func (s *windowSource) points(at place, own *own) (points, error) {
	*own = s.loader.begin(s)
	s.windowed.points = nil
	p, err := s.read(at)
	if err != nil {
		return nil, err
	}
	marks, err := s.begin(s.loader.ctx, p)
	if err != nil {
		return nil, err
	}
	return marks, own.add(len(marks))
}

func (s *windowSource) release() {
	s.windowed.points, s.marks = nil, nil
	s.samples.release()
}
