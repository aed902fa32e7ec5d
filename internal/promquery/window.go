package promquery

import (
	"context"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// overWindow names the function that stands in for functions of a range of raw samples. The text of an expression cannot
// name it.
const overWindow = "function of a window"

// init registers it: the engine's table of functions is the only way to evaluate something inside the engine. The engine passes a
// function its arguments and nothing of the query, so a windowed lies behind the last argument, where the engine does not look.
func init() { promql.FunctionCalls[overWindow] = callOverWindow }

// windowed is a range selector over raw samples, or a subquery, in a call of a function.
//
// The call is one of overWindow, which looks at the context at each window and then calls the engine's own function. The engine
// looks at it once for each series, which may have millions of windows, with another annotation at each.
//
// Of raw samples, the engine would iterate over the samples and copy
// each of them into its window, which takes longer than most functions. Instead, it is given a selector with a range of 1 ms
// and a mark at each time of the grid whose window has samples. The mark has the value of the function: as rows have proven it, or
// as the engine's own function computes it from the window, a part of the points that were read. Where a function has other
// arguments, the mark is NaN, and overWindow replaces it by the window.
//
// The engine evaluates one series after the other, and each from the first time to the last.
type windowed struct {
	parser.Expr // none
	prep        *preparation
	function    string
	compute     promql.FunctionCall

	// The rest is for raw samples.
	args    parser.Expressions // of the call, before the range became 1 ms; nil for a subquery
	grid    grid
	rangeMs int64
	rows    *reading // may prove the values of windows; nil if no rows fit

	single promql.Matrix // the window that a mark is computed from
	helper promql.EvalNodeHelper

	points points // of the series that is evaluated
	atMs   int64  // the end of its latest window, which is points[lo:hi]
	lo, hi int
	marks  points // reused from series to series
	noted  string // the name that is in the annotations of rate and increase
}

// windows returns the call to evaluate in place of one over raw samples or a subquery, or the same if it has no windows.
func (r *rewriter) windows(e *parser.Call, g grid) *parser.Call {
	compute := promql.FunctionCalls[e.Func.Name]
	if compute == nil {
		return e
	}
	for i, arg := range e.Args {
		w := &windowed{prep: r.prep, function: e.Func.Name, compute: compute}
		if _, ok := arg.(*parser.SubqueryExpr); ok {
			return w.instead(e, e.Args)
		}
		sel, ok := arg.(*parser.MatrixSelector)
		if !ok {
			continue
		}
		vs := sel.VectorSelector.(*parser.VectorSelector)
		if extended(sel) || r.prep.selection(vs.LabelMatchers).rows != nil { // it looks beyond its windows, or reads rows
			return e
		}
		w.args, w.grid, w.rangeMs = e.Args, g.at(vs.Timestamp, vs.OriginalOffset), sel.Range.Milliseconds()
		w.rows = r.exact(e, w)
		r.prep.add(vs.LabelMatchers).windows = w
		marked := *sel
		marked.Range = time.Millisecond
		args := append(parser.Expressions(nil), e.Args...)
		args[i] = &marked
		return w.instead(e, args)
	}
	return e
}

// instead returns the call to evaluate in place of e, with other arguments.
func (w *windowed) instead(e *parser.Call, args parser.Expressions) *parser.Call {
	call := *e
	call.Args = append(args[:len(args):len(args)], w)[:len(args)]
	switch e.Func.Name {
	case "first_over_time", "last_over_time", "absent_over_time": // at whose names the engine looks
	default:
		function := *e.Func
		function.Name = overWindow
		call.Func = &function
	}
	return &call
}

// mark returns the value of the mark for a window that ends at atMs, NaN if the window is to take its place.
func (w *windowed) mark(atMs int64, window points) float64 {
	switch {
	case w.function == "first_over_time":
		return window[0].F
	case w.function == "last_over_time":
		return window[len(window)-1].F
	case len(w.args) > 1, w.function == "absent_over_time":
		return math.NaN()
	}
	if w.single == nil {
		w.single = make(promql.Matrix, 1)
	}
	w.single[0].Floats = window
	w.helper.Ts = atMs + w.args[0].(*parser.MatrixSelector).VectorSelector.(*parser.VectorSelector).Offset.Milliseconds()
	out, annos := w.compute(nil, w.single, w.args, &w.helper)
	w.helper.Out, w.single[0].Floats = out[:0], nil // which is recycled, or let go
	if len(out) != 1 || len(annos) > 0 {
		return math.NaN()
	}
	return out[0].F
}

// begin makes p the points of the series that is evaluated, and returns its marks. They are valid until the next call. Marks that
// are known, unless nil, have the values of their windows; p has the windows of those that are NaN.
func (w *windowed) begin(ctx context.Context, p, known points) (points, error) {
	w.points, w.lo, w.hi = p, 0, 0
	w.marks = w.marks[:0]
	if known != nil {
		for _, m := range known {
			if math.IsNaN(m.F) {
				if err := ctx.Err(); err != nil {
					return nil, err
				}
				window := w.window(m.T)
				if len(window) == 0 {
					continue
				}
				m.F = w.mark(m.T, window)
			}
			w.marks = append(w.marks, m)
		}
		return w.marks, nil
	}
	for t, last := w.grid.startMs, w.grid.last(); t <= last && len(p) > 0; t += max(w.grid.stepMs, 1) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if window := w.window(t); len(window) > 0 {
			w.marks.add(t, w.mark(t, window))
		} else if w.hi == len(p) {
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

// callOverWindow calls the function that a call was of, with the window in place of its mark. It panics with an error, as the
// engine's own functions do.
func callOverWindow(
	vectors []promql.Vector, matrix promql.Matrix, args parser.Expressions, enh *promql.EvalNodeHelper,
) (promql.Vector, annotations.Annotations) {
	w := args[:len(args)+1][len(args)].(*windowed)
	if err := w.prep.ctx.Err(); err != nil {
		panic(ended(err))
	}
	var out promql.Vector
	var annos annotations.Annotations
	if w.args != nil {
		mark := matrix[0].Floats[0]
		args = w.args
		if math.IsNaN(mark.F) {
			matrix[0].Floats = w.window(mark.T)
		} else {
			enh.Out = append(enh.Out, promql.Sample{F: mark.F})
			out = enh.Out
		}
	}
	if out == nil {
		out, annos = w.compute(vectors, matrix, args, enh)
	}
	if (w.function == "rate" || w.function == "increase") && len(out) > 0 {
		if name := matrix[0].Metric.Get(model.MetricNameLabel); name != w.noted && mayBeNoCounter(name) {
			w.noted = strings.Clone(name)
			annos.Add(annotations.NewPossibleNonCounterInfo(name, args[0].PositionRange()))
		}
	}
	return out, annos
}

// ended returns the engine's error for the end of a context.
func ended(err error) error {
	const when = "expression evaluation"
	if errors.Is(err, context.DeadlineExceeded) {
		return promql.ErrQueryTimeout(when)
	}
	return promql.ErrQueryCanceled(when)
}

// mayBeNoCounter returns whether the engine notes a name in the annotations of rate and increase, which it does for functions
// of these names only.
func mayBeNoCounter(name string) bool {
	for _, counters := range []string{"_total", "_sum", "_count", "_bucket"} {
		if strings.HasSuffix(name, counters) {
			return false
		}
	}
	return name != ""
}
