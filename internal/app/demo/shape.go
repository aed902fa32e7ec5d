package demo

import (
	"math"

	"github.com/quern/quern/internal/ingest"
)

const (
	incidentEveryMs = 6 * hourMs
	incidentMs      = 40 * minuteMs

	// depth is the depth of the day: load goes from 1-depth at night to 1+depth at the peak.
	depth = 0.55
	// omega turns milliseconds into the angle of the day.
	omega = 2 * math.Pi / float64(dayMs)
)

// measure appends the source's measurements at tMs.
func (s *source) measure(dst []ingest.Measurement, tMs, intervalMs int64) []ingest.Measurement {
	r := s.role
	step := floorDiv(tMs, intervalMs)
	upMs := floorMod(tMs-s.restartMs, s.everyMs)
	load := s.day(tMs) * s.scale
	trouble := s.trouble(tMs)

	add := func(i int, value float64) {
		dst = append(dst, ingest.Measurement{
			Metric: s.series[i].name, Labels: s.series[i].labels, TimeMs: tMs, Value: value,
		})
	}
	cpu := 0.08 + 0.3*load + 0.06*s.series[0].drift(tMs) + 0.04*s.series[0].noise(step) + 0.3*trouble
	add(0, round(clamp(cpu, 0.01, 1), 1e4))

	// Memory grows for some hours after a restart, then stays, in whole pages.
	warm := 1 - math.Exp(-float64(upMs)/float64(3*hourMs))
	memory := r.memory * (0.25 + 0.45*warm + 0.04*s.series[1].drift(tMs))
	add(1, math.Floor(memory/4096)*4096)

	fill := float64(floorMod(tMs-s.filledMs, s.fillMs)) / float64(s.fillMs)
	add(2, math.Floor(r.disk*(0.35+0.4*fill)/4096)*4096)

	work := s.counter(tMs, upMs, r.perSecond*s.scale, 0)
	add(3, math.Floor(work+s.series[3].jitter(step, r.perSecond*s.scale, intervalMs)))

	// Errors are rare, except during an incident.
	errorRate := r.perSecond * s.scale * 0.002
	errs := s.counter(tMs, upMs, errorRate, 40*errorRate)
	add(4, math.Floor(errs+s.series[4].jitter(step, errorRate, intervalMs)))

	latency := r.latencyMs * (0.7 + 0.4*load + 0.15*s.series[5].drift(tMs) + 0.2*s.series[5].noise(step)) * (1 + 6*trouble)
	add(5, round(max(latency, 0.01), 100))

	add(6, math.Floor(max(0, 3*load*load+2*s.series[6].noise(step)+120*trouble*s.scale)))

	bytesRate := r.perSecond * s.scale * 1800
	received := s.counter(tMs, upMs, bytesRate, 0)
	add(7, math.Floor(received+s.series[7].jitter(step, bytesRate, intervalMs)))

	add(8, math.Floor(20+180*load*(1+trouble)+8*s.series[8].noise(step)))

	add(9, round(34+14*load+3*s.series[9].drift(tMs)+0.5*s.series[9].noise(step)+4*trouble, 10))
	return dst
}

// day returns the load by the time of day, 1 on average.
func (s *source) day(tMs int64) float64 {
	return 1 + depth*math.Cos(s.angle(tMs))
}

// angle returns the angle of the day, 0 at the peak. It reduces time to the day first: a cosine of
// some 1e5 radians would cost precision and time.
func (s *source) angle(tMs int64) float64 {
	return omega * (float64(floorMod(tMs, dayMs)) - s.role.peakHour*float64(hourMs) - s.phaseMs)
}

// counter returns the count since the restart upMs ago. The rate follows the day around perSecond,
// and an incident adds extraPerSecond. The count is the integral of both in closed form, so it does
// not depend on earlier calls.
func (s *source) counter(tMs, upMs int64, perSecond, extraPerSecond float64) float64 {
	startMs := tMs - upMs
	seconds := float64(upMs) / 1000
	wave := depth / (omega * 1000) * (math.Sin(s.angle(tMs)) - math.Sin(s.angle(startMs)))
	total := perSecond * (seconds + wave)
	if extraPerSecond > 0 {
		for w := floorDiv(startMs, incidentEveryMs); w <= floorDiv(tMs, incidentEveryMs); w++ {
			if begin, ok := s.incident(w); ok {
				overlapMs := min(tMs, begin+incidentMs) - max(startMs, begin)
				total += extraPerSecond * float64(max(0, overlapMs)) / 1000
			}
		}
	}
	return total
}

