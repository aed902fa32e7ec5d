package promquery

import (
	"slices"
	"strconv"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// countValues names the function that stands in for the aggregation count_values. The text of an
// expression cannot name it.
const countValues = "count_values, weighed"

// init registers the function. The engine's table of functions is the only way to evaluate
// something inside the engine.
func init() {
	promql.FunctionCalls[countValues] = func(
		vectors []promql.Vector, _ promql.Matrix, args parser.Expressions, enh *promql.EvalNodeHelper,
	) (promql.Vector, annotations.Annotations) {
		return countOf(args).step(vectors[0], enh), nil
	}
}

// valueCount is one count_values of a query, which it evaluates in place of the engine. The engine
// bounds the points of the result, but makes room for all steps where it sees a series first: a
// series for each point may take thousands of times the limit. How many series there are depends on
// the values. So valueCount counts the series as it makes them, and has the query weighed again as
// they grow. One goroutine evaluates a query.
type valueCount struct {
	*parser.AggregateExpr
	prep    *preparation
	label   string
	kept    []string // the labels of the result, unless Without
	builder *labels.Builder

	// evaluation is the engine's state of one evaluation, to which all fields below belong.
	evaluation *promql.EvalNodeHelper
	seen       map[uint64]struct{} // series by hash, as the engine tells them apart
	bytes      int                 // what the series take, aside from points
	atMost     int                 // series, until the query is weighed again
	longest    int                 // bytes of a value, until the query is weighed again
}

const (
	// countedBytes is what the engine holds of a series in the result, in two maps and a list, aside
	// from its labels and points.
	countedBytes = 400
	// digits is the length that a value is expected to have at most.
	digits = 32
)

// count returns the expression to evaluate in place of a count_values.
func (r *rewriter) count(e *parser.AggregateExpr) parser.Expr {
	c := &valueCount{AggregateExpr: e, prep: r.prep, label: text(e.Param), builder: labels.NewBuilder(labels.EmptyLabels())}
	if !model.UTF8Validation.IsValidLabelName(c.label) {
		return e // the engine refuses it
	}
	c.kept = append(slices.Clone(e.Grouping), c.label)
	c.begin(nil)
	// The engine passes a function its arguments and nothing of the query, and knows no expressions
	// but its own. So the count lies behind the last argument, where the engine does not look.
	args := parser.Expressions{e.Expr, c}
	return &parser.Call{
		Func: &parser.Function{Name: countValues, ArgTypes: []parser.ValueType{parser.ValueTypeVector}, ReturnType: parser.ValueTypeVector},
		Args: args[:1], PosRange: e.PosRange,
	}
}

// countOf returns the count that belongs to the arguments of a call of countValues.
func countOf(args parser.Expressions) *valueCount { return args[:2][1].(*valueCount) }

func (c *valueCount) begin(evaluation *promql.EvalNodeHelper) {
	c.evaluation, c.seen = evaluation, make(map[uint64]struct{})
	c.bytes, c.atMost, c.longest = 0, 0, digits
}

// step counts the values at one time. It panics with an error, as the engine's own functions do.
func (c *valueCount) step(in promql.Vector, enh *promql.EvalNodeHelper) promql.Vector {
	if c.evaluation != enh {
		c.begin(enh)
	}
	places := make(map[uint64]int)
	for _, s := range in {
		value := ""
		if s.H == nil {
			value = strconv.FormatFloat(s.F, 'f', -1, 64)
		} else {
			value = s.H.String()
		}
		c.builder.Reset(s.Metric)
		c.builder.Set(c.label, value)
		if c.Without {
			c.builder.Del(c.Grouping...)
			c.builder.Del(model.MetricNameLabel, model.MetricTypeLabel, model.MetricUnitLabel)
		} else {
			c.builder.Keep(c.kept...)
		}
		ls := c.builder.Labels()
		hash := ls.Hash()
		i, known := places[hash]
		if !known {
			c.saw(hash, ls, len(value))
			i = len(enh.Out)
			places[hash] = i
			enh.Out = append(enh.Out, promql.Sample{Metric: ls})
		}
		enh.Out[i].F++
	}
	return enh.Out
}

// saw counts a series, and has the query weighed again if that makes it heavier.
func (c *valueCount) saw(hash uint64, ls labels.Labels, valueBytes int) {
	if _, known := c.seen[hash]; known {
		return
	}
	c.seen[hash] = struct{}{}
	c.bytes += countedBytes + int(ls.ByteSize())
	n := len(c.seen)
	if n <= c.atMost && valueBytes <= c.longest {
		return
	}
	const few = 16
	if n > c.atMost {
		c.atMost = n + n/8 + few
	}
	if valueBytes > c.longest {
		c.longest = 2 * valueBytes
	}
	if err := c.prep.weigher.weigh(); err != nil {
		panic(err)
	}
}

// weigh weighs the part of the expression that c is, over the weighed argument.
func (c *valueCount) weigh(w *weigher, v weighed, g grid) weighed {
	v.series = float64(c.atMost)
	w.label(&v, c.label, float64(c.longest))
	held := 0.0
	if n := len(c.seen); n > 0 {
		held = float64(c.bytes) / float64(n) * v.series / sampleBytes
	}
	v.bytes = held * sampleBytes
	v.uncut = v.bytes
	w.instead(&v, 0)
	return w.stepwise(v, g)
}
