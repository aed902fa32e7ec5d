package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Policy holds the given values of the settings that are stored and can be changed; nil means the
// stored value.
type Policy struct {
	LateGrace, AggregationDelay, AgeCap, FutureLimit *time.Duration
	Retention                                        Retention
	SourceLabels                                     metric.SourceLabels
}

// Retention is how long rows are kept, by the name of the level, for the levels that --retention
// names. Only the ladder shows whether its levels exist.
type Retention map[string]time.Duration

// addRetention adds --retention.
func (p *Policy) addRetention(o *options) {
	given(o.store(), &p.Retention, "retention", "raw=7d,1h=90d,6h=1y,24h=5y", "retention of each level, as LEVEL=SPAN,…; 0 keeps a level for ever", parseRetention)
}

func parseRetention(text string) (Retention, error) {
	out := Retention{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, fmt.Errorf("%q is not of the form LEVEL=SPAN", part)
		}
		keep, err := metric.ParseSpan(value)
		switch {
		case err != nil:
			return nil, err
		case keep < 0:
			return nil, fmt.Errorf("%s of %s: must not be negative; 0 is for ever", value, name)
		}
		out[name] = keep
	}
	return out, nil
}

// addTiming adds the rows for when data enters a slice and when the slice is ground.
func (p *Policy) addTiming(o *options) {
	zeroOrMore := spanCheck{notNegative.valid, "must be 0 or more"}
	o.aggregation().givenSpan(&p.AgeCap, "age-cap", defaultAgeCap, positive, "maximum age of a sample")
	o.aggregation().givenSpan(&p.AggregationDelay, "aggregation-delay", defaultDelay, positive, "time between the end of a slice and its run")
	o.aggregation().givenSpan(&p.LateGrace, "late-grace", defaultGrace, zeroOrMore, "time after the end of a slice during which data still enters it on time")
	o.check(func(*cli.Context) error {
		if p.LateGrace == nil || p.AggregationDelay == nil {
			return nil
		}
		return checkGrace(*p.LateGrace, *p.AggregationDelay)
	})
}

// addAgreed adds the rows on which all processes that take samples must agree.
func (p *Policy) addAgreed(o *options) {
	o.ingest().givenSpan(&p.FutureLimit, "future-limit", defaultFutureLimit, positive, "maximum time that a sample may be ahead of the clock")
	given(o.ingest(), &p.SourceLabels, storage.SourceLabelsFlag, strings.Join(defaultSourceLabels, ","),
		"`LABEL,…` that may name the source of a series without a label source, in order of preference; the same for all protocols, and fixed by the first process that opens the store", parseSourceLabels)
}

func parseSourceLabels(text string) (metric.SourceLabels, error) {
	out := splitWords(text)
	for i, name := range out {
		switch {
		case slices.Contains(out[:i], name):
			return nil, fmt.Errorf("must not name %s twice", name)
		case name == metric.SourceLabel || name == metric.NameLabel:
			return nil, fmt.Errorf("must not name %s: it is no label that may stand for the source", name)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("must name at least one label")
	}
	return out, nil
}

func checkGrace(grace, delay time.Duration) error {
	if grace < delay {
		return nil
	}
	return fmt.Errorf("--late-grace %s: must be shorter than --aggregation-delay, which is %s: a slice may be ground only after data has stopped entering it",
		metric.FormatSpan(grace), metric.FormatSpan(delay))
}

// New returns the policy of a new store on a ladder: the given values, and the defaults for the
// rest.
func (p Policy) New(l metric.Ladder) (storage.Policy, error) {
	base := storage.Policy{
		Grace: defaultGrace, Delay: defaultDelay, AgeCap: defaultAgeCap, FutureLimit: defaultFutureLimit,
		Retention: make(storage.Retention, l.Top()+1), SourceLabels: p.SourceLabels,
	}
	if base.SourceLabels == nil {
		base.SourceLabels = slices.Clone(defaultSourceLabels)
	}
	for b := range base.Retention {
		switch w := time.Duration(l.WidthMs(metric.Bucket(b))) * time.Millisecond; {
		case b == 0:
			base.Retention[b] = 7 * day
		case w <= time.Hour:
			base.Retention[b] = 90 * day
		case w <= 6*time.Hour:
			base.Retention[b] = year
		default:
			base.Retention[b] = 5 * year
		}
	}
	return p.Over(base, l)
}

// The defaults of a new store.
const (
	defaultGrace       = time.Minute
	defaultDelay       = 2 * time.Minute
	defaultAgeCap      = day
	defaultFutureLimit = 10 * time.Minute
)

// defaultSourceLabels serve all protocols. Labels that name a machine come before those that name a part of it or a
// service. Telegraf's host is before Prometheus' instance because plugins of Telegraf and collectd have both, and call
// a disk or a processor the instance.
var defaultSourceLabels = metric.SourceLabels{"host", "instance", "hostname", "host_name", "node", "k8s_node_name", "pod", "server", "job"}

// Over returns the store's policy with the given values in their place. The error says which values
// conflict on the ladder, or with what cannot be changed.
func (p Policy) Over(base storage.Policy, l metric.Ladder) (storage.Policy, error) {
	for _, x := range []struct{ to, from *time.Duration }{
		{&base.Grace, p.LateGrace}, {&base.Delay, p.AggregationDelay}, {&base.AgeCap, p.AgeCap}, {&base.FutureLimit, p.FutureLimit},
	} {
		if x.from != nil {
			*x.to = *x.from
		}
	}
	keep := make(storage.Retention, l.Top()+1)
	copy(keep, base.Retention)
	base.Retention = keep
	errs := []error{checkGrace(base.Grace, base.Delay)}
	if p.SourceLabels != nil && !slices.Equal(base.SourceLabels, p.SourceLabels) {
		errs = append(errs, fmt.Errorf("%w: --%s %s: the store was made with %s, which cannot be changed, since a series whose source another list derives otherwise "+
			"would get a second id: leave the option out, or export the raw samples and import them into a new store",
			storage.ErrSettings, storage.SourceLabelsFlag, strings.Join(p.SourceLabels, ","), strings.Join(base.SourceLabels, ",")))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Retention)) {
		b, err := l.Bucket(name)
		if err != nil {
			errs = append(errs, fmt.Errorf("--retention %s=%s: %w", name, metric.FormatSpan(p.Retention[name]), err))
			continue
		}
		keep[b] = p.Retention[name]
	}
	// The youngest data that is still accepted late climbs from level to level. On each level it
	// waits for the end of a slice and its run.
	least := base.AgeCap
	for _, b := range l.Ground() {
		width := time.Duration(l.WidthMs(b+1)) * time.Millisecond
		least += width + base.Delay
		if keep[b] != 0 && keep[b] < least+width {
			errs = append(errs, fmt.Errorf(
				"--retention %s=%s: is too short: late data needs --age-cap plus the slices up to %s plus their --aggregation-delay, %s in all",
				l.Name(b), metric.FormatSpan(keep[b]), l.Name(b+1), metric.FormatSpan(least+width)))
		}
	}
	return base, errors.Join(errs...)
}
