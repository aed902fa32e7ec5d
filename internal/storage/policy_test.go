package storage

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMaxClockSkew(t *testing.T) {
	for _, c := range []struct{ delay, grace, want time.Duration }{
		{2 * time.Minute, time.Minute, 30 * time.Second},
		{2 * time.Minute, 10 * time.Second, 10 * time.Second},
		{300 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond},
		{2 * time.Minute, 110 * time.Second, 5 * time.Second},
		{2 * time.Minute, 0, time.Minute},
	} {
		assert.Equal(t, c.want, Policy{Delay: c.delay, Grace: c.grace}.MaxClockSkew())
		assert.LessOrEqual(t, 2*c.want, c.delay-c.grace)
	}
}

// TestPoliciesWholeFrom simulates rows, hour by hour, through changes of the retention. Each row
// keeps the retention that it was written under. All rows from WholeFrom on must be there, and
// WholeFrom must not be much later than needed.
func TestPoliciesWholeFrom(t *testing.T) {
	const hour, hours = int64(3_600_000), 400
	for _, c := range []struct {
		name    string
		changes map[int64]time.Duration // by hour; 0 is for ever
		at      int64
		want    int64 // hours; earlier rows may have expired
	}{
		{"never changed", map[int64]time.Duration{0: 24 * time.Hour}, 100, 76},
		{"for ever", map[int64]time.Duration{0: 0}, 100, math.MinInt64},
		{"raised: what was written before goes as it would have", map[int64]time.Duration{0: 24 * time.Hour, 50: 240 * time.Hour}, 60, 36},
		{"raised, and all from before is gone", map[int64]time.Duration{0: 24 * time.Hour, 50: 240 * time.Hour}, 100, 50},
		{"raised long ago", map[int64]time.Duration{0: 24 * time.Hour, 50: 100 * time.Hour}, 200, 100},
		{"lowered", map[int64]time.Duration{0: 240 * time.Hour, 50: 24 * time.Hour}, 60, 36},
		{"lowered for a while", map[int64]time.Duration{0: 240 * time.Hour, 50: 24 * time.Hour, 60: 240 * time.Hour}, 70, -170},
		{"lowered for a while, and what was written then is gone", map[int64]time.Duration{0: 240 * time.Hour, 50: 24 * time.Hour, 60: 240 * time.Hour}, 90, 60},
		{"for ever since", map[int64]time.Duration{0: 24 * time.Hour, 50: 0}, 100, 50},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ps Policies
			for h := range hours {
				if keep, ok := c.changes[int64(h)]; ok {
					ps = ps.Set(Policy{Retention: Retention{keep}}, int64(h)*hour)
				}
			}
			whole := ps.WholeFrom(0, c.at*hour)
			if c.want == math.MinInt64 {
				require.Equal(t, c.want, whole)
				return
			}
			require.Equal(t, c.want*hour, whole)
			for h := range c.at {
				keep := time.Duration(0)
				for from, k := range c.changes {
					if from <= h && (keep == 0 || from > 0) && latest(c.changes, h) == from {
						keep = k
					}
				}
				if gone := keep > 0 && h+int64(keep/time.Hour) < c.at; gone {
					assert.Less(t, h*hour, whole, "what was written in hour %d has gone", h)
				}
			}
		})
	}
}

func latest(changes map[int64]time.Duration, h int64) int64 {
	out := int64(0)
	for from := range changes {
		if from <= h {
			out = max(out, from)
		}
	}
	return out
}

// TestPoliciesAhead covers a sample that is written before its own time and so expires before its
// time.
func TestPoliciesAhead(t *testing.T) {
	ps := Policies(nil).Set(Policy{Grace: time.Minute, Delay: 2 * time.Minute, FutureLimit: 10 * time.Minute, Retention: Retention{time.Hour}}, 0)
	now := time.UnixMilli(1_700_000_000_000)
	want := now.Add(-time.Hour + 10*time.Minute + 30*time.Second)
	require.Equal(t, want.UnixMilli(), ps.WholeFrom(0, now.UnixMilli()))
}
