package promquery

import (
	"fmt"
	"maps"
	"regexp/syntax"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// maxMade bounds one label that a function makes, in bytes.
	maxMade = 64 << 10
	// maxMatching bounds what label_replace does in one query: the bytes that its patterns look at, for each of their instructions.
	// It looks at no context. This many take some ten seconds.
	maxMatching = 200_000_000
	// maxCountedSteps bounds the steps of count_values: a value that is there at one of them takes the room of all.
	maxCountedSteps = 2000
	// mostRoom is the number of points that the engine makes room for where it sees the first one of a series.
	mostRoom = 5000
)

// weigher bounds what evaluating an expression takes that the engine does not count: it counts points, and neither the room that it
// makes for more of them, nor labels, nor what a pattern takes. It errs upwards.
//
//  1. An expression that is evaluated step by step has room for mostRoom points for each of its series, or one for each step
//     if they are fewer. What is there at the same time is bounded by the query's samples.
//  2. A label that functions make has at most maxMade bytes, and those of all series together as many as samples may have.
//  3. Matching of patterns takes at most maxMatching.
//
// It weighs what has been read by then: before evaluation nothing, and again while selectors are read. So an expression is refused
// before it is evaluated over more than that.
type weigher struct {
	maxSamples     int64
	subqueryStepMs func(rangeMs int64) int64
	expr           parser.Expr
	grid           grid
	// selected is what selectors have found, by their first matchers; see plan.readings.
	selected map[*labels.Matcher]*selected
	// instructions are those of patterns, by their texts.
	instructions map[string]float64
	// subqueries are those that were arguments, in whose place the engine puts what they come to.
	subqueries map[argument]*parser.SubqueryExpr

	unread int // selectors
	// read are the series with samples, next those at which they are weighed again.
	read, next int
	matching   float64
	err        error // the first
}

type argument struct {
	call *parser.Call
	i    int
}

// selected is what one selector has found, and of how many series there are samples.
type selected struct {
	*found
	weigher *weigher
	alive   int
}

// add is for a selector that has found something.
func (w *weigher) add(matchers []*labels.Matcher, f *found) *selected {
	s := &selected{found: f, weigher: w}
	if len(f.series) > 0 {
		w.unread++
	}
	if len(matchers) > 0 {
		w.selected[matchers[0]] = s
	}
	return s
}

// has counts a series that has been read. Of an expression with many selectors, not each has all weighed again.
func (s *selected) has(samples, last bool) error {
	w := s.weigher
	if samples {
		s.alive++
		w.read++
	}
	if last {
		w.unread--
	}
	if w.read < w.next && (!last || w.unread > 0 && len(w.selected) > 100) {
		return nil
	}
	const few = 1000
	w.next = w.read + w.read/8 + few
	return w.weigh()
}

// weigh is what is wrong with the expression.
func (w *weigher) weigh() error {
	w.matching, w.err = 0, nil
	w.eval(w.expr, w.grid)
	return w.err
}

func (w *weigher) refuse(format string, args ...any) {
	if w.err == nil {
		w.err = &weightError{fmt.Sprintf(format, args...)}
	}
}

// weightError says what a query would take too much of.
type weightError struct{ text string }

func (e *weightError) Error() string { return e.text }

// weighed is what a part of an expression comes to.
type weighed struct {
	series float64
	// points are those that there is room for, of the part itself; most are those while it is evaluated.
	points, most float64
	// found are what its series are made of, made the bytes of labels that functions have made.
	found []*found
	made  map[string]float64
}

// longest is how many bytes a label may have.
func (v *weighed) longest(name string) float64 {
	n := v.made[name]
	for _, f := range v.found {
		n = max(n, float64(f.label(name).longest))
	}
	return n
}

// values is how many a label may have.
func (v *weighed) values(name string) float64 {
	if _, ok := v.made[name]; ok {
		return v.series
	}
	n := 1.0 // none
	for _, f := range v.found {
		n += float64(f.label(name).values)
	}
	return n
}

