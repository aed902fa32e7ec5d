package config

import (
	"strings"
	"time"

	"github.com/quern/quern/internal/metric"
)

// Retention is how long rows are kept, by the name of the level, for the levels that --retention
// names.
type Retention map[string]time.Duration

// retention reads --retention. Only the ladder shows whether its levels exist.
func (p *parser) retention() Retention {
	if !p.c.IsSet("retention") {
		return nil // --help shows the default of a new store with the default ladder
	}
	out := Retention{}
	for part := range strings.SplitSeq(p.c.String("retention"), ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			p.fail("retention", "%q is not of the form LEVEL=SPAN", part)
			continue
		}
		keep, err := metric.ParseSpan(value)
		switch {
		case err != nil:
			p.fail("retention", "%s", err)
		case keep < 0:
			p.fail("retention", "%s of %s: must not be negative; 0 is for ever", value, name)
		}
		out[name] = keep
	}
	return out
}
