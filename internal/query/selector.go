package query

import (
	"context"
	"fmt"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Selector names series by their labels, in Prometheus' notation: cpu{core="0"},
// {__name__=~"cpu|mem",source!="web-1"}. All its matchers must match, and a label
// that a series does not have counts as empty. The source is a label like any other.
type Selector []*labels.Matcher

// RequestError says what is wrong with what was asked for, in one sentence for whoever
// asked. All other errors of this package are failures to answer.
type RequestError struct {
	Message string
}

// Error implements error.
func (e *RequestError) Error() string { return e.Message }

func badRequest(format string, args ...any) error {
	return &RequestError{Message: fmt.Sprintf(format, args...)}
}

// parseSelector reads a selector. At least one matcher must not match the empty
// string, so that nobody asks for everything by mistake: {__name__!=""} is everything.
// The error is a *RequestError.
func parseSelector(s string) (Selector, error) {
	matchers, err := parser.NewParser(parser.Options{}).ParseMetricSelector(s)
	if err != nil {
		return nil, badRequest("selector %q: %v", s, err)
	}
	for _, m := range matchers {
		if !m.Matches("") {
			return matchers, nil
		}
	}
	return nil, badRequest(`selector %q: at least one label must be asked to have a value; {__name__!=""} is all series`, s)
}

// MaxSelectors bounds those of one request: each looks through all series.
const MaxSelectors = 1000

// ParseSelectors reads several selectors, of which a series must match any. The error
// is a *RequestError, also when there are none, or admission.ErrNoRoom; see Admit.
func ParseSelectors(ctx context.Context, all []string) ([]Selector, error) {
	if len(all) == 0 {
		return nil, badRequest(`no series are asked for: give match[], such as match[]=cpu{source="web-1"}`)
	}
	if err := Admit(ctx, all...); err != nil {
		return nil, err
	}
	out := make([]Selector, len(all))
	for i, s := range all {
		var err error
		if out[i], err = parseSelector(s); err != nil {
			return nil, err
		}
	}
	return out, nil
}
