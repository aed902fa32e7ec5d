// Package bound restricts a request to some series: those that the token of its client is bound to. What finds series
// and what takes samples ask it, so that endpoints need not.
package bound

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	// maxSelectors and maxText bound what each request is compared with.
	maxSelectors = 8
	maxText      = 1 << 10
)

// Bound is a set of series. A series is in it if all matchers of any of the selectors match; a label that a series lacks
// counts as empty. It is safe for concurrent use. All requests of a token share one.
type Bound struct {
	sels [][]*labels.Matcher
	text string
	// room counts what the series may become.
	room
}

// Parse returns the bound of selectors in Prometheus' notation. At least one matcher of each must require a value.
// maxSeries is how many series there may be, 0 for any number. The error says what is wrong with the selectors.
func Parse(selectors []string, maxSeries int) (*Bound, error) {
	b := &Bound{text: strings.Join(selectors, " or "), room: room{most: maxSeries}}
	switch {
	case len(selectors) == 0:
		return nil, errors.New("a bound needs a selector")
	case len(selectors) > maxSelectors || len(b.text) > maxText:
		return nil, fmt.Errorf("a token is bound by at most %d selectors, of %d bytes together: use a label that the series share", maxSelectors, maxText)
	}
	for _, text := range selectors {
		sel, err := parser.NewParser(parser.Options{}).ParseMetricSelector(text)
		if err != nil {
			return nil, fmt.Errorf("selector %q: %w", text, err)
		}
		if !slices.ContainsFunc(sel, func(m *labels.Matcher) bool { return !m.Matches("") }) {
			return nil, fmt.Errorf(`selector %q binds to nothing: at least one matcher must require a value, such as {team="web"}`, text)
		}
		b.sels = append(b.sels, sel)
	}
	return b, nil
}

// String returns the selectors.
func (b *Bound) String() string { return b.text }

// Selectors returns the selectors, which callers MUST NOT change.
func (b *Bound) Selectors() [][]*labels.Matcher { return b.sels }

// Has returns whether a series is in b, by what get says of its labels: the value, or "" if it lacks the label. The cost
// grows with the values that are compared.
func (b *Bound) Has(get func(name string) string) bool {
	return slices.ContainsFunc(b.sels, func(sel []*labels.Matcher) bool {
		return !slices.ContainsFunc(sel, func(m *labels.Matcher) bool { return !m.Matches(get(m.Name)) })
	})
}

// Lacks returns a label that keeps a series out of b, one that matters to the first selector.
func (b *Bound) Lacks(get func(name string) string) string {
	for _, m := range b.sels[0] {
		if !m.Matches(get(m.Name)) {
			return m.Name
		}
	}
	return ""
}

type boundKey struct{}

// WithBound returns the context of a request that is restricted to b. With nil it is restricted to nothing.
func WithBound(ctx context.Context, b *Bound) context.Context {
	if b == nil {
		return ctx
	}
	return context.WithValue(ctx, boundKey{}, b)
}

// FromContext returns what the request of a context is restricted to, nil if it may have all series.
func FromContext(ctx context.Context) *Bound {
	b, _ := ctx.Value(boundKey{}).(*Bound)
	return b
}
