package promquery

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire/excerpt"
)

// preparation holds the decisions for the selectors of one query, and the notes and warnings for its
// result.
type preparation struct {
	// selected says what selectors read. The key is the selector's first matcher. Each selector has its own, and the engine passes
	// it on. So no marker needs to be hidden among the labels, where users and absent() would see it.
	selected map[*labels.Matcher]*selected
	made     made
	notes    annotations.Annotations
	warnings query.Warnings
	account  *account
	refused  error           // the limit that the query is past before it is evaluated
	ctx      context.Context //nolint:containedctx // that of Exec: the engine passes none to its functions

	levels *query.Levels // record what the selectors are read from; nil unless that was asked for
}

// selected is what a selector reads.
type selected struct {
	rows    *reading  // nil for raw samples
	windows *windowed // nil if the engine makes them
	text    string    // as it was asked, if levels are recorded
}

func newPreparation(ctx context.Context) *preparation {
	return &preparation{
		selected: make(map[*labels.Matcher]*selected), account: &account{inTurn: true}, levels: query.LevelsOf(ctx),
	}
}

// selection returns what the selector with the given matchers reads. The engine's own, such as that of info, read raw samples.
func (p *preparation) selection(matchers []*labels.Matcher) *selected {
	if p != nil && len(matchers) > 0 && p.selected[matchers[0]] != nil {
		return p.selected[matchers[0]]
	}
	return new(selected)
}

// add returns what the selector with the given matchers reads, for changing it.
func (p *preparation) add(matchers []*labels.Matcher) *selected {
	s := p.selection(matchers)
	p.selected[matchers[0]] = s
	return s
}

// name keeps the texts of all selectors as they were asked, if their levels are recorded.
func (p *preparation) name(e parser.Expr) {
	if p.levels == nil {
		return
	}
	parser.Inspect(e, func(node parser.Node, _ []parser.Node) error {
		vs, _ := node.(*parser.VectorSelector)
		if ranged, ok := node.(*parser.MatrixSelector); ok {
			vs = ranged.VectorSelector.(*parser.VectorSelector)
		}
		// A range selector comes before its own selector, which has the same key.
		if vs != nil && len(vs.LabelMatchers) > 0 && p.selection(vs.LabelMatchers).text == "" {
			p.add(vs.LabelMatchers).text = node.String()
		}
		return nil
	})
}

// reads returns where what a selector with the given matchers is read from is recorded, nil for nowhere.
func (p *preparation) reads(matchers []*labels.Matcher) *query.Reads {
	if p == nil || p.levels == nil || len(matchers) == 0 {
		return nil
	}
	text := p.selection(matchers).text
	if text == "" {
		text = (&parser.VectorSelector{LabelMatchers: matchers}).String()
	}
	return p.levels.Selector(text)
}

// grid is the times at which an expression is evaluated: from startMs to endMs, both included, in
// steps of stepMs. If stepMs is 0, it is startMs only.
type grid struct {
	startMs, endMs, stepMs int64
}

// last returns the last time of the grid.
func (g grid) last() int64 {
	if g.stepMs == 0 || g.endMs < g.startMs {
		return g.startMs
	}
	return g.startMs + (g.endMs-g.startMs)/g.stepMs*g.stepMs
}

// steps returns the number of times in the grid.
func (g grid) steps() int64 { return (g.last()-g.startMs)/max(g.stepMs, 1) + 1 }

// at returns the grid shifted by a selector's or subquery's @ and offset.
func (g grid) at(atMs *int64, offset time.Duration) grid {
	if atMs != nil {
		g = grid{startMs: *atMs, endMs: *atMs}
	}
	g.startMs -= offset.Milliseconds()
	g.endMs -= offset.Milliseconds()
	return g
}

// inside returns the grid on which a subquery evaluates its expression. It rounds as the engine
// does.
func (g grid) inside(rangeMs, stepMs int64) grid {
	after := g.startMs - rangeMs
	start := stepMs * (after / stepMs)
	if start <= after {
		start += stepMs
	}
	return grid{startMs: start, endMs: g.last(), stepMs: stepMs}
}

