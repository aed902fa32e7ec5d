package adaptor

import (
	"bytes"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/DataDog/sketches-go/ddsketch"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	// Series are bounded by their number and the bytes of their names and tags, and sets by the bytes of all values in an interval, each with
	// the overhead of a map.
	maxStatsd     = 100_000
	maxStatsdKeys = 64 << 20
	maxSetBytes   = 16 << 20
	// A line has at most maxTags tags, and an interval values of maxTimers timers, which take 16 KiB at most.
	maxTags, maxTimers = 100, 10_000
	// maxOrders is in how many orders the tags of a series are known.
	maxOrders   = 16
	mapOverhead = 64
	// forgetAfter is how long nothing came for a series that is forgotten.
	forgetAfter = time.Hour
	// maxSamples is about how many samples are in a chunk.
	maxSamples = 10_000
)

// statsd adds up what lines of StatsD say, with the extensions of DogStatsD:
// https://docs.datadoghq.com/developers/dogstatsd/datagram_shell/. It is for one goroutine.
//
//	c         a counter; its sample is the sum since the start
//	g         a gauge; a value with a sign is added to it
//	s         a set; its sample is how many different values came in the interval
//	ms, h, d  quantiles of the interval, and NAME_count and NAME_sum, which are counters
//
// The first sample of a counter is a zero 1 ms before, so that PromQL's rate sees the first increase, and that the process began anew.
type statsd struct {
	prefix string
	fixed  []metric.Label
	// texts has the series by what lines say, with the tags in their order, and series by their labels.
	texts, series map[string]*tally
	keys, values  int // the bytes of texts, and of sets
	timers        int // with values in this interval
	scratch       []byte
	events        string // what is wrong with the first of them
}

var quantiles = []float64{0.5, 0.9, 0.95, 0.99}

var kinds = map[string]byte{"c": 'c', "g": 'g', "s": 's', "ms": 'm', "h": 'm', "d": 'm'}

// tally is a series, or those of a timer.
type tally struct {
	name   string
	labels []metric.Label
	kind   byte // c, g, s, or m for a timer
	begun  bool // it has a sample
	last   time.Duration

	value  float64 // the sum of a timer, and how many values a set has
	count  float64 // how many values came, scaled by the sampling rates
	orders int     // of its tags
	// What came in the interval, nil if nothing did.
	sketch *ddsketch.DDSketch
	set    map[string]struct{}
}

func newStatsd(prefix string, fixed []metric.Label) *statsd {
	return &statsd{prefix: prefix, fixed: fixed, texts: map[string]*tally{}, series: map[string]*tally{}, events: "events and service checks are not stored"}
}

// read reads NAME:VALUE:VALUE…|TYPE|@RATE|#TAG:VALUE,TAG…, and passes over other sections. now is the running time. It returns what is
// wrong. Of several values, those before a wrong one count.
func (s *statsd) read(line []byte, now time.Duration) (problem string) {
	if line = bytes.TrimSpace(line); len(line) == 0 {
		return ""
	}
	if bytes.HasPrefix(line, []byte("_e{")) || bytes.HasPrefix(line, []byte("_sc|")) {
		problem, s.events = s.events, ""
		return problem
	}
	name, rest, _ := bytes.Cut(line, []byte(":"))
	values, rest, _ := bytes.Cut(rest, []byte("|"))
	text, rest, _ := bytes.Cut(rest, []byte("|"))
	kind, weight := kinds[string(text)], 1.0
	var section, tags []byte
	for len(rest) > 0 {
		section, rest, _ = bytes.Cut(rest, []byte("|"))
		if after, ok := bytes.CutPrefix(section, []byte("#")); ok {
			tags = after
		} else if after, ok := bytes.CutPrefix(section, []byte("@")); ok {
			rate, ok := metric.ParseDecimal(string(after))
			if !ok || rate < 1e-9 || rate > 1 {
				return "the rate must be at least 1e-9, and at most 1"
			}
			weight = 1 / rate
		}
	}
	if len(name) == 0 || len(values) == 0 || kind == 0 {
		return "a line must be NAME:VALUE|TYPE, with one of the types c, g, s, ms, h, d"
	}
	t, problem := s.find(name, tags, kind)
	if problem != "" {
		return problem
	}
	t.last = now
	if kind == 's' { // a value is any text
		if _, has := t.set[string(values)]; has {
			return ""
		}
		if s.values >= maxSetBytes {
			return "there are too many different values of sets in this interval"
		}
		if t.set == nil {
			t.set = map[string]struct{}{}
		}
		s.values += len(values) + mapOverhead
		t.set[string(values)] = struct{}{}
		t.value = float64(len(t.set))
		t.count++
		return ""
	}
	if kind == 'm' && t.sketch == nil {
		if s.timers >= maxTimers {
			return "there are too many timers in this interval"
		}
		s.timers++
		t.sketch, _ = ddsketch.LogCollapsingLowestDenseDDSketch(0.01, 1024) // the accuracy is a valid one; it spans 8 orders of magnitude
	}
	for more := true; more; {
		text, values, more = bytes.Cut(values, []byte(":"))
		value, ok := metric.ParseDecimal(string(text))
		switch {
		case !ok:
			return "the value is not a number"
		case kind == 'c' && value < 0:
			return "a counter cannot fall: send a gauge"
		case kind == 'g' && text[0] != '+' && text[0] != '-':
			t.value = value
		case math.IsInf(t.value+value*weight, 0):
			return "the sum is too large"
		case kind == 'g':
			t.value += value
		case kind == 'm' && t.sketch.AddWithCount(value, weight) != nil:
			return "the value is too large"
		default:
			t.value += value * weight
		}
		t.count += weight
	}
	return ""
}

