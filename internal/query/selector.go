package query

import (
	"context"
	"fmt"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/quern/quern/internal/wire/excerpt"
)

// Selector names series by their labels in Prometheus' notation: cpu{core="0"},
// {__name__=~"cpu|mem",source!="web-1"}. All matchers must match; a label that a series lacks
// counts as empty. The source is a label like any other.
type Selector []*labels.Matcher

// RequestError says in one sentence, for the client, what is wrong with the request. All other
// errors of this package are failures to answer.
type RequestError struct {
	Message string
}

// Error implements error.
func (e *RequestError) Error() string { return e.Message }

// badRequest makes a RequestError. Its message has only the beginning of a client's text.
func badRequest(format string, args ...any) error {
	return &RequestError{Message: fmt.Sprintf(format, excerpt.Args(args)...)}
}

// parseSelector parses a selector. At least one matcher must reject the empty string, so that
// nobody selects everything by mistake; {__name__!=""} selects everything. The error is a
// *RequestError.
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
	return nil, badRequest(`selector %q: at least one matcher must require a value; {__name__!=""} matches all series`, s)
}

// SelectorChecks checks the selectors of one request one after the other, and keeps none. Together they may take as much
// as Admit allows. The zero value is ready. It is used by one goroutine at a time.
type SelectorChecks struct {
	parsed parsed
	last   string // the selector that was checked last, and the result
	result error
}

// Check returns what is wrong with a selector as a *RequestError, nil if nothing is, or limits.ErrNoRoom.
func (c *SelectorChecks) Check(ctx context.Context, selector string) error {
	if selector == c.last && selector != "" {
		return c.result // many in one request are about the same series
	}
	if err := c.parsed.admit(ctx, selector); err != nil {
		return err
	}
	_, err := parseSelector(selector)
	c.last, c.result = strings.Clone(selector), err // it may be a view into a body
	return err
}

// MaxSelectors bounds the selectors of one request: each may scan all series.
const MaxSelectors = 1000

// ParseSelectors parses several selectors; a series must match any of them. The error is a
// *RequestError, also for an empty list, or limits.ErrNoRoom; see Admit.
func ParseSelectors(ctx context.Context, all []string) ([]Selector, error) {
	if len(all) == 0 {
		return nil, badRequest(`no series are selected: give match[], such as match[]=cpu{source="web-1"}`)
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
