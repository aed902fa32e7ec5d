package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
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
		return nil // what is shown as the default are those of the default ladder
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

// RetentionOn is how long the rows of each of the ladder's buckets are kept, by bucket,
// raw first. The error says which is wrong on that ladder.
func (c Config) RetentionOn(l metric.Ladder) ([]time.Duration, error) {
	return c.Retention.on(l, c.AgeCap, c.AggregationDelay)
}

// RetentionOn is what Config's is, without regard to how late data may be.
func (s Schema) RetentionOn(l metric.Ladder) ([]time.Duration, error) {
	return s.Retention.on(l, 0, 0)
}

// on gives what is not named a default that suits the width.
func (r Retention) on(l metric.Ladder, ageCap, delay time.Duration) ([]time.Duration, error) {
	out := make([]time.Duration, l.Top()+1)
	for b := range out {
		switch w := time.Duration(l.WidthMs(metric.Bucket(b))) * time.Millisecond; {
		case b == 0:
			out[b] = 7 * day
		case w <= time.Hour:
			out[b] = 90 * day
		case w <= 6*time.Hour:
			out[b] = year
		default:
			out[b] = 5 * year
		}
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(r)) {
		b, err := l.Bucket(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--retention %s=%s: %w", name, metric.FormatSpan(r[name]), err))
			continue
		}
		out[b] = r[name]
	}
	// The youngest data that is still taken late has to climb from level to level, and
	// waits on each for the end of a slice and its run.
	least := ageCap
	for _, b := range l.Ground() {
		width := time.Duration(l.WidthMs(b+1)) * time.Millisecond
		least += width + delay
		if keep := out[b]; keep != 0 && keep < least+width {
			errs = append(errs, fmt.Errorf(
				"--retention %s=%s: is too short: late data needs it for --age-cap, the slices up to %s and their --aggregation-delay, %s in all",
				l.Name(b), metric.FormatSpan(keep), l.Name(b+1), metric.FormatSpan(least+width)))
		}
	}
	return out, errors.Join(errs...)
}
