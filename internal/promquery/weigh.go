package promquery

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"regexp/syntax"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/schema"

	"github.com/quern/quern/internal/query"
)

const (
	// maxMade bounds one label that a function makes, in bytes.
	maxMade = 64 << 10
	// maxMatching bounds the matching of label_replace in one query: bytes that a pattern looks at, times its
	// instructions. Matching ignores the context. This many take some ten seconds.
	maxMatching = 200_000_000
	// mostRoom is the number of points that the engine allocates at the first one of a series.
	mostRoom = 5000
	// growth is how much room a long list has that grew point by point.
	growth = 1.25
	// maxSmoothing bounds what the engine does to one series of a smoothed selector: the points in each window, which
	// it moves at each step. This many take some ten seconds, in which it ignores the context.
	maxSmoothing = 5_000_000_000
)

// weigher bounds what evaluating an expression takes beyond what the engine counts: the engine counts points, but not
// the room that it makes for more of them, the steps of subqueries, labels, or matching. It errs upwards.
//
// Labels are those that the engine makes. Those of stored series it shares; the query's account counts them.
//
//  1. A part that is evaluated step by step takes room for mostRoom points for each of its series, or for one per step
//     if there are fewer steps. A subquery takes a point for each of its steps, whether there are series or not. Labels
//     made for its series, and keys made of labels, take a point for 16 bytes. Points that the engine copies from one
//     step to all others, and those of smoothed selectors, take what they are: the engine counts them late, or not at
//     all. All that is held at the same time is at most the query's samples.
//  2. A label that functions make has at most maxMade bytes. Together they take at most what the query's samples take.
//  3. Matching of patterns takes at most maxMatching.
//  4. Weighing ends with the query. What it looks at counts with what the selectors look at.
//
// It weighs before evaluation, when nothing has been read, and again while selectors are read and count_values makes
// series. So an expression is refused before it takes more.
type weigher struct {
	// ctx and work are those of the query, once a selector has been found.
	ctx            context.Context //nolint:containedctx // the engine passes none to its functions
	work           *query.Work
	index          *query.Index
	account        *account
	maxSamples     int64
	lookbackMs     int64
	subqueryStepMs func(rangeMs int64) int64
	expr           parser.Expr
	grid           grid
	// smoothed has the grids of smoothed selectors, by their first matchers.
	smoothed map[*labels.Matcher]grid
	// selected is what selectors have found, by their first matchers; see preparation.readings.
	selected map[*labels.Matcher]*selected
	// instructions counts those of a pattern, by text.
	instructions map[string]float64
	// subqueries are arguments that the engine replaces by their results.
	subqueries map[argument]*parser.SubqueryExpr

	unread int // selectors
	// read counts the series with samples and their labels. At next weigh runs again.
	read, next amount
	matching   float64
	err        error // the first
}

type argument struct {
	call *parser.Call
	i    int
}

// amount counts series.
type amount struct {
	series int
	bytes  int // of their labels
}

// selected is what one selector has found, and how many of its series have samples.
type selected struct {
	*found
	weigher *weigher
	alive   amount
	widest  int // bytes of labels that a series has
	uncut   int // see weighed

	// These are for a smoothed selector. Its series have a point at each of steps. A point of the store is in as many
	// as windows of them. unweighed are the points since the query was weighed.
	steps, windows, unweighed int64
}

// add notes what a selector has found.
func (w *weigher) add(ctx context.Context, work *query.Work, matchers []*labels.Matcher, f *found) *selected {
	w.ctx, w.work = ctx, work
	s := &selected{found: f, weigher: w}
	if len(f.series) > 0 {
		w.unread++
	}
	if len(matchers) > 0 {
		w.selected[matchers[0]] = s
		if g, ok := w.smoothed[matchers[0]]; ok {
			s.steps = g.steps()
			s.windows = min(s.steps, 2*w.lookbackMs/max(g.stepMs, 1)+1)
		}
	}
	return s
}

