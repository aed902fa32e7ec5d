package demo

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// day0 is the first midnight of the tests' days.
var day0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

// each calls f with all reports of [fromMs, toMs), in the order of their arrival.
func each(g *Generator, fromMs, toMs int64, f func(nowMs int64, r ingest.Report)) {
	for now := fromMs; now < toMs; now += intervalMs {
		for _, r := range g.Reports(now) {
			f(now, r)
		}
	}
}

func TestShape(t *testing.T) {
	g := New(200)
	require.Equal(t, 2000, g.Series())

	names := make(map[string]bool)
	series := make(map[string]bool)
	each(g, day0, day0+20*minuteMs, func(_ int64, r ingest.Report) {
		names[r.Source] = true
		require.Len(t, r.Measurements, metricsPerSource)
		for _, m := range r.Measurements {
			labels, err := metric.NewLabels(append(slices.Clone(m.Labels),
				metric.Label{Name: metric.NameLabel, Value: m.Metric},
				metric.Label{Name: metric.SourceLabel, Value: r.Source})...)
			require.NoError(t, err)
			series[labels.String()] = true
		}
	})
	require.Len(t, names, 200)
	require.True(t, names["web-001"] && names["web-100"] && names["db-050"] && names["cache-050"])
	require.Len(t, series, g.Series())
}

// TestSame: the reports at a time do not depend on earlier calls, nor on when the generator was made.
func TestSame(t *testing.T) {
	a, b := New(200), New(200)
	at := day0 + 10*hourMs
	want := a.Reports(at)
	b.Reports(at + dayMs)
	require.Equal(t, want, b.Reports(at))
	require.Equal(t, want, b.Reports(at+59_999), "rounded down to the interval")
}

func TestValuesAreInRange(t *testing.T) {
	each(New(12), day0, day0+dayMs, func(_ int64, r ingest.Report) {
		for _, m := range r.Measurements {
			ok := m.Value >= 0 && !math.IsInf(m.Value, 0) // NaN is not >= 0
			if strings.HasSuffix(m.Metric, "_ratio") {
				ok = ok && m.Value <= 1
			}
			if !ok {
				t.Fatalf("%s of %s at %d is %v", m.Metric, r.Source, m.TimeMs, m.Value)
			}
		}
	})
}

// TestCountersFallOnlyAtRestarts sorts each counter's samples by time, including late ones, and
// takes the restarts from the source.
func TestCountersFallOnlyAtRestarts(t *testing.T) {
	g := New(40)
	const days = 4
	samples := make(map[string]map[string][]ingest.Measurement) // source → metric
	each(g, day0, day0+days*dayMs, func(_ int64, r ingest.Report) {
		if samples[r.Source] == nil {
			samples[r.Source] = make(map[string][]ingest.Measurement)
		}
		for _, m := range r.Measurements {
			if strings.HasSuffix(m.Metric, "_total") {
				samples[r.Source][m.Metric] = append(samples[r.Source][m.Metric], m)
			}
		}
	})
	for i := range g.sources {
		s := &g.sources[i]
		require.Len(t, samples[s.name], 3)
		for name, ms := range samples[s.name] {
			slices.SortFunc(ms, func(a, b ingest.Measurement) int { return int(a.TimeMs - b.TimeMs) })
			resets := 0
			for j := 1; j < len(ms); j++ {
				restarted := (ms[j].TimeMs-s.restartMs)/s.everyMs != (ms[j-1].TimeMs-s.restartMs)/s.everyMs
				if restarted {
					resets++
				}
				if fell := ms[j].Value < ms[j-1].Value; fell != restarted {
					t.Fatalf("%s of %s at %d: %v after %v, restarted: %v",
						name, s.name, ms[j].TimeMs, ms[j].Value, ms[j-1].Value, restarted)
				}
			}
			require.GreaterOrEqual(t, resets, 2, "a source restarts at least every 40 hours")
			require.LessOrEqual(t, resets, 9, "and at most every 11")
		}
	}
}

// TestLate: nothing is sent twice, late reports come after their hour is closed, and nothing is lost.
func TestLate(t *testing.T) {
	g := New(200)
	type sample struct {
		source string
		timeMs int64
	}
	seen := make(map[sample]bool)
	late := 0
	each(g, day0, day0+2*dayMs, func(nowMs int64, r ingest.Report) {
		at := r.Measurements[0].TimeMs
		key := sample{r.Source, at}
		require.False(t, seen[key], "%v is sent twice", key)
		seen[key] = true
		if at != nowMs {
			late++
			require.GreaterOrEqual(t, nowMs-at, hourMs+5*minuteMs)
		}
	})
	for at := day0; at < day0+2*dayMs-deliveredAfterMs; at += intervalMs { // what is late in the end is still to come
		for i := range g.sources {
			require.True(t, seen[sample{g.sources[i].name, at}], "%s at %d got lost", g.sources[i].name, at)
		}
	}
	require.Greater(t, late, 50)
}

// TestIncidentShows: an incident stands out.
func TestIncidentShows(t *testing.T) {
	g := New(200)
	for i := range g.sources {
		s := &g.sources[i]
		if begin, hit := s.incident(day0 / incidentEveryMs); hit {
			latency := func(at int64) float64 { return s.report(at).Measurements[5].Value }
			require.Greater(t, latency(begin+15*minuteMs), 2*latency(begin-5*minuteMs))
			return
		}
	}
	t.Fatal("no source is hit")
}