// jitter makes a counter's steps uneven. It stays below the counter's slowest growth in one
// interval, so that the counter never goes down.
func (s *series) jitter(step int64, perSecond float64, intervalMs int64) float64 {
	least := perSecond * (1 - depth) * float64(intervalMs) / 1000
	return 0.9 * least * unit(s.key^mix(uint64(step)))
}

// incident returns when the incident of window w begins, if it hits this source. Roles and regions
// take turns.
func (s *source) incident(w int64) (beginMs int64, ok bool) {
	hitRole := [...]string{"web", "db", "cache"}[floorMod(w, 3)]
	hitRegion := int(floorMod(floorDiv(w, 3), int64(len(regions))))
	if s.role.name != hitRole || s.region != hitRegion {
		return 0, false
	}
	// The same moment for every source and seed: it depends on the window alone.
	return w*incidentEveryMs + int64(unit(mix(uint64(w)))*float64(2*hourMs)), true
}

// trouble returns how deep in an incident the source is: 0 outside, 1 at its worst. It rises within
// five minutes and falls within fifteen.
func (s *source) trouble(tMs int64) float64 {
	begin, ok := s.incident(floorDiv(tMs, incidentEveryMs))
	if !ok || tMs < begin || tMs >= begin+incidentMs {
		return 0
	}
	in, left := float64(tMs-begin), float64(begin+incidentMs-tMs)
	return min(1, in/float64(5*minuteMs), left/float64(15*minuteMs))
}

// silent reports whether the source is down or unplugged and measures nothing.
func (s *source) silent(tMs int64) bool {
	day := floorDiv(tMs, dayMs)
	if s.draw("outage", day) >= 1.0/30 {
		return false
	}
	// An outage stays within its day, so that one day's draw is enough.
	length := 20*minuteMs + int64(s.draw("outage length", day)*float64(100*minuteMs))
	begin := day*dayMs + int64(s.draw("outage start", day)*float64(dayMs-length))
	return begin <= tMs && tMs < begin+length
}

// late is ten minutes of reports, [startMs, endMs), that arrive at deliveredMs.
type late struct {
	startMs, endMs, deliveredMs int64
}

// lateness returns the day's cut of the source's connection, if there is one.
func (s *source) lateness(day int64) (late, bool) {
	if s.draw("late", day) >= 1.0/20 {
		return late{}, false
	}
	l := late{startMs: day*dayMs + int64(s.draw("late start", day)*float64(dayMs-10*minuteMs))}
	l.endMs = l.startMs + 10*minuteMs
	l.deliveredMs = l.startMs + 75*minuteMs + int64(s.draw("late by", day)*float64(105*minuteMs))
	return l, true
}

// cutOff reports whether measurements at tMs arrive late.
func (s *source) cutOff(tMs int64) bool {
	l, ok := s.lateness(floorDiv(tMs, dayMs))
	return ok && l.startMs <= tMs && tMs < l.endMs
}

// draw returns a number in [0, 1) for this source, topic and day.
func (s *source) draw(topic string, day int64) float64 {
	return unit(s.key ^ hashString(topic) ^ mix(uint64(day)))
}

// drift returns slow noise in [-1, 1): a line through one random point every 20 minutes.
func (s *series) drift(tMs int64) float64 {
	const every = 20 * minuteMs
	at := floorDiv(tMs, every)
	a, b := s.noise(at^1<<40), s.noise((at+1)^1<<40)
	return a + (b-a)*float64(floorMod(tMs, every))/float64(every)
}

// noise returns a number in [-1, 1) for each step.
func (s *series) noise(step int64) float64 {
	return 2*unit(s.key^mix(uint64(step))) - 1
}

// unit maps a key to a number in [0, 1).
func unit(key uint64) float64 { return float64(mix(key)>>11) / (1 << 53) }

// mix is the finaliser of splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014). Every bit of the result depends on every bit of x, so that neighbouring steps
// look unrelated.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// hashString is FNV-1a.
func hashString(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

func clamp(x, low, high float64) float64 { return min(max(x, low), high) }

// round rounds to as many decimals as an agent would send, given as a power of ten.
func round(x, to float64) float64 { return math.Round(x*to) / to }

// floorDiv and floorMod round downwards, so that times before 1970 work as well.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

func floorMod(a, b int64) int64 { return a - floorDiv(a, b)*b }