// find returns the series of a line. For one that is known it does not allocate.
func (s *statsd) find(name, tags []byte, kind byte) (t *tally, problem string) {
	s.scratch = append(append(append(s.scratch[:0], name...), '|'), tags...)
	t = s.texts[string(s.scratch)]
	switch {
	case t != nil:
	case !utf8.Valid(s.scratch):
		return nil, "the line is not UTF-8"
	case bytes.Count(tags, []byte(",")) >= maxTags:
		return nil, "there are too many tags"
	case len(s.texts) >= maxStatsd || s.keys >= maxStatsdKeys:
		return nil, "there are too many series: send fewer tags with many values"
	default:
		if t = s.meet(string(name), string(tags), kind); t.orders < maxOrders {
			t.orders++
			s.keys += len(s.scratch)
			s.texts[string(s.scratch)] = t
		}
	}
	if t.kind != kind {
		return nil, "the series has another type"
	}
	return t, ""
}

// meet returns the series of tags that are new, or in a new order.
func (s *statsd) meet(name, tags string, kind byte) *tally {
	labels := slices.Clone(s.fixed)
	for tag := range strings.SplitSeq(tags, ",") {
		key, value, ok := strings.Cut(tag, ":")
		if !ok {
			value = "true"
		}
		if labels = slices.DeleteFunc(labels, func(has metric.Label) bool { return has.Name == key }); key != "" && value != "" {
			labels = append(labels, metric.Label{Name: key, Value: value})
		}
	}
	slices.SortFunc(labels, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
	key := string(metric.Labels(labels).AppendKey(nil)) + name
	t := s.series[key]
	if t == nil {
		t = &tally{name: s.prefix + name, labels: labels, kind: kind}
		s.series[key] = t
	}
	return t
}

// emit adds the samples of an interval, which ends at a time. full empties the batch.
func (s *statsd) emit(atMs int64, now time.Duration, b *ingest.Batch, full func()) {
	for _, t := range s.series {
		if t.count > 0 {
			t.emit(atMs, b)
		}
		t.sketch, t.set = nil, nil
		if b.Len() >= maxSamples {
			full()
		}
	}
	gone := func(_ string, t *tally) bool { return now-t.last >= forgetAfter }
	maps.DeleteFunc(s.series, gone)
	maps.DeleteFunc(s.texts, gone)
	s.keys, s.values, s.timers = 0, 0, 0
	for text := range s.texts {
		s.keys += len(text)
	}
}

func (t *tally) emit(atMs int64, b *ingest.Batch) {
	switch {
	case t.kind == 'c':
		t.counter(t.name, t.value, atMs, b)
	case t.kind == 'g' || len(t.set) > 0:
		b.Series(t.name, t.labels)
		b.Add(atMs, t.value)
	case t.kind == 'm':
		if t.sketch != nil {
			values, _ := t.sketch.GetValuesAtQuantiles(quantiles) // there are none if each value was refused
			for i, v := range values {
				quantile := metric.Label{Name: "quantile", Value: strconv.FormatFloat(quantiles[i], 'g', -1, 64)}
				b.Series(t.name, append(t.labels, quantile))
				b.Add(atMs, v)
			}
		}
		t.counter(t.name+"_count", t.count, atMs, b)
		t.counter(t.name+"_sum", t.value, atMs, b)
	}
	t.begun = true
}

func (t *tally) counter(name string, value float64, atMs int64, b *ingest.Batch) {
	b.Series(name, t.labels)
	if !t.begun {
		b.Add(atMs-1, 0)
	}
	b.Add(atMs, value)
}
