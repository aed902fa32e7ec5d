// Package demo generates the measurements of a small data centre: 200 sources of ten metrics each,
// with what makes real data interesting.
//
//   - A day: load follows the time of day, each role with its own evening peak.
//   - Noise, slow and quick, and values rounded as agents round them.
//   - Counters, which restart at 0 when their source does: every 11 to 40 hours.
//   - An incident every six hours, of 40 minutes, that begins in the first two of these
//     hours: one role in one region gets slow, and its errors and queues grow.
//   - Outages: on about one day in 30 a source is silent for 20 to 120 minutes.
//   - Late reports: on about one day in 20 a source is cut off for ten minutes and
//     delivers these reports 75 to 180 minutes later, after their slice is closed.
//
// All of it is a pure function of the seed and the time. Nothing is remembered from call to call,
// so a restarted demo continues where it stopped, and a test can ask what was sent at any moment.
package demo

import (
	"fmt"
	"time"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	minuteMs = int64(time.Minute / time.Millisecond)
	hourMs   = int64(time.Hour / time.Millisecond)
	dayMs    = 24 * hourMs

	// metricsPerSource is the same for every role.
	metricsPerSource = 10
)

// Options says what is generated.
type Options struct {
	// Seed chooses the data centre. The default is 0.
	Seed uint64
	// Sources is the number of sources; half of them are web servers, a quarter each
	// databases and caches. The default is 200.
	Sources int
	// Interval is the time between two reports of a source, in whole milliseconds. The default is
	// 60s.
	Interval time.Duration
}

// EnsureDefaults sets the defaults for zero values.
func (o *Options) EnsureDefaults() {
	if o.Sources == 0 {
		o.Sources = 200
	}
	if o.Interval == 0 {
		o.Interval = time.Minute
	}
}

// Validate returns what is wrong with the options.
func (o *Options) Validate() error {
	if o.Sources < 1 {
		return fmt.Errorf("demo sources: %d, must be at least 1", o.Sources)
	}
	if o.Interval < time.Millisecond || o.Interval%time.Millisecond != 0 {
		return fmt.Errorf("demo interval: %s, must be whole milliseconds", o.Interval)
	}
	return nil
}

// Generator yields the reports. It is for one goroutine at a time.
type Generator struct {
	seed       uint64
	intervalMs int64
	sources    []source

	// Reused from call to call.
	reports      []ingest.Report
	measurements []ingest.Measurement
}

// New returns a generator.
func New(o Options) (*Generator, error) {
	o.EnsureDefaults()
	if err := o.Validate(); err != nil {
		return nil, err
	}
	g := &Generator{seed: o.Seed, intervalMs: o.Interval.Milliseconds()}
	counts := make(map[string]int)
	for i := range o.Sources {
		r := &roles[i%len(roles)]
		counts[r.name]++
		g.sources = append(g.sources, newSource(o.Seed, i, r, counts[r.name]))
	}
	return g, nil
}

// Series returns the number of series of all sources.
func (g *Generator) Series() int { return len(g.sources) * metricsPerSource }

// Sources returns the names of the first n sources, or of all if there are fewer.
func (g *Generator) Sources(n int) []string {
	out := make([]string, min(n, len(g.sources)))
	for i := range out {
		out[i] = g.sources[i].name
	}
	return out
}

// Interval returns the time between two reports of a source.
func (g *Generator) Interval() time.Duration { return time.Duration(g.intervalMs) * time.Millisecond }

// Reports returns what arrives at tMs, which is rounded down to the interval: one report of each
// source that is not silent or cut off, then the late reports that are delivered now. Call it once
// per interval, in order.
//
// The reports and what they refer to belong to the generator. They are valid until the next call
// and must not be changed.
func (g *Generator) Reports(tMs int64) []ingest.Report {
	tMs -= floorMod(tMs, g.intervalMs)
	g.reports = g.reports[:0]
	g.measurements = g.measurements[:0]

	for i := range g.sources {
		s := &g.sources[i]
		if !s.silent(tMs) && !s.cutOff(tMs) {
			g.report(s, tMs)
		}
	}
	for i := range g.sources {
		s := &g.sources[i]
		// Late reports delivered today were cut off today or yesterday.
		for _, day := range [...]int64{floorDiv(tMs, dayMs) - 1, floorDiv(tMs, dayMs)} {
			late, ok := s.lateness(day)
			if !ok || tMs != g.tick(late.deliveredMs) {
				continue
			}
			for at := g.tick(late.startMs); at < late.endMs; at += g.intervalMs {
				if !s.silent(at) && late.startMs <= at {
					g.report(s, at)
				}
			}
		}
	}
	return g.reports
}