// asFunction lists the functions of a range vector that are computed from rows. Each maps to the
// function that the engine then applies to the computed values, one per window: a function that
// treats labels alike and returns a single value unchanged.
var asFunction = map[string]string{
	"min_over_time":      "min_over_time",
	"max_over_time":      "max_over_time",
	"sum_over_time":      "sum_over_time",
	"avg_over_time":      "avg_over_time",
	"last_over_time":     "last_over_time",
	"first_over_time":    "first_over_time",
	"present_over_time":  "present_over_time",
	"absent_over_time":   "absent_over_time",
	"count_over_time":    "sum_over_time",
	"rate":               "sum_over_time",
	"increase":           "sum_over_time",
	"quantile_over_time": "sum_over_time",
}

// rewriter rewrites one expression that the engine has prepared: times are resolved, and
// step-invariant parts are wrapped.
type rewriter struct {
	prep           *preparation
	q              *query.Querier
	lookbackMs     int64
	subqueryStepMs func(rangeMs int64) int64
	noWindows      bool
	// steps are those of the subqueries that the rewriter is inside, at most maxSteps.
	steps, maxSteps int64
	err             error // the first error
}

// rewrite returns e, or the expression to evaluate in its place, on the given grid.
func (r *rewriter) rewrite(e parser.Expr, g grid) parser.Expr {
	switch e := e.(type) {
	case *parser.VectorSelector:
		r.instant(e, g, "")
	case *parser.MatrixSelector:
		r.stream(e, g, "", 1)
	case *parser.Call:
		call := r.call(e, g)
		if r.noWindows {
			return call
		}
		return r.windows(call, g)
	case *parser.SubqueryExpr:
		r.subquery(e, g)
	case *parser.StepInvariantExpr:
		e.Expr = r.rewrite(e.Expr, grid{startMs: g.startMs, endMs: g.startMs})
	case *parser.AggregateExpr:
		e.Expr = r.rewrite(e.Expr, g)
		if e.Param != nil {
			e.Param = r.rewrite(e.Param, g)
		}
	case *parser.BinaryExpr:
		e.LHS = r.rewrite(e.LHS, g)
		e.RHS = r.rewrite(e.RHS, g)
	case *parser.UnaryExpr:
		e.Expr = r.rewrite(e.Expr, g)
	case *parser.ParenExpr:
		e.Expr = r.rewrite(e.Expr, g)
	}
	return e
}

// maxMoved bounds the points in all windows of a subquery. For each window the engine moves those of a series, without a look at
// its context. This many take some ten seconds.
const maxMoved = 5_000_000_000

// subquery rewrites the expression of a subquery. While the engine evaluates it, it keeps 16 bytes of each step, series or
// not, and allocates them at once. Where subqueries nest, it keeps those of all.
func (r *rewriter) subquery(e *parser.SubqueryExpr, g grid) {
	rangeMs, stepMs := e.Range.Milliseconds(), e.Step.Milliseconds()
	switch {
	case stepMs == 0 && e.Step != 0: // the engine would divide by it
		r.refuse(fmt.Errorf("%s: times have millisecond precision: the step of a subquery must be at least 1ms", excerpt.Shorten(e.String())))
		return
	case stepMs == 0:
		stepMs = r.subqueryStepMs(rangeMs)
	}
	if windows, points := g.steps(), rangeMs/stepMs+1; r.prep.refused == nil && windows > maxMoved/points {
		r.prep.refused = &query.RequestError{Message: fmt.Sprintf("%s would take too long, at %d steps with %d of its own each: use larger steps or shorter ranges",
			excerpt.Shorten(e.String()), windows, points)}
	}
	inside := g.at(e.Timestamp, e.OriginalOffset).inside(rangeMs, stepMs)
	steps := inside.steps()
	r.steps += steps
	if r.maxSteps > 0 && r.steps > r.maxSteps && r.prep.refused == nil {
		r.prep.refused = promql.ErrTooManySamples(fmt.Sprintf("the %d steps of its subqueries", r.steps))
	}
	e.Expr = r.rewrite(e.Expr, inside)
	r.steps -= steps
}