// with adds what is evaluated beside it.
func (v weighed) with(other weighed) weighed {
	v.most = max(v.most, v.points+other.most)
	v.points += other.points
	v.series += other.series
	v.found = append(v.found, other.found...)
	if v.made == nil {
		v.made = other.made
	} else if len(other.made) > 0 {
		v.made = maps.Clone(v.made)
		for name, n := range other.made {
			v.made[name] = max(v.made[name], n)
		}
	}
	return v
}

// label has a label made of it, of at most n bytes.
func (w *weigher) label(v *weighed, name string, n float64) {
	if n > maxMade {
		w.refuse("label %q may come to more than the %d bytes that a label which a function makes may have: use shorter texts, or fewer of them", name, maxMade)
		n = maxMade
	}
	v.made = maps.Clone(v.made)
	if v.made == nil {
		v.made = make(map[string]float64)
	}
	v.made[name] = max(n, v.longest(name))
	sum := 0.0
	for _, n := range v.made {
		sum += n
	}
	if v.series*sum > float64(w.maxSamples)*sampleBytes {
		w.refuse("label %q of %.0f series and what else functions make of their labels may take more bytes than the samples of a query "+
			"(--query-max-samples): narrow the selectors, or use shorter texts", name, v.series)
	}
}

// stepwise has a part evaluated step by step.
func (w *weigher) stepwise(v weighed, g grid) weighed {
	room := 0.0
	if steps := g.steps(); steps > 1 {
		room = v.series * float64(min(steps, mostRoom))
	}
	v.most = max(v.most, v.points+room)
	v.points = room
	if v.most > float64(w.maxSamples) {
		w.refuse("%.0f series at %d steps may take more than the %d samples that a query may hold (--query-max-samples), as the engine makes room for "+
			"all steps of each: narrow the selectors, aggregate, or take a larger step", v.series, g.steps(), w.maxSamples)
	}
	return v
}

func (w *weigher) eval(e parser.Expr, g grid) weighed {
	switch e := e.(type) {
	case *parser.VectorSelector:
		return w.selector(e)
	case *parser.MatrixSelector:
		return w.eval(e.VectorSelector, g)
	case *parser.SubqueryExpr:
		rangeMs, stepMs := e.Range.Milliseconds(), e.Step.Milliseconds()
		if stepMs == 0 {
			stepMs = w.subqueryStepMs(rangeMs)
		}
		return w.eval(e.Expr, g.at(e.Timestamp, e.OriginalOffset).inside(rangeMs, stepMs))
	case *parser.StepInvariantExpr:
		return w.eval(e.Expr, grid{startMs: g.startMs, endMs: g.startMs})
	case *parser.ParenExpr:
		return w.eval(e.Expr, g)
	case *parser.UnaryExpr:
		return w.eval(e.Expr, g)
	case *parser.BinaryExpr:
		return w.binary(e, g)
	case *parser.AggregateExpr:
		return w.aggregate(e, g)
	case *parser.Call:
		return w.call(e, g)
	}
	return weighed{series: 1}
}

func (w *weigher) selector(e *parser.VectorSelector) weighed {
	if len(e.LabelMatchers) == 0 {
		return weighed{}
	}
	s := w.selected[e.LabelMatchers[0]]
	if s == nil {
		return weighed{}
	}
	return weighed{series: float64(s.alive), found: []*found{s.found}}
}

func (w *weigher) binary(e *parser.BinaryExpr, g grid) weighed {
	l, r := w.eval(e.LHS, g), w.eval(e.RHS, g)
	series := max(l.series, r.series)
	switch {
	case e.Op == parser.LOR:
		series = l.series + r.series
	case e.VectorMatching == nil && e.LHS.Type() == parser.ValueTypeScalar:
		series = r.series
	case e.VectorMatching == nil, e.Op == parser.LAND, e.Op == parser.LUNLESS:
		series = l.series
	}
	v := l.with(r)
	v.series = series
	if e.VectorMatching != nil {
		for _, name := range e.VectorMatching.Include {
			w.label(&v, name, min(v.longest(name), maxMade))
		}
	}
	return w.stepwise(v, g)
}