// has counts a series that has been read, and its points. With more than 100 selectors, not each has all weighed again.
func (s *selected) has(stored query.Packed, points int, last bool) error {
	w := s.weigher
	if float64(points)*float64(s.windows) > maxSmoothing {
		w.refuse("smoothing %d samples of one series at %d steps would take too long: use a larger step, or a shorter lookback", points, s.steps)
		return w.err
	}
	if points > 0 {
		bytes := labelBytes(stored)
		s.alive.series++
		s.alive.bytes += bytes
		w.read.series++
		w.read.bytes += bytes
		s.widest = max(s.widest, bytes)
		if !sharedWithoutName(stored) {
			s.uncut += bytes
		}
		s.unweighed += s.steps
	}
	if last {
		w.unread--
	}
	if w.read.series < w.next.series && w.read.bytes < w.next.bytes && s.unweighed < claimStep/sampleBytes && (!last || w.unread > 0 && len(w.selected) > 100) {
		return nil
	}
	s.unweighed = 0
	const few, fewBytes = 1000, 64 << 10
	w.next = amount{series: w.read.series + w.read.series/8 + few, bytes: w.read.bytes + w.read.bytes/8 + fewBytes}
	return w.weigh()
}

// sharedWithoutName returns whether the engine can drop the name without a copy of the other labels.
func sharedWithoutName(stored query.Packed) bool {
	for i := range stored.Len() {
		switch name := stored.At(i).Name; {
		case schema.IsMetadataLabel(name):
			for j := i + 1; j < stored.Len(); j++ {
				if schema.IsMetadataLabel(stored.At(j).Name) {
					return false
				}
			}
			return i == 0
		case name[0] > '_':
			return true
		}
	}
	return true
}