// refuse keeps why the expression cannot be evaluated.
func (r *rewriter) refuse(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *rewriter) call(e *parser.Call, g grid) *parser.Call {
	if e.Func.Name == "timestamp" {
		// The engine itself asks such a selector for the times of its samples.
		if sel, ok := e.Args[0].(*parser.VectorSelector); ok && r.instant(sel, g, "timestamp") {
			return over("sum_over_time", e, &parser.MatrixSelector{VectorSelector: sel, EndPos: e.PosRange.End})
		}
	}
	for i, arg := range e.Args {
		sel, ok := arg.(*parser.MatrixSelector)
		if !ok {
			if e.Func.Name != "info" || i == 0 { // info does not evaluate its second argument
				e.Args[i] = r.rewrite(arg, g)
			}
			continue
		}
		if refused(sel, e.Func.Name) {
			continue
		}
		function := asFunction[e.Func.Name]
		if e.Func.Name == "delta" && extended(sel) {
			function = "sum_over_time"
		}
		if function == "" {
			r.stream(sel, g, e.Func.Name, 2)
		} else if reads := r.window(sel, g, e.Func.Name); reads != nil {
			if e.Func.Name == "quantile_over_time" {
				r.quantile(e, reads)
			}
			return over(function, e, sel)
		}
	}
	return e
}

// over returns a call to replace e, of a function whose windows hold one value each.
func over(function string, e *parser.Call, sel *parser.MatrixSelector) *parser.Call {
	sel.Range = time.Millisecond
	return &parser.Call{Func: parser.Functions[function], Args: parser.Expressions{sel}, PosRange: e.PosRange}
}

// instant makes an instant selector, or function of it, read rows where raw has expired. It returns
// whether it did.
func (r *rewriter) instant(sel *parser.VectorSelector, g grid, function string) bool {
	g = g.at(sel.Timestamp, sel.OriginalOffset)
	level := r.q.LevelFor(g.startMs-r.lookbackMs+1, upTo(g.stepMs))
	if level == metric.Raw {
		return false
	}
	r.read(sel, &reading{
		function: function, level: level, grid: g, rangeMs: max(r.lookbackMs, r.q.Ladder().WidthMs(level)),
		instant: true,
	})
	return true
}

// fewRows is the minimum number of rows in a window whose ends are not aligned to rows. Such a
// window may be one row too long and end one row too early.
const fewRows = 8

// upTo accepts rows that are at most mostMs wide.
func upTo(mostMs int64) func(widthMs int64) bool {
	return func(widthMs int64) bool { return widthMs <= mostMs }
}

// window makes a function of a range selector read rows where raw has expired; otherwise it returns
// nil. It prefers rows that align with the ends of all windows, since the results are then exact.
func (r *rewriter) window(sel *parser.MatrixSelector, g grid, function string) *reading {
	vs := sel.VectorSelector.(*parser.VectorSelector)
	g = g.at(vs.Timestamp, vs.OriginalOffset)
	rangeMs := sel.Range.Milliseconds()
	level := r.q.LevelFor(r.needs(sel, g), func(widthMs int64) bool {
		return rangeMs%widthMs == 0 && g.startMs%widthMs == 0 && g.stepMs%widthMs == 0
	}, upTo(max(g.stepMs, rangeMs/fewRows)))
	if level == metric.Raw {
		return nil
	}
	reads := &reading{function: function, level: level, grid: g, rangeMs: rangeMs, extended: extended(sel)}
	r.read(vs, reads)
	return reads
}