func (w *weigher) aggregate(e *parser.AggregateExpr, g grid) weighed {
	v := w.eval(e.Expr, g)
	if e.Param != nil {
		series := v.series
		v = v.with(w.eval(e.Param, g))
		v.series = series
	}
	switch e.Op {
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO:
		return w.stepwise(v, g)
	case parser.COUNT_VALUES:
		steps := g.steps()
		if steps > maxCountedSteps {
			w.refuse("count_values at %d steps: the most is %d, as each value takes the room of all steps: take a larger step, or a shorter time", steps, maxCountedSteps)
		}
		v.series = max(v.series, float64(min(steps, maxCountedSteps)))
		const digits = 32
		w.label(&v, text(e.Param), digits)
		return w.stepwise(v, g)
	}
	if !e.Without {
		groups := 1.0
		for _, name := range e.Grouping {
			if groups >= v.series {
				break
			}
			groups *= v.values(name)
		}
		v.series = min(v.series, groups)
	}
	return w.stepwise(v, g)
}

func (w *weigher) call(e *parser.Call, g grid) weighed {
	var v weighed
	ranges := false
	for i, arg := range e.Args {
		if e.Func.Name == "info" && i > 0 { // it is not evaluated
			break
		}
		ranges = ranges || arg.Type() == parser.ValueTypeMatrix
		if arg.Type() == parser.ValueTypeString {
			continue
		}
		at := argument{e, i}
		if sub, ok := arg.(*parser.SubqueryExpr); ok {
			w.subqueries[at] = sub
		} else if sub := w.subqueries[at]; sub != nil {
			arg = sub
		}
		scalar := arg.Type() == parser.ValueTypeScalar
		series := v.series
		v = v.with(w.eval(arg, g))
		if scalar {
			v.series = series
		}
	}
	switch e.Func.Name {
	case "label_replace":
		w.replace(&v, e.Args)
		return v
	case "label_join":
		w.join(&v, e.Args)
		return v
	case "vector", "time", "scalar", "absent", "absent_over_time":
		v.series, v.found, v.made = 1, nil, nil
	}
	if ranges { // it is evaluated series by series
		v.points = 0
		return v
	}
	v.series = max(v.series, 1) // hour() and its like have one without an argument
	return w.stepwise(v, g)
}

// replace is label_replace(v, to, by, from, pattern).
func (w *weigher) replace(v *weighed, args parser.Expressions) {
	to, by, from, pattern := text(args[1]), text(args[2]), text(args[3]), text(args[4])
	looked := v.longest(from)
	n, ok := w.instructions[pattern]
	if !ok {
		tree, err := syntax.Parse("^(?s:"+pattern+")$", syntax.Perl)
		if err != nil {
			return // the engine says it better
		}
		prog, err := syntax.Compile(tree.Simplify())
		if err != nil {
			return
		}
		n = float64(len(prog.Inst))
		w.instructions[pattern] = n
	}
	if w.matching += v.series * n * (looked + 1); w.matching > maxMatching {
		w.refuse("the patterns of label_replace would take too long for %.0f series with values of up to %.0f bytes: narrow the selectors, or use shorter patterns",
			v.series, looked)
	}
	w.label(v, to, float64(len(by))+float64(strings.Count(by, "$"))*looked)
}

// join is label_join(v, to, separator, from…).
func (w *weigher) join(v *weighed, args parser.Expressions) {
	n := 0.0
	for _, from := range args[3:] {
		n += v.longest(text(from)) + float64(len(text(args[2])))
	}
	w.label(v, text(args[1]), n)
}

// text is that of a string, which cannot be computed.
func text(e parser.Expr) string {
	for {
		switch in := e.(type) {
		case *parser.StringLiteral:
			return in.Val
		case *parser.ParenExpr:
			e = in.Expr
		case *parser.StepInvariantExpr:
			e = in.Expr
		default:
			return ""
		}
	}
}

// ofLabel is what there is of a label among series.
type ofLabel struct {
	longest int // bytes
	values  int
}

// label looks once at all series.
func (f *found) label(name string) ofLabel {
	of, ok := f.labelled[name]
	if !ok {
		values := make(map[string]struct{})
		for i := range f.series {
			v := f.series[i].stored.Get(name)
			of.longest = max(of.longest, len(v))
			values[v] = struct{}{}
		}
		of.values = len(values)
		if f.labelled == nil {
			f.labelled = make(map[string]ofLabel)
		}
		f.labelled[name] = of
	}
	return of
}
