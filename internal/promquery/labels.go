package promquery

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/prometheus/prometheus/promql/parser"

	"github.com/quern/quern/internal/query"
)

// made bounds the labels that label_replace and label_join make. The engine makes those of all series in one go, without a
// look at its context, and a chain of functions may multiply their lengths.
type made struct {
	bytes    growth // of all labels that are made for a series
	matching growth // bytes that patterns look at for a series, times their size
	steps    int64  // at which count_values makes series; 1 without it

	series  int // that selectors have found, and one that has no selector
	longest int // the sum of the longest value of each
}

// growth is a length: of fixed bytes, and of the longest value of a label some times.
type growth struct{ fixed, times float64 }

func (g growth) add(more growth, factor float64) growth {
	return growth{g.fixed + more.fixed*factor, g.times + more.times*factor}
}

func (g growth) max(other growth) growth {
	return growth{max(g.fixed, other.fixed), max(g.times, other.times)}
}

// total returns the length for all series so far.
func (m *made) total(g growth) float64 {
	return (g.fixed*float64(m.series) + g.times*float64(m.longest)) * float64(m.steps)
}

const (
	// valueBytes is the longest text of a number.
	valueBytes = 328
	// maxMatching bounds the matching of label_replace in one query. This much takes some ten seconds.
	maxMatching = 200_000_000
)

// madeBy returns what the functions of an expression make, which is evaluated at some steps.
func madeBy(e parser.Expr, steps int64) made {
	m := made{steps: 1, series: 1}
	lengths := make(map[string]growth) // of labels that may be made, by name
	length := func(name string) growth { return lengths[name].max(growth{times: 1}) }
	var visit func(node parser.Node)
	visit = func(node parser.Node) {
		if sub, ok := node.(*parser.SubqueryExpr); ok {
			steps += int64(sub.Range / cmp.Or(sub.Step, time.Minute))
		}
		for child := range parser.ChildrenIter(node) {
			visit(child)
		}
		switch e := node.(type) {
		case *parser.AggregateExpr:
			if e.Op == parser.COUNT_VALUES {
				m.steps = max(steps, 1)
				lengths[text(e.Param)] = length(text(e.Param)).max(growth{fixed: valueBytes})
			}
		case *parser.Call:
			to, made := "", growth{}
			switch e.Func.Name {
			case "label_replace": // (v, to, by, from, pattern)
				by, from, pattern := text(e.Args[2]), length(text(e.Args[3])), text(e.Args[4])
				to, made = text(e.Args[1]), growth{fixed: float64(len(by))}.add(from, float64(strings.Count(by, "$")))
				m.matching = m.matching.add(from, float64(query.PatternSize(pattern)))
			case "label_join": // (v, to, separator, from…)
				to = text(e.Args[1])
				for _, from := range e.Args[3:] {
					made = made.add(length(text(from)), 1)
					made.fixed += float64(len(text(e.Args[2])))
				}
			default:
				return
			}
			lengths[to] = length(to).max(made)
			m.bytes = m.bytes.add(made, 1)
		}
	}
	visit(e)
	return m
}

// over adds series that a selector has found, and returns an error if the labels made for all may be too many.
func (m *made) over(found []foundSeries, maxSamples int64) error {
	if m.bytes == (growth{}) && m.matching == (growth{}) {
		return nil
	}
	m.series += len(found)
	for i := range found {
		longest := 0
		for l := range found[i].stored.All() {
			longest = max(longest, len(l.Value))
		}
		m.longest += longest
	}
	if bytes := m.total(m.bytes); bytes > float64(maxSamples)*sampleBytes {
		return &query.RequestError{Message: fmt.Sprintf("label_replace, label_join and other functions may make %.0f MB of labels for %d series, more than the %d samples "+
			"that a query may hold take (--query-max-samples): narrow the selectors, or use shorter texts", bytes/1e6, m.series, maxSamples)}
	}
	if m.total(m.matching) > maxMatching {
		return &query.RequestError{Message: fmt.Sprintf("the patterns of label_replace would take too long for %d series: narrow the selectors, or use shorter patterns", m.series)}
	}
	return nil
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
