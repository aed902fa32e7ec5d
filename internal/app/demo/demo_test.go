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

func newGenerator(t testing.TB, o Options) *Generator {
	g, err := New(o)
	require.NoError(t, err)
	return g
}

// clone copies reports, so that they survive the next call.
func clone(reports []ingest.Report) []ingest.Report {
	out := slices.Clone(reports)
	for i := range out {
		out[i].Measurements = slices.Clone(out[i].Measurements)
	}
	return out
}

// each calls f with all reports of [fromMs, toMs), in the order of their arrival.
func each(g *Generator, fromMs, toMs int64, f func(nowMs int64, r ingest.Report)) {
	for now := fromMs; now < toMs; now += g.intervalMs {
		for _, r := range g.Reports(now) {
			f(now, r)
		}
	}
}

func TestShape(t *testing.T) {
	g := newGenerator(t, Options{})
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

// TestSameForSeedAndTime: the reports at a time do not depend on earlier calls, nor on when the
// generator was made.
func TestSameForSeedAndTime(t *testing.T) {
	a, b := newGenerator(t, Options{Seed: 7}), newGenerator(t, Options{Seed: 7})
	at := day0 + 10*hourMs
	want := clone(a.Reports(at))
	for _, other := range []int64{at + dayMs, 0, at - 1000*dayMs} {
		b.Reports(other)
	}
	require.Equal(t, want, b.Reports(at))
	require.Equal(t, want, b.Reports(at+59_999), "rounded down to the interval")
	require.NotEqual(t, want, newGenerator(t, Options{Seed: 8}).Reports(at))
}

func TestValuesAreInRange(t *testing.T) {
	for _, interval := range []time.Duration{0, time.Second, time.Hour} {
		g := newGenerator(t, Options{Sources: 12, Interval: interval})
		// Around the epoch, where mistakes with negative times would show, and at extreme times.
		for _, from := range []int64{-hourMs, day0, math.MaxInt64 / 4} {
			for i := range int64(200) {
				for _, r := range g.Reports(from + i*g.intervalMs) {
					for _, m := range r.Measurements {
						ok := m.Value >= 0 && !math.IsInf(m.Value, 0) // NaN is not >= 0
						if strings.HasSuffix(m.Metric, "_ratio") {
							ok = ok && m.Value <= 1
						}
						if m.Metric == "latency_milliseconds" {
							ok = ok && m.Value == math.Round(m.Value*100)/100
						}
						if !ok {
							t.Fatalf("%s of %s at %d is %v", m.Metric, r.Source, m.TimeMs, m.Value)
						}
					}
				}
			}
		}
	}
}

// TestCountersFallOnlyAtRestarts sorts each counter's samples by time, including late ones, and
// takes the restarts from the source.
func TestCountersFallOnlyAtRestarts(t *testing.T) {
	g := newGenerator(t, Options{Sources: 40})
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
				restarted := floorDiv(ms[j].TimeMs-s.restartMs, s.everyMs) != floorDiv(ms[j-1].TimeMs-s.restartMs, s.everyMs)
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

// TestLateAndSilent counts over ten days: nothing is sent twice, late reports come after their hour
// is closed, and only outages lose samples.
func TestLateAndSilent(t *testing.T) {
	g := newGenerator(t, Options{Interval: 5 * time.Minute})
	const days = 10
	type sample struct {
		source string
		timeMs int64
	}
	seen := make(map[sample]bool)
	lateReports := 0
	each(g, day0, day0+days*dayMs, func(nowMs int64, r ingest.Report) {
		at := r.Measurements[0].TimeMs
		key := sample{r.Source, at}
		if seen[key] {
			t.Fatalf("%v is sent twice", key)
		}
		seen[key] = true
		if at != nowMs {
			lateReports++
			require.GreaterOrEqual(t, nowMs-at, 65*minuteMs)
			require.LessOrEqual(t, nowMs-at, 3*hourMs+g.intervalMs)
		}
	})
	missing := 0
	// Reports cut off in the last hours are still to come.
	for at := day0; at < day0+days*dayMs-4*hourMs; at += g.intervalMs {
		for i := range g.sources {
			if s := &g.sources[i]; !seen[sample{s.name, at}] {
				missing++
				if !s.silent(at) {
					t.Fatalf("%s at %d got lost", s.name, at)
				}
			}
		}
	}
	// 200 sources, 10 days: about 67 outages of 14 samples, about 100 cuts of 2.
	require.Greater(t, missing, 400)
	require.Less(t, missing, 2000)
	require.Greater(t, lateReports, 100)
	require.Less(t, lateReports, 400)
}

// TestIncidentShows: any eight hours have an incident, and it stands out.
func TestIncidentShows(t *testing.T) {
	g := newGenerator(t, Options{})
	for from := day0; from < day0+2*dayMs; from += hourMs {
		found := false
		for at := from; at < from+8*hourMs && !found; at += minuteMs {
			for i := range g.sources {
				found = found || g.sources[i].trouble(at) == 1
			}
		}
		require.True(t, found, "none within eight hours of %d", from)
	}

	latency := func(s *source, at int64) float64 {
		return s.measure(nil, at, minuteMs)[5].Value
	}
	for i := range g.sources {
		s := &g.sources[i]
		if begin, ok := s.incident(floorDiv(day0, incidentEveryMs)); ok {
			require.Greater(t, latency(s, begin+15*minuteMs), 2*latency(s, begin-5*minuteMs))
			return
		}
	}
	t.Fatal("no source is hit")
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{Sources: -1},
		{Interval: -time.Second},
		{Interval: 1500 * time.Microsecond},
	} {
		_, err := New(o)
		require.Error(t, err, "%+v", o)
	}
}
