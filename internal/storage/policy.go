package storage

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/metric"
)

// Policy is what all processes of a store must agree on, and an operator may change: when data enters a slice, when the
// slice is ground, and how long rows are kept. It is stored with the store.
type Policy struct {
	// Grace is how long after its end data enters a slice on time, Delay how long after its end the slice is ground.
	Grace time.Duration `json:"late_grace_ns"`
	Delay time.Duration `json:"aggregation_delay_ns"`
	// AgeCap is how old a sample may be to be taken, and FutureLimit how far ahead of the clock.
	AgeCap      time.Duration `json:"age_cap_ns"`
	FutureLimit time.Duration `json:"future_limit_ns"`
	Retention   Retention     `json:"retention_ns"`
}

// Always is the policy for whatever ladder, as a store's options ask for it.
func (p Policy) Always(metric.Ladder) (Policy, error) { return p, nil }

// Equal says whether two policies are the same.
func (p Policy) Equal(o Policy) bool {
	return p.Grace == o.Grace && p.Delay == o.Delay && p.AgeCap == o.AgeCap && p.FutureLimit == o.FutureLimit &&
		slices.Equal(p.Retention, o.Retention)
}

// Value is a setting of a policy under the name of its flag.
type Value struct {
	Flag, Text string
}

// Values are the policy's settings as an operator gives them, on the store's ladder.
func (p Policy) Values(l metric.Ladder) []Value {
	span := metric.FormatSpan
	kept := make([]string, l.Top()+1)
	for b := range kept {
		kept[b] = l.Name(metric.Bucket(b)) + "=0"
		if keep := p.Retention.Of(metric.Bucket(b)); keep > 0 {
			kept[b] = l.Name(metric.Bucket(b)) + "=" + span(keep)
		}
	}
	return []Value{
		{"late-grace", span(p.Grace)},
		{"aggregation-delay", span(p.Delay)},
		{"age-cap", span(p.AgeCap)},
		{"future-limit", span(p.FutureLimit)},
		{"retention", strings.Join(kept, ",")},
	}
}

// Differences are the settings in which another policy differs, each with the value in p and then that in o.
func (p Policy) Differences(o Policy, l metric.Ladder) [][2]Value {
	var out [][2]Value
	theirs := o.Values(l)
	for i, v := range p.Values(l) {
		if v != theirs[i] {
			out = append(out, [2]Value{v, theirs[i]})
		}
	}
	return out
}

// MaxClockSkew is how far a process's clock may be from the store's own. Two processes that are as far to either
// side must together stay within what lies between the grace and the run.
func (p Policy) MaxClockSkew() time.Duration {
	most := (p.Delay - p.Grace) / 2
	if p.Grace > 0 {
		most = min(most, p.Grace)
	}
	return most
}

// Policies is the history of a store's policy, oldest first. The first counts from the beginning of time.
type Policies []PolicyEpoch

// PolicyEpoch is a policy and the time from which on rows are written by it.
type PolicyEpoch struct {
	FromMs int64 `json:"from_ms"`
	Policy
}

// Now is the policy in force.
func (ps Policies) Now() Policy { return ps[len(ps)-1].Policy }

// Set is the history with another policy from nowMs on.
func (ps Policies) Set(p Policy, nowMs int64) Policies {
	if n := len(ps); n > 0 {
		nowMs = max(nowMs, ps[n-1].FromMs) // a clock that goes back must not turn the history round
	}
	return append(slices.Clone(ps), PolicyEpoch{FromMs: nowMs, Policy: p})
}

// WholeFrom is Store.WholeFrom where a row goes when the retention that it was written under has passed since it
// was written. Of an epoch that begins at T and ends at U, with the retention R, rows written until min(U, now - R) are gone,
// if that is not before T. A row may be written before its own time, by as much as samples may be ahead of the
// clock, and by a clock that differs from the store's.
func (ps Policies) WholeFrom(b metric.Bucket, nowMs int64) int64 {
	whole := int64(math.MinInt64)
	for i, e := range ps {
		keep := e.Retention.Of(b).Milliseconds()
		if keep == 0 {
			continue
		}
		early := (e.FutureLimit + e.MaxClockSkew()).Milliseconds()
		gone := nowMs - keep
		if i+1 < len(ps) {
			if i > 0 && gone+early < e.FromMs {
				continue // none has gone yet
			}
			gone = min(gone, ps[i+1].FromMs)
		}
		whole = max(whole, gone+early)
	}
	return whole
}
