package promquery

import (
	"context"
	"errors"

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
}

// init has all functions of the engine guarded.
func init() {
	for name, call := range promql.FunctionCalls {
		if call != nil { // the engine itself evaluates the others
			promql.FunctionCalls[name] = guarded(call)
		}
	}
}

// guarded panics with an error, as the engine's own functions do.
func guarded(call promql.FunctionCall) promql.FunctionCall {
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
		out, annos := call(vectors, matrix, args, enh)
		return out, g.prep.fewer(annos)
	}
}

// guardCall puts a guard behind the arguments of a call.
func (p *preparation) guardCall(e *parser.Call) {
	n := len(e.Args)
	e.Args = append(e.Args[:n:n], &guard{prep: p})[:n]
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

// mostAnnotations is how many different annotations the functions of a query may leave. A reply has fewer.
const mostAnnotations = 100

// fewer removes annotations beyond the first of the query.
func (p *preparation) fewer(annos annotations.Annotations) annotations.Annotations {
	for text := range annos {
		if _, ok := p.annotated[text]; ok {
			continue
		}
		if len(p.annotated) == mostAnnotations {
			delete(annos, text)
			continue
		}
		p.annotated[text] = struct{}{}
	}
	return annos
}
