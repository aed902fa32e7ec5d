// Package demo generates the measurements of a small data centre: 200 sources of ten metrics each,
// with what makes real data interesting.
//
//   - A day: load follows the time of day, each role with its own evening peak.
//   - Noise, and counters, which restart at 0 when their source does.
//   - An incident every six hours, of 40 minutes: one role in one region gets slow, and its errors and queues grow.
//   - Late reports: on about one day in 20 a source is cut off for ten minutes and delivers these reports two hours
//     later, after their slice is closed.
//
// All of it is a function of the time. Nothing is remembered from call to call, so a test can
// ask what was sent at any moment.
package demo

import (
	"fmt"
	"hash/fnv"
	"math"
	"time"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	minuteMs = int64(time.Minute / time.Millisecond)
	hourMs   = 60 * minuteMs
	dayMs    = 24 * hourMs

	// intervalMs is the time between two reports of a source.
	intervalMs = minuteMs
	// metricsPerSource is the same for every role.
	metricsPerSource = 10

	incidentEveryMs, incidentMs = 6 * hourMs, 40 * minuteMs
	cutMs, deliveredAfterMs     = 10 * minuteMs, 2 * hourMs
)

// Generator yields the reports.
type Generator struct{ sources []source }

// New returns a generator of a number of sources: half of them are web servers, a quarter each databases and caches.
func New(sources int) *Generator {
	g := new(Generator)
	counts := make(map[string]int)
	for i := range sources {
		r := &roles[i%len(roles)]
		counts[r.name]++
		g.sources = append(g.sources, newSource(r, fmt.Sprintf("%s-%03d", r.name, counts[r.name])))
	}
	return g
}

// Series returns the number of series of all sources.
func (g *Generator) Series() int { return len(g.sources) * metricsPerSource }

// Interval returns the time between two reports of a source.
func (g *Generator) Interval() time.Duration { return time.Duration(intervalMs) * time.Millisecond }

// Reports returns what arrives at tMs, which is rounded down to the interval: one report of each source that is not cut
// off, and those that are delivered late now.
func (g *Generator) Reports(tMs int64) (reports []ingest.Report) {
	tMs -= tMs % intervalMs
	for i := range g.sources {
		s := &g.sources[i]
		if !s.cutOff(tMs) {
			reports = append(reports, s.report(tMs))
		}
		if lateMs := tMs - deliveredAfterMs; s.cutOff(lateMs) {
			reports = append(reports, s.report(lateMs))
		}
	}
	return reports
}

