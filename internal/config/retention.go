package config

import (
	"strings"
	"time"

	"github.com/quern/quern/internal/metric"
)

// Retention is how long the rows of levels are kept, by the names of those that
// --retention names.
type Retention map[string]time.Duration

// retention reads --retention. Whether there are the levels that it names is known
// only with the ladder.
func (p *parser) retention() Retention {
	if !p.c.IsSet("retention") {
		return nil // what is shown as the default are those of the default ladder, of a new store
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
