package ingest

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/quern/quern/internal/metric"
)

// SourceLabels are the labels that may name a series' source, best first: its source is the value of the first of
// them that it has. metric.SourceLabel comes before all of them.
type SourceLabels []string

// Batch gathers the measurements of one request of a protocol that knows only series, each with all of its labels, and
// puts them together by source. The zero value is empty. What it is given it keeps until Reset, without copying strings.
//
// Measurements are counted from 0, those that are rejected while decoding too.
type Batch struct {
	// Sources say what the source of a series is.
	Sources SourceLabels
	// Max bounds the measurements, and the samples; 0 is no bound.
	Max int

	reports []span
	ready   []Report
	samples []Measurement
	arena   []metric.Label
	text    []byte
	series  Measurement // the one that samples are added to

	n        int // measurements so far
	tooMany  bool
	indexed  bool  // samples and measurements are not the same any more
	indexes  []int // of the samples' measurements, if indexed
	rejected []Rejection
}

// NoMeasurement is the index of a sample that belongs to no measurement.
const NoMeasurement = -1

// span is a report, with its measurements as a range: samples may still move.
type span struct {
	source  string
	derived bool
	begin   int
}

// Reset empties the batch for the next request; what it has grown stays.
func (b *Batch) Reset() {
	clear(b.reports)
	clear(b.ready)
	clear(b.samples)
	clear(b.arena)
	b.reports, b.ready, b.samples, b.arena, b.text = b.reports[:0], b.ready[:0], b.samples[:0], b.arena[:0], b.text[:0]
	b.series, b.n, b.tooMany, b.indexed, b.indexes, b.rejected = Measurement{}, 0, false, false, b.indexes[:0], nil
}

// Series begins a series: what Add adds belongs to it. Labels hold neither the name nor an order, and are copied.
func (b *Batch) Series(name string, labels []metric.Label) {
	source, derived, at := b.source(labels)
	if n := len(b.reports); n == 0 || b.reports[n-1].source != source || b.reports[n-1].derived != derived {
		b.reports = append(b.reports, span{source: source, derived: derived, begin: len(b.samples)})
	}
	if len(b.arena)+len(labels) > cap(b.arena) {
		// What lies in the old one stays there, under the series that have it.
		b.arena = make([]metric.Label, 0, max(2*cap(b.arena), len(labels), 256))
	}
	begin := len(b.arena)
	b.arena = append(b.arena, labels...)
	if !derived {
		b.arena = slices.Delete(b.arena, begin+at, begin+at+1)
	}
	b.series = Measurement{Metric: name, Labels: b.arena[begin:len(b.arena):len(b.arena)]}
}

// Metric begins a series that differs from the one before in nothing but its name. It costs less than Series, here and when
// the series is looked up.
func (b *Batch) Metric(name string) { b.series.Metric = name }

// Own is a copy of s that stays until Reset: for what is not in the body as it has to be, as where something was escaped.
func (b *Batch) Own(s []byte) string {
	if len(s) == 0 {
		return ""
	}
	if len(b.text)+len(s) > cap(b.text) {
		// What lies in the old one stays there, under the strings that have it.
		b.text = make([]byte, 0, max(2*cap(b.text), len(s), 1<<10))
	}
	begin := len(b.text)
	b.text = append(b.text, s...)
	return unsafe.String(&b.text[begin], len(s))
}

// source is a series' source. Unless it is derived, the label at that place names it, and the report says it instead.
func (b *Batch) source(labels []metric.Label) (source string, derived bool, at int) {
	best := len(b.Sources)
	for i := range labels {
		l := &labels[i]
		if l.Value == "" {
			continue
		}
		if l.Name == metric.SourceLabel {
			return l.Value, false, i
		}
		if rank := slices.Index(b.Sources[:best], l.Name); rank >= 0 {
			source, best = l.Value, rank
		}
	}
	return source, true, 0
}