// role is what a source does. It decides the shape of the source's data.
type role struct {
	name, work string
	// peakHour is when the day is busiest, in hours UTC.
	peakHour int64
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

// source is one server. Its name chooses all fields.
type source struct {
	name   string
	key    uint64
	role   *role
	region int64
	labels []metric.Label // sorted by name
	// scale makes some servers busier than others.
	scale float64
	// The source restarts every everyMs, at phase restartMs.
	everyMs, restartMs int64
}

func newSource(r *role, name string) source {
	h := fnv.New64a()
	h.Write([]byte(name)) // it returns no error
	s := source{name: name, key: h.Sum64(), role: r}
	s.region = int64(s.random(1, 0) * float64(len(regions)))
	s.scale = 0.6 + 0.8*s.random(2, 0)
	s.everyMs = 11*hourMs + int64(s.random(3, 0)*float64(29*hourMs))
	s.restartMs = int64(s.random(4, 0) * float64(s.everyMs))
	s.labels = []metric.Label{
		{Name: "env", Value: "prod"},
		{Name: "region", Value: regions[s.region]},
		{Name: "role", Value: r.name},
	}
	return s
}

// report returns what the source measures at tMs.
func (s *source) report(tMs int64) ingest.Report {
	r, step := s.role, tMs/intervalMs
	upMs := (tMs - s.restartMs) % s.everyMs
	load, trouble := s.load(tMs), s.trouble(tMs)
	perSecond := r.perSecond * s.scale
	out := ingest.Report{Source: s.name}
	noise := func() float64 { return 2*s.random(uint64(10+len(out.Measurements)), step) - 1 }
	add := func(name string, value float64) {
		out.Measurements = append(out.Measurements, ingest.Measurement{Metric: name, Labels: s.labels, TimeMs: tMs, Value: value})
	}
	// The noise is less than a counter's slowest growth in one interval, so that the counter does not fall.
	counter := func(name string, perSecond float64) {
		add(name, math.Floor(perSecond*(s.busyMs(tMs, upMs)+0.05*float64(intervalMs)*(1+noise()))/1000))
	}
	add("cpu_usage_ratio", round(min(1, max(0.01, 0.08+0.3*load+0.06*noise()+0.3*trouble)), 1e4))
	// Memory grows for some hours after a restart, then stays, in whole pages.
	add("memory_used_bytes", pages(r.memory*(0.3+0.45*(1-math.Exp(-float64(upMs)/float64(3*hourMs)))+0.02*noise())))
	// The disk fills for five days, then is cleaned up.
	add("disk_used_bytes", pages(r.disk*(0.35+0.4*float64((tMs+s.restartMs)%(5*dayMs))/float64(5*dayMs))))
	counter(r.work+"_total", perSecond)
	add("errors_total", math.Floor(perSecond*0.002*(s.busyMs(tMs, upMs)+40*s.troubledMs(tMs, upMs))/1000))
	add("latency_milliseconds", round(max(0.01, r.latencyMs*(0.7+0.4*load+0.2*noise())*(1+6*trouble)), 100))
	add("queue_length", math.Floor(max(0, 3*load*load+2*noise()+120*trouble*s.scale)))
	counter("network_receive_bytes_total", perSecond*1800)
	add("open_connections", math.Floor(20+180*load*(1+trouble)+8*noise()))
	add("temperature_celsius", round(34+14*load+noise()+4*trouble, 10))
	return out
}

// depth is the depth of the day: load goes from 1-depth at night to 1+depth at the peak.
const depth = 0.55

// angle returns the angle of the day, 0 at the peak.
func (s *source) angle(tMs int64) float64 {
	return 2 * math.Pi * float64((tMs-s.role.peakHour*hourMs)%dayMs) / float64(dayMs)
}

// load returns how busy the source is: by the time of day, and more or less than others.
func (s *source) load(tMs int64) float64 { return (1 + depth*math.Cos(s.angle(tMs))) * s.scale }

// busyMs returns for how long the source has worked since it started upMs ago, counted by the load of the day: the
// integral, so that a counter does not depend on earlier calls.
func (s *source) busyMs(tMs, upMs int64) float64 {
	return float64(upMs) + depth*float64(dayMs)/(2*math.Pi)*(math.Sin(s.angle(tMs))-math.Sin(s.angle(tMs-upMs)))
}

// incident returns when the incident of six hours begins, if it hits this source. Roles and regions take turns.
func (s *source) incident(window int64) (beginMs int64, hit bool) {
	hit = s.role.name == [...]string{"web", "db", "cache"}[window%3] && s.region == window/3%int64(len(regions))
	return window*incidentEveryMs + hourMs, hit
}

// trouble returns how deep in an incident the source is: 0 outside, 1 at its worst.
func (s *source) trouble(tMs int64) float64 {
	begin, hit := s.incident(tMs / incidentEveryMs)
	if !hit || tMs < begin || tMs >= begin+incidentMs {
		return 0
	}
	return min(1, float64(tMs-begin)/float64(5*minuteMs), float64(begin+incidentMs-tMs)/float64(15*minuteMs))
}

// troubledMs returns how much of the time since the source started, upMs ago, it was in an incident.
func (s *source) troubledMs(tMs, upMs int64) float64 {
	total := int64(0)
	for w := (tMs - upMs) / incidentEveryMs; w <= tMs/incidentEveryMs; w++ {
		if begin, hit := s.incident(w); hit {
			total += max(0, min(tMs, begin+incidentMs)-max(tMs-upMs, begin))
		}
	}
	return float64(total)
}

// cutOff returns whether measurements at tMs arrive late.
func (s *source) cutOff(tMs int64) bool {
	day := tMs / dayMs
	begin := day*dayMs + int64(s.random(6, day)*float64(dayMs-cutMs))
	return s.random(5, day) < 1.0/20 && begin <= tMs && tMs < begin+cutMs
}

// random returns a number in [0, 1) for this source, a topic and a step. It mixes with the finaliser of splitmix64
// (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014), so that neighbouring steps look unrelated.
func (s *source) random(topic uint64, step int64) float64 {
	x := s.key ^ topic<<56 ^ uint64(step)
	for range 2 {
		x += 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return float64(x>>11) / (1 << 53)
}

// round rounds to as many decimals as an agent would send, given as a power of ten.
func round(x, to float64) float64 { return math.Round(x*to) / to }

// pages rounds to whole pages of memory.
func pages(bytes float64) float64 { return math.Floor(bytes/4096) * 4096 }
