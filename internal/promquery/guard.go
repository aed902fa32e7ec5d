package promquery

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/util/annotations"
)

// guard is behind the arguments of each call of a prepared query, as a valueCount is. The engine looks at the context
// once for each series of a range function, which may have millions of windows, and counts no annotations, which may
// have another text at each step.
type guard struct {
	parser.Expr // none: the engine does not look behind the arguments
	prep        *preparation
	windows     *windowed // nil if the engine makes the windows
}

// init has all functions of the engine guarded.
func init() {
	for name, call := range promql.FunctionCalls {
		if call != nil { // the engine itself evaluates the others
			promql.FunctionCalls[name] = guarded(name, call)
		}
	}
}

// guarded panics with an error, as the engine's own functions do.
func guarded(name string, call promql.FunctionCall) promql.FunctionCall {
	rates := name == "rate" || name == "increase"
	buckets := name == "histogram_quantile" || name == "histogram_quantiles" || name == "histogram_fraction"
	return func(
		vectors []promql.Vector, matrix promql.Matrix, args parser.Expressions, enh *promql.EvalNodeHelper,
	) (promql.Vector, annotations.Annotations) {
		g := guardOf(args)
		if g == nil {
			return call(vectors, matrix, args, enh)
		}
		if err := g.prep.ctx.Err(); err != nil {
			panic(ended(err))
		}
		if w := g.windows; w != nil {
			args, matrix[0].Floats = w.args, w.window(matrix[0].Floats[0].T)
		}
		if buckets {
			vectors = fewerMalformed(vectors)
		}
		out, annos := call(vectors, matrix, args, enh)
		if rates && len(out) > 0 {
			// Behind the call the engine itself notes the name of the series that it has put here.
			matrix[0].Metric = g.prep.noted(matrix[0].Metric)
		}
		return out, g.prep.fewer(annos)
	}
}

// guardCall puts a guard behind the arguments of a call.
func (p *preparation) guardCall(e *parser.Call, w *windowed) {
	n := len(e.Args)
	e.Args = append(e.Args[:n:n], &guard{prep: p, windows: w})[:n]
}

// guardOf returns the guard behind arguments, nil if there is none.
func guardOf(args parser.Expressions) *guard {
	n := len(args)
	if cap(args) == n {
		return nil
	}
	g, _ := args[:n+1][n].(*guard)
	return g
}

// ended returns the engine's error for the end of a context.
func ended(err error) error {
	const when = "expression evaluation"
	if errors.Is(err, context.DeadlineExceeded) {
		return promql.ErrQueryTimeout(when)
	}
	return promql.ErrQueryCanceled(when)
}

// fewerMalformed returns vectors of which none has many buckets whose le is no number. The functions that take
// buckets use none of these, and note each.
func fewerMalformed(vectors []promql.Vector) []promql.Vector {
	for i, v := range vectors {
		n := 0
		malformed := func(s promql.Sample) bool {
			if s.H != nil {
				return false
			}
			bound, err := strconv.ParseFloat(s.Metric.Get(model.BucketLabel), 64)
			if err == nil && !math.IsNaN(bound) {
				return false
			}
			n++
			return n > mostAnnotations
		}
		if slices.ContainsFunc(v, malformed) {
			n = 0
			vectors = slices.Clone(vectors) // the engine's own stay
			vectors[i] = slices.DeleteFunc(slices.Clone(v), malformed)
		}
	}
	return vectors
}

// noted returns the labels of a series whose rate was computed, without a name if the engine would note it beyond the first
// annotations of the query.
func (p *preparation) noted(series labels.Labels) labels.Labels {
	name := series.Get(model.MetricNameLabel)
	for _, counters := range []string{"_total", "_sum", "_count", "_bucket"} { // of which the engine notes nothing
		if strings.HasSuffix(name, counters) {
			return series
		}
	}
	if _, ok := p.rated[name]; ok || name == "" {
		return series
	}
	if len(p.annotated)+len(p.rated) >= mostAnnotations {
		return labels.EmptyLabels()
	}
	p.rated[strings.Clone(name)] = struct{}{}
	return series
}

// mostAnnotations is how many different annotations the functions of a query may leave. A reply has fewer.
const mostAnnotations = 100

// fewer removes annotations beyond the first of the query.
func (p *preparation) fewer(annos annotations.Annotations) annotations.Annotations {
	for text := range annos {
		if _, ok := p.annotated[text]; ok {
			continue
		}
		if len(p.annotated)+len(p.rated) >= mostAnnotations {
			delete(annos, text)
			continue
		}
		p.annotated[text] = struct{}{}
	}
	return annos
}