// TooMany says that the batch was too small for the body, so that some of it is missing.
func (b *Batch) TooMany() bool { return b.tooMany }

// Add adds a sample of the series. The time is in Unix ms, or NoTime. It is not added, and false, when the batch is full.
func (b *Batch) Add(timeMs int64, value float64) bool {
	if b.full() {
		return false
	}
	if b.indexed {
		b.indexes = append(b.indexes, b.n)
	}
	b.n++
	b.sample(timeMs, value)
	return true
}

// AddTo adds one more sample of the series to a measurement that is counted already: a histogram is one measurement and
// many samples, and is rejected when one of them is. With NoMeasurement the sample belongs to none, and its rejection has
// that index. It is not added, and false, when the batch is full.
func (b *Batch) AddTo(index int, timeMs int64, value float64) bool {
	if b.full() {
		return false
	}
	b.index()
	b.indexes = append(b.indexes, index)
	b.sample(timeMs, value)
	return true
}

func (b *Batch) sample(timeMs int64, value float64) {
	b.series.TimeMs, b.series.Value = timeMs, value
	b.samples = append(b.samples, b.series)
}

// index has the samples' measurements noted from now on. Until now they were the same.
func (b *Batch) index() {
	if b.indexed {
		return
	}
	b.indexed = true
	for i := range b.samples {
		b.indexes = append(b.indexes, i)
	}
}

func (b *Batch) full() bool {
	b.tooMany = b.tooMany || b.Max > 0 && max(b.n, len(b.samples)) >= b.Max
	return b.tooMany
}

// Overflow makes the batch full: for a decoder that would have to hold too much to go on.
func (b *Batch) Overflow() { b.tooMany = true }

// Reject counts a measurement that could not be decoded. It is not counted, and false, when the batch is full.
func (b *Batch) Reject(reason Reason, format string, args ...any) bool {
	if b.full() {
		return false
	}
	b.index()
	b.rejected = append(b.rejected, Rejection{Index: b.n, Reason: reason, Message: fmt.Sprintf(format, args...)})
	b.n++
	return true
}

// Len is the number of measurements, Rejected how many of them could not be decoded.
func (b *Batch) Len() int { return b.n }

// Rejected is how many measurements could not be decoded.
func (b *Batch) Rejected() int { return len(b.rejected) }

// Reports are what is to be appended. They are valid until Reset.
func (b *Batch) Reports() []Report {
	b.ready = b.ready[:0]
	for i, s := range b.reports {
		end := len(b.samples)
		if i+1 < len(b.reports) {
			end = b.reports[i+1].begin
		}
		if s.begin < end {
			b.ready = append(b.ready, Report{Source: s.source, Derived: s.derived, Measurements: b.samples[s.begin:end]})
		}
	}
	return b.ready
}

// SeriesOf is the series of a measurement in Prometheus' notation. It is false for one that was rejected while decoding.
func (b *Batch) SeriesOf(index int) (string, bool) {
	if b.indexed {
		index = slices.Index(b.indexes, index)
	}
	if index < 0 || index >= len(b.samples) {
		return "", false
	}
	m := &b.samples[index]
	return m.Metric + metric.Labels(m.Labels).String(), true
}

// Result is what became of the batch's measurements: what Append said of its reports, with the
// rejections of decoding, all counted as the batch counts.
func (b *Batch) Result(appended Result) Result {
	if !b.indexed {
		return appended
	}
	all := slices.Clone(b.rejected)
	for _, r := range appended.Rejected {
		r.Index = b.indexes[r.Index]
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b Rejection) int { return a.Index - b.Index })
	all = slices.CompactFunc(all, func(a, b Rejection) bool { return a.Index == b.Index })
	accepted := b.n - len(all)
	if len(all) > 0 && all[0].Index == NoMeasurement {
		accepted++
	}
	return Result{Accepted: accepted, Rejected: all, Overwritten: appended.Overwritten}
}