// tick rounds up to the interval.
func (g *Generator) tick(tMs int64) int64 {
	return tMs + floorMod(-tMs, g.intervalMs)
}

// report appends what s measures at tMs.
func (g *Generator) report(s *source, tMs int64) {
	from := len(g.measurements)
	g.measurements = s.measure(g.measurements, tMs, g.intervalMs)
	// An append may move the array. Earlier reports then keep the old array, which still holds
	// their values.
	g.reports = append(g.reports, ingest.Report{
		Source:       s.name,
		Measurements: g.measurements[from:len(g.measurements):len(g.measurements)],
	})
}

// role is what a source does. It decides the shape of the source's data.
type role struct {
	name, work string
	// peakHour is when the day is busiest, in hours UTC.
	peakHour float64
	// perSecond is the mean rate of work, latencyMs the time that one piece takes.
	perSecond, latencyMs float64
	memory, disk         float64
}

const gib = 1 << 30

// roles are assigned in this order, so that any number of sources has the mix. The array is never
// written to.
var roles = [...]role{
	{name: "web", work: "http_requests", peakHour: 19, perSecond: 120, latencyMs: 45, memory: 8 * gib, disk: 40 * gib},
	{name: "db", work: "db_queries", peakHour: 20, perSecond: 800, latencyMs: 4, memory: 64 * gib, disk: 900 * gib},
	{name: "web", work: "http_requests", peakHour: 19, perSecond: 120, latencyMs: 45, memory: 8 * gib, disk: 40 * gib},
	{name: "cache", work: "cache_requests", peakHour: 18, perSecond: 4000, latencyMs: 0.6, memory: 32 * gib, disk: 20 * gib},
}

var regions = [...]string{"eu-central", "us-east", "ap-south"}

// source is one server. The seed chooses all fields once.
type source struct {
	key    uint64
	name   string
	role   *role
	region int
	series [metricsPerSource]series

	// scale makes some servers busier than others. phaseMs shifts the day a little.
	scale, phaseMs float64
	// The source restarts every everyMs, at phase restartMs.
	everyMs, restartMs int64
	// The disk fills for fillMs, then is cleaned up.
	fillMs, filledMs int64
}

type series struct {
	name   string
	labels []metric.Label
	key    uint64
}

func newSource(seed uint64, index int, r *role, nth int) source {
	s := source{key: mix(seed ^ mix(uint64(index)+1)), role: r}
	s.name = fmt.Sprintf("%s-%03d", r.name, nth)
	s.region = int(s.draw("region", 0) * float64(len(regions)))
	s.scale = 0.6 + 0.8*s.draw("scale", 0)
	s.phaseMs = (s.draw("phase", 0) - 0.5) * float64(2*hourMs)
	s.everyMs = 11*hourMs + int64(s.draw("every", 0)*float64(29*hourMs))
	s.restartMs = int64(s.draw("restart", 0) * float64(s.everyMs))
	s.fillMs = 3*dayMs + int64(s.draw("fill", 0)*float64(4*dayMs))
	s.filledMs = int64(s.draw("filled", 0) * float64(s.fillMs))

	// Shared by the source's series, sorted by name.
	labels := []metric.Label{
		{Name: "env", Value: "prod"},
		{Name: "region", Value: regions[s.region]},
		{Name: "role", Value: r.name},
	}
	for i, name := range [metricsPerSource]string{
		"cpu_usage_ratio",
		"memory_used_bytes",
		"disk_used_bytes",
		r.work + "_total",
		"errors_total",
		"latency_milliseconds",
		"queue_length",
		"network_receive_bytes_total",
		"open_connections",
		"temperature_celsius",
	} {
		s.series[i] = series{name: name, labels: labels, key: mix(s.key ^ hashString(name))}
	}
	return s
}