// stream handles a range selector whose function needs single samples. Where raw has expired, it
// makes the selector see the averages of rows, at least atLeast of them in each window. An anchored
// selector also sees the row before its window.
func (r *rewriter) stream(sel *parser.MatrixSelector, g grid, function string, atLeast int64) {
	vs := sel.VectorSelector.(*parser.VectorSelector)
	g = g.at(vs.Timestamp, vs.OriginalOffset)
	rangeMs := sel.Range.Milliseconds()
	level := r.q.LevelFor(r.needs(sel, g), upTo(max(g.stepMs, rangeMs)/atLeast))
	if level == metric.Raw {
		return
	}
	// Use whole rows, so that every window has the same number of them.
	width := r.q.Ladder().WidthMs(level)
	rangeMs = -metric.AlignDown(-rangeMs, width)
	if vs.Anchored {
		rangeMs += width
	}
	rangeMs = max(rangeMs, atLeast*width)
	sel.Range = time.Duration(rangeMs) * time.Millisecond
	r.read(vs, &reading{level: level, grid: g, rangeMs: rangeMs})
	if function != "" {
		r.prep.notes.Add(fmt.Errorf("%w: %s uses the averages of roll-up rows instead of their samples", annotations.PromQLInfo, function))
	}
}

// read makes a selector read rows. The engine must not extend the selector any more: the reading
// yields nothing around its windows.
func (r *rewriter) read(sel *parser.VectorSelector, reads *reading) {
	r.prep.add(sel.LabelMatchers).rows = reads
	if sel.Smoothed {
		r.prep.notes.Add(fmt.Errorf("%w: smoothed does not interpolate between roll-up rows", annotations.PromQLInfo))
	}
	sel.Anchored, sel.Smoothed = false, false
	r.prep.notes.Add(fmt.Errorf("%w: %s roll-ups are read, since raw samples are not kept for the whole time range",
		annotations.PromQLInfo, r.q.Ladder().Name(reads.level)))
}

// quantile sets the rank, which must be known before rows are read.
func (r *rewriter) quantile(e *parser.Call, reads *reading) {
	rank, ok := constant(e.Args[0])
	if !ok {
		r.refuse(fmt.Errorf("%s: the quantile must be a constant number when roll-ups are read", excerpt.Shorten(e.String())))
	}
	if !(rank >= 0 && rank <= 1) {
		r.prep.notes.Add(annotations.NewInvalidQuantileWarning(rank, e.Args[0].PositionRange()))
	}
	reads.rank = rank
}

// constant returns the value of a constant numeric expression.
func constant(e parser.Expr) (float64, bool) {
	switch e := e.(type) {
	case *parser.NumberLiteral:
		return e.Val, true
	case *parser.ParenExpr:
		return constant(e.Expr)
	case *parser.StepInvariantExpr:
		return constant(e.Expr)
	case *parser.UnaryExpr:
		v, ok := constant(e.Expr)
		if e.Op == parser.SUB {
			v = -v
		}
		return v, ok
	case *parser.BinaryExpr:
		l, lok := constant(e.LHS)
		r, rok := constant(e.RHS)
		ok := lok && rok
		switch e.Op {
		case parser.ADD:
			return l + r, ok
		case parser.SUB:
			return l - r, ok
		case parser.MUL:
			return l * r, ok
		case parser.DIV:
			return l / r, ok
		}
	}
	return math.NaN(), false
}

// extended returns whether a selector also needs samples around its window.
func extended(sel *parser.MatrixSelector) bool {
	vs := sel.VectorSelector.(*parser.VectorSelector)
	return vs.Anchored || vs.Smoothed
}

// refused returns whether the engine refuses a function of an extended selector.
func refused(sel *parser.MatrixSelector, function string) bool {
	vs := sel.VectorSelector.(*parser.VectorSelector)
	_, anchored := promql.AnchoredSafeFunctions[function]
	_, smoothed := promql.SmoothedSafeFunctions[function]
	return vs.Anchored && !anchored || vs.Smoothed && !smoothed
}

// needs returns the time of the earliest sample that a range selector may need on a grid, which its
// offset has shifted.
func (r *rewriter) needs(sel *parser.MatrixSelector, g grid) int64 {
	fromMs := g.startMs - sel.Range.Milliseconds() + 1
	if extended(sel) {
		fromMs -= r.lookbackMs
	}
	return fromMs
}
