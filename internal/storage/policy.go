package storage

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
)

// Policy holds the settings that all processes of a store must share and that an operator may
// change: when data enters a slice, when the slice is ground, and how long rows are kept. It is
// stored with the store.
type Policy struct {
	// Data that arrives within Grace after a slice's end still enters the slice on time. The slice
	// is ground Delay after its end.
	Grace time.Duration `json:"late_grace_ns"`
	Delay time.Duration `json:"aggregation_delay_ns"`
	// AgeCap is the maximum age of an accepted sample. FutureLimit is how far an accepted sample
	// may be ahead of the clock.
	AgeCap      time.Duration `json:"age_cap_ns"`
	FutureLimit time.Duration `json:"future_limit_ns"`
	Retention   Retention     `json:"retention_ns"`
	// SourceLabels are the labels that name the source of a series which has no label source, best first; see
	// metric.SourceLabels. They are recorded once and never changed, since series would get a second id.
	SourceLabels metric.SourceLabels `json:"source_labels,omitempty"`
}

// Always returns p for every ladder. It has the form that a store's options ask for.
func (p Policy) Always(metric.Ladder) (Policy, error) { return p, nil }

// Equal reports whether two policies are the same.
func (p Policy) Equal(o Policy) bool {
	return p.Grace == o.Grace && p.Delay == o.Delay && p.AgeCap == o.AgeCap && p.FutureLimit == o.FutureLimit &&
		slices.Equal(p.Retention, o.Retention) && slices.Equal(p.SourceLabels, o.SourceLabels)
}

// SourceLabelsFlag is the flag of Policy.SourceLabels.
const SourceLabelsFlag = "source-labels"

// Value is one setting of a policy, under the name of its flag.
type Value struct {
	Flag, Text string
}

// Values returns the policy's settings as an operator writes them, with the bucket names of the
// store's ladder.
func (p Policy) Values(l metric.Ladder) []Value {
	span := metric.FormatSpan
	kept := make([]string, l.Top()+1)
	for b := range kept {
		kept[b] = l.Name(metric.Bucket(b)) + "=0"
		if keep := p.Retention.Duration(metric.Bucket(b)); keep > 0 {
			kept[b] = l.Name(metric.Bucket(b)) + "=" + span(keep)
		}
	}
	return []Value{
		{"late-grace", span(p.Grace)},
		{"aggregation-delay", span(p.Delay)},
		{"age-cap", span(p.AgeCap)},
		{"future-limit", span(p.FutureLimit)},
		{"retention", strings.Join(kept, ",")},
		{SourceLabelsFlag, strings.Join(p.SourceLabels, ",")},
	}
}

// Differences returns the settings that differ between p and o, each as the value in p and the
// value in o.
func (p Policy) Differences(o Policy, l metric.Ladder) [][2]Value {
	var out [][2]Value
	wanted := o.Values(l)
	for i, v := range p.Values(l) {
		if v != wanted[i] {
			out = append(out, [2]Value{v, wanted[i]})
		}
	}
	return out
}

// MostStep returns the largest step back of a clock after which a slice whose run has begun is still closed, clock.MostStep at most.
func (p Policy) MostStep() time.Duration {
	if between := p.Delay - p.Grace; between > 0 {
		return min(clock.MostStep, between)
	}
	return clock.MostStep
}

// MaxClockSkew returns how far a process's clock may be from the store's own clock, in either
// direction. Two processes that are off by this much in opposite directions differ by at most the
// time between the grace and the run.
func (p Policy) MaxClockSkew() time.Duration {
	most := (p.Delay - p.Grace) / 2
	if p.Grace > 0 {
		most = min(most, p.Grace)
	}
	return most
}

// Policies is the history of a store's policy, oldest first. The first applies from the beginning
// of time.
type Policies []PolicyEpoch

// PolicyEpoch is a policy and the time from which on rows are written under it.
type PolicyEpoch struct {
	FromMs int64 `json:"from_ms"`
	Policy
}

// Now returns the policy in force.
func (ps Policies) Now() Policy { return ps[len(ps)-1].Policy }

// Set returns the history with another policy from nowMs on.
func (ps Policies) Set(p Policy, nowMs int64) Policies {
	if n := len(ps); n > 0 {
		nowMs = max(nowMs, ps[n-1].FromMs) // keep the order even if the clock goes back
	}
	return append(slices.Clone(ps), PolicyEpoch{FromMs: nowMs, Policy: p})
}

// WholeFrom implements Store.WholeFrom for stores with TTLs. There a row expires when the retention
// that it was written under has passed since the write.
//
// Take an epoch that begins at T and ends at U, with the retention R. The rows written until min(U,
// now - R) are gone, unless that time is before T. The last epoch always counts.
//
// A row may be written before its own time: by as much as samples may be ahead of the clock, and by
// the difference of the writer's clock from the store's. WholeFrom adds both.
func (ps Policies) WholeFrom(b metric.Bucket, nowMs int64) int64 {
	whole := int64(math.MinInt64)
	for i, e := range ps {
		gone := e.Retention.From(b, nowMs)
		if gone == math.MinInt64 {
			continue
		}
		early := (e.FutureLimit + e.MaxClockSkew()).Milliseconds()
		if i+1 < len(ps) {
			if i > 0 && gone+early < e.FromMs {
				continue // no row has expired yet
			}
			gone = min(gone, ps[i+1].FromMs)
		}
		whole = max(whole, gone+early)
	}
	return whole
}