// weigh returns why the query is refused.
func (w *weigher) weigh() error {
	w.matching, w.err = 0, nil
	v := w.eval(w.expr, w.grid)
	if w.err == nil && w.account != nil {
		w.err = w.account.expect(min(v.peak, float64(w.maxSamples)) + v.beside)
	}
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

// weighed is what a part of an expression takes.
type weighed struct {
	series float64
	// points are those that the part itself has room for, most the peak while it is evaluated.
	points, most float64
	// bytes are those of the labels of its series, widest the most of one series. uncut is the part
	// of bytes that the engine copies to drop names. copied were made in evaluating the part, and
	// are held with it.
	bytes, widest, uncut, copied float64
	// cells are its points if each series has one at each step, peak the most while it is evaluated. The engine bounds
	// them. beside is the most that is held beside them. What the engine lets happen of peak is claimed, and beside.
	cells, peak, beside float64
	// found are what its series are made of, made the bytes of labels that functions have made.
	found []*found
	made  map[string]float64
}

// longest is how many bytes a label may have.
func (w *weigher) longest(v *weighed, name string) float64 {
	n := v.made[name]
	for of := range w.labels(v, name) {
		n = max(n, float64(of.longest))
	}
	return n
}

// values is how many a label may have.
func (w *weigher) values(v *weighed, name string) float64 {
	if _, ok := v.made[name]; ok {
		return v.series
	}
	n := 1.0 // none
	for of := range w.labels(v, name) {
		n += float64(of.values)
	}
	return n
}

// labels yields what there is of a label, until the query may look at no more.
func (w *weigher) labels(v *weighed, name string) iter.Seq[ofLabel] {
	return func(yield func(ofLabel) bool) {
		if len(v.found) == 0 || w.err != nil || !w.index.HasName(name) {
			return
		}
		w.looks(len(v.found))
		for _, f := range v.found {
			of, ok := f.labelled[name]
			if !ok && w.looks(len(f.series)) {
				of = f.label(name)
			}
			if w.err != nil || !yield(of) {
				return
			}
		}
	}
}

// looks returns whether the query may look at n series more.
func (w *weigher) looks(n int) bool {
	if err := w.work.Add(w.ctx, n); err != nil && w.err == nil {
		w.err = err
	}
	return w.err == nil
}

// held is what is held of the part after it has been evaluated.
func (v *weighed) held() float64 { return v.points + v.copied/sampleBytes }

// with adds a part evaluated after v.
func (v weighed) with(other weighed) weighed {
	v.most = max(v.most, v.held()+other.most)
	v.peak = max(v.peak, v.cells+other.peak)
	v.beside = max(v.beside, v.copied/sampleBytes+other.beside)
	v.cells += other.cells
	v.points += other.points
	v.series += other.series
	v.bytes += other.bytes
	v.widest = max(v.widest, other.widest)
	v.uncut += other.uncut
	v.copied += other.copied
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

// label adds a made label of at most n bytes to v.
func (w *weigher) label(v *weighed, name string, n float64) {
	if n > maxMade {
		w.refuse("label %q may exceed %d bytes, the limit for a label made by a function: use shorter texts, or fewer of them", name, maxMade)
		n = maxMade
	}
	v.made = maps.Clone(v.made)
	if v.made == nil {
		v.made = make(map[string]float64)
	}
	grows := n + float64(textsBytes+len(name))
	if before, ok := v.made[name]; ok {
		grows = max(0, n-before)
	}
	v.bytes += v.series * grows
	v.widest += grows
	if name != "" && name[0] <= '_' { // it may sort before the name, or be it
		v.uncut = v.bytes
	}
	v.made[name] = max(n, w.longest(v, name))
	sum := 0.0
	for _, n := range v.made {
		sum += n
	}
	if v.series*sum > float64(w.maxSamples)*sampleBytes {
		w.refuse("label %q of %.0f series, together with the other labels made by functions, may take more bytes than the samples of a query "+
			"(--query-max-samples): narrow the selectors, or use shorter texts", name, v.series)
	}
}

// unnamed weighs that the engine drops the names.
func (w *weigher) unnamed(v *weighed) {
	w.copies(v, v.uncut, 0)
	v.uncut = 0
}

// copies weighs labels that the engine makes: made bytes, held with the result and what its parts
// hold, and meanwhile bytes, held during evaluation.
func (w *weigher) copies(v *weighed, made, meanwhile float64) {
	v.copied += made
	v.most = max(v.most, v.held()+meanwhile/sampleBytes)
	v.beside = max(v.beside, (v.copied+meanwhile)/sampleBytes)
	if v.most > float64(w.maxSamples) {
		w.refuse("the labels that functions, operators and aggregations make for %.0f series may take more memory than the %d samples that a query "+
			"may hold (--query-max-samples): narrow the selectors, aggregate first, or use fewer of them", v.series, w.maxSamples)
	}
}

// instead weighs new labels for all series, which replace those of the parts.
func (w *weigher) instead(v *weighed, meanwhile float64) {
	before := v.copied
	w.copies(v, v.bytes, meanwhile)
	v.copied -= before
}

// result weighs one point per series and step.
func (v *weighed) result(g grid) {
	cells := v.series * float64(g.steps())
	v.peak = max(v.peak, v.cells+cells)
	v.cells = cells
}

// stepwise weighs an evaluation by steps.
func (w *weigher) stepwise(v weighed, g grid) weighed {
	room := 0.0
	if steps := g.steps(); steps > 1 {
		room = v.series * float64(min(steps, mostRoom))
	}
	v.result(g)
	return w.room(v, g, room)
}

// appended weighs points that the engine makes at all steps of g, one after the other.
func (w *weigher) appended(v weighed, g grid) weighed {
	v.result(g)
	made := v.cells
	v.cells *= growth
	v.peak = max(v.peak, v.cells)
	return w.room(v, g, made)
}

// room weighs the room that the result has for points.
func (w *weigher) room(v weighed, g grid, room float64) weighed {
	v.most = max(v.most, v.held()+room)
	v.points = room
	if v.most > float64(w.maxSamples) {
		w.refuse("%.0f series at %d steps may take more than the %d samples that a query may hold (--query-max-samples), since the engine allocates "+
			"all steps of each series: narrow the selectors, aggregate, or use a larger step", v.series, g.steps(), w.maxSamples)
	}
	return v
}

func (w *weigher) eval(e parser.Expr, g grid) weighed {
	switch e := e.(type) {
	case *parser.VectorSelector:
		v := w.selector(e)
		if e.Smoothed {
			w.smoothed[e.LabelMatchers[0]] = g
			return w.appended(v, g)
		}
		v.result(g)
		return v
	case *parser.MatrixSelector: // a series at a time
		return w.selector(e.VectorSelector.(*parser.VectorSelector))
	case *parser.SubqueryExpr:
		rangeMs, stepMs := e.Range.Milliseconds(), e.Step.Milliseconds()
		if stepMs == 0 {
			stepMs = w.subqueryStepMs(rangeMs)
		}
		inside := g.at(e.Timestamp, e.OriginalOffset).inside(rangeMs, stepMs)
		return w.tracked(w.eval(e.Expr, inside), inside)
	case *parser.StepInvariantExpr:
		v := w.eval(e.Expr, grid{startMs: g.startMs, endMs: g.startMs})
		switch e.Expr.(type) {
		case *parser.MatrixSelector, *parser.SubqueryExpr: // the same for all steps
			return v
		}
		return w.appended(v, g)
	case *parser.ParenExpr:
		return w.eval(e.Expr, g)
	case *parser.UnaryExpr:
		v := w.eval(e.Expr, g)
		w.unnamed(&v)
		return v
	case *parser.BinaryExpr:
		return w.binary(e, g)
	case *parser.AggregateExpr:
		return w.aggregate(e, g)
	case *parser.Call:
		return w.call(e, g)
	case *parser.NumberLiteral:
		return w.stepwise(weighed{series: 1}, g)
	}
	return weighed{series: 1}
}

// tracked weighs what the engine notes of each step of a subquery while it evaluates it: two numbers of 8 bytes. Where
// subqueries nest, it holds those of all.
func (w *weigher) tracked(v weighed, g grid) weighed {
	v.most += float64(g.steps())
	v.beside += float64(g.steps())
	if v.most > float64(w.maxSamples) && w.err == nil {
		w.err = promql.ErrTooManySamples("the steps of its subqueries, which count as samples together with those of the subqueries inside them " +
			"(--query-max-samples): use larger steps or shorter ranges")
	}
	return v
}

func (w *weigher) selector(e *parser.VectorSelector) weighed {
	if len(e.LabelMatchers) == 0 {
		return weighed{}
	}
	s := w.selected[e.LabelMatchers[0]]
	if s == nil {
		return weighed{}
	}
	return weighed{
		series: float64(s.alive.series), found: []*found{s.found},
		bytes: float64(s.alive.bytes), widest: float64(s.widest), uncut: float64(s.uncut),
	}
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
	if e.VectorMatching == nil {
		w.unnamed(&v)
	} else {
		w.match(&v, l, r, e, g)
	}
	return w.stepwise(v, g)
}

// match weighs the labels that a binary operator makes of l's and r's.
func (w *weigher) match(v *weighed, l, r weighed, e *parser.BinaryExpr, g grid) {
	how := e.VectorMatching
	keys := v.bytes // one of each different series
	if how.On {
		keys = min(keys, (l.series+r.series)*w.wide(v, how.MatchingLabels))
	}
	switch e.Op {
	case parser.LAND, parser.LUNLESS:
		v.bytes, v.widest, v.uncut = l.bytes, l.widest, l.uncut
		fallthrough
	case parser.LOR:
		w.copies(v, 0, keys)
		return
	}
	// The engine keeps each pair of series that it has matched, with the labels of the result. At
	// later times a series may have another partner.
	pairs, again := v.bytes, 1.0
	if g.steps() > 1 {
		again = 2
		if how.On {
			others := min(l.series*r.widest+r.series*l.widest, float64(g.steps()-1)*min(l.series, r.series)*(l.widest+r.widest))
			pairs += others / again
		}
	}
	many, one := l, r
	if how.Card == parser.CardOneToMany {
		many, one = r, l
	}
	v.bytes, v.widest, v.uncut = many.bytes, many.widest, many.uncut
	if how.Card == parser.CardOneToOne {
		if how.On {
			v.widest = min(v.widest, w.wide(v, how.MatchingLabels))
			v.bytes = min(v.bytes, v.series*v.widest)
		}
	} else {
		pairs = many.bytes + many.series*one.widest
		for _, name := range how.Include {
			w.label(v, name, min(w.longest(v, name), maxMade))
		}
	}
	w.instead(v, keys+again*pairs+(again-1)*v.bytes)
}

// wide is how many bytes labels of those names may have.
func (w *weigher) wide(v *weighed, names []string) float64 {
	n := 0.0
	for _, name := range names {
		n += w.longest(v, name) + float64(textsBytes+len(name))
	}
	return n
}

// textsBytes is what a label takes aside from its texts, at most.
const textsBytes = 8

func (w *weigher) aggregate(e *parser.AggregateExpr, g grid) weighed {
	v := w.eval(e.Expr, g)
	if e.Param != nil {
		of := v
		v = v.with(w.eval(e.Param, g))
		v.series, v.bytes, v.widest, v.uncut = of.series, of.bytes, of.widest, of.uncut
	}
	switch e.Op {
	case parser.TOPK, parser.BOTTOMK, parser.LIMITK, parser.LIMIT_RATIO:
		return w.stepwise(v, g)
	}
	if !e.Without {
		groups := 1.0
		for _, name := range e.Grouping {
			if groups >= v.series {
				break
			}
			groups *= w.values(&v, name)
		}
		v.series = min(v.series, groups)
		v.widest = min(v.widest, w.wide(&v, e.Grouping))
		v.bytes = min(v.bytes, v.series*v.widest)
	}
	v.uncut = v.bytes
	w.instead(&v, 0)
	return w.stepwise(v, g)
}

func (w *weigher) call(e *parser.Call, g grid) weighed {
	if e.Func.Name == countValues {
		return countOf(e.Args).weigh(w, w.eval(e.Args[0], g), g)
	}
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
		of := v
		v = v.with(w.eval(arg, g))
		if scalar {
			v.series, v.bytes, v.widest, v.uncut = of.series, of.bytes, of.widest, of.uncut
		}
	}
	switch e.Func.Name {
	case "label_replace":
		w.replace(&v, e.Args)
		w.instead(&v, 0)
		return v
	case "label_join":
		w.join(&v, e.Args)
		w.instead(&v, 0)
		return v
	case "vector", "time", "scalar", "absent", "absent_over_time":
		v.series, v.found, v.made = 1, nil, nil
		v.bytes, v.widest, v.uncut = 0, 0, 0
	case "histogram_quantile", "histogram_fraction": // they gather buckets by their labels
		w.instead(&v, v.bytes)
	}
	w.unnamed(&v)
	if ranges { // it is evaluated series by series
		v.points = 0
		v.result(g)
		return v
	}
	v.series = max(v.series, 1) // hour() and its like have one without an argument
	return w.stepwise(v, g)
}

// replace is label_replace(v, to, by, from, pattern).
func (w *weigher) replace(v *weighed, args parser.Expressions) {
	to, by, from, pattern := text(args[1]), text(args[2]), text(args[3]), text(args[4])
	looked := w.longest(v, from)
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
		n += w.longest(v, text(from)) + float64(len(text(args[2])))
	}
	w.label(v, text(args[1]), n)
}

// text returns a string: all strings are literals.
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

// label looks at all series, and keeps what it finds.
func (f *found) label(name string) (of ofLabel) {
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
	return of
}
