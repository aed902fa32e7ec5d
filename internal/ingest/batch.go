package ingest

import (
	"cmp"
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
//
// It bounds what a hostile body can make of few bytes. Decoders keep to that by three rules: they collect labels by Label,
// they stop when TooMany says so, and what they build or collect otherwise they ask for by Charge.
type Batch struct {
	// Sources say what the source of a series is.
	Sources SourceLabels
	// Max bounds the measurements, and the samples; 0 is no bound.
	Max int
	// MaxLabels bounds the labels of a series; the measurements of one that has more are rejected. The default is 128.
	MaxLabels int
	// MaxText bounds the bytes of names and labels of all series, each counted with all of its labels although many
	// may share them: that is what ingest reads to find them. 0 is no bound.
	MaxText int64
	// Allowance is what the batch takes its memory of.
	Allowance Allowance

	reports []span
	ready   []Report
	samples []Measurement
	arena   []metric.Label
	owned   []byte
	series  Measurement // the one that samples are added to
	// excess says that the series has too many labels; labelText are the bytes of its labels.
	excess    bool
	labelText int64
	// text are the bytes of the series' labels and name until its first sample, allText those of all series that have one.
	text, allText int64

	n        int   // measurements so far
	stopped  error // why no more is taken
	indexed  bool  // samples and measurements are not the same any more
	indexes  []int // of the samples' measurements, if indexed
	rejected []Rejection
	messages messages
}

// NoMeasurement is the index of a sample that belongs to no measurement.
const NoMeasurement = -1

const (
	defaultMaxLabels = 128
	// MaxNameBytes bounds the names of metrics that a decoder puts together of several texts. It is above what ingest takes.
	MaxNameBytes = 1 << 10
	// maxMergedSource is the longest source that is compared with the one before. Longer ones are rejected by ingest.
	maxMergedSource = 4 << 10

	// measurementBytes are about what a measurement takes: here, as a sample and a rejection of ingest, and in the reply.
	measurementBytes = 128
	labelBytes       = int64(unsafe.Sizeof(metric.Label{}))
	spanBytes        = int64(unsafe.Sizeof(span{}) + unsafe.Sizeof(Report{}))
	rejectionBytes   = 2 * int64(unsafe.Sizeof(Rejection{}))
	// maxKeptBytes is about what of each of its buffers a batch keeps for the next request.
	maxKeptBytes = 8 << 20
)

// span is a report, with its measurements as a range: samples may still move.
type span struct {
	source  string
	derived bool
	begin   int
}

// is says whether series of a source may go on with the span. Long sources count as different: to compare them for each
// series would cost more than the bytes of the series.
func (s *span) is(source string, derived bool) bool {
	return s.derived == derived && len(source) <= maxMergedSource && s.source == source
}

// Reset empties the batch for the next request, or for more of the same one. What it has grown stays, unless that is much.
func (b *Batch) Reset() {
	b.reports, b.ready = emptied(b.reports), emptied(b.ready)
	b.samples, b.arena = emptied(b.samples), emptied(b.arena)
	b.owned, b.indexes = emptied(b.owned), emptied(b.indexes)
	b.series, b.excess, b.labelText, b.text, b.allText = Measurement{}, false, 0, 0, 0
	b.n, b.stopped, b.indexed, b.rejected = 0, nil, false, nil
	clear(b.messages)
	b.Allowance.reuse()
}

// emptied is s without what is in it. One that has grown large is let go.
func emptied[T any](s []T) []T {
	if uintptr(cap(s))*unsafe.Sizeof(*new(T)) > maxKeptBytes {
		return nil
	}
	clear(s)
	return s[:0]
}

// Label appends a label of the series that is being read, for Series. Labels that are too many are left out; Series sees
// that there were some.
func (b *Batch) Label(to []metric.Label, name, value string) []metric.Label {
	if len(to) > b.maxLabels() {
		return to
	}
	return append(to, metric.Label{Name: name, Value: value})
}

func (b *Batch) maxLabels() int { return cmp.Or(b.MaxLabels, defaultMaxLabels) }

// Charge takes n bytes of the allowance for what a decoder keeps outside of the batch. Without them the batch is full, and
// it is false.
func (b *Batch) Charge(n int64) bool {
	if b.stopped == nil && !b.Allowance.Grow(n) {
		b.stopped = b.Allowance.Err()
	}
	return b.stopped == nil
}

// Series begins a series: what Add adds belongs to it. Labels hold neither the name nor an order, and are copied. Of a
// series with too many labels every measurement is rejected.
func (b *Batch) Series(name string, labels []metric.Label) {
	if b.excess = len(labels) > b.maxLabels(); b.excess {
		b.series = Measurement{Metric: name}
		return
	}
	if !b.Charge(int64(len(labels)) * labelBytes) {
		return
	}
	b.labelText = 0
	for i := range labels {
		b.labelText += int64(len(labels[i].Name) + len(labels[i].Value))
	}
	source, derived, at := b.source(labels)
	if n := len(b.reports); n == 0 || !b.reports[n-1].is(source, derived) {
		if !b.Charge(spanBytes) {
			return
		}
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
	b.text = b.labelText + int64(len(name))
}

// Metric begins a series that differs from the one before in nothing but its name. It costs less than Series, here and when
// the series is looked up.
func (b *Batch) Metric(name string) {
	b.series.Metric, b.text = name, b.labelText+int64(len(name))
}

// Own is a copy of s that stays until Reset: for what is not in the body as it has to be, as where something was escaped. When
// the batch is full it is "".
func (b *Batch) Own(s []byte) string {
	if len(s) == 0 || !b.Charge(int64(len(s))) {
		return ""
	}
	if len(b.owned)+len(s) > cap(b.owned) {
		// What lies in the old one stays there, under the strings that have it.
		b.owned = make([]byte, 0, max(2*cap(b.owned), len(s), 1<<10))
	}
	begin := len(b.owned)
	b.owned = append(b.owned, s...)
	return unsafe.String(&b.owned[begin], len(s))
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

// TooMany says that the batch was too small for the body, or that nobody waits for it any more, so that some of it is
// missing. Err says why.
func (b *Batch) TooMany() bool { return b.stopped != nil }

// Err is why the batch takes no more: ErrTooMany, or an error of its allowance. It is nil as long as it does.
func (b *Batch) Err() error { return b.stopped }

// Add adds a sample of the series. The time is in Unix ms, or NoTime. It is not added, and false, when the batch is full.
func (b *Batch) Add(timeMs int64, value float64) bool {
	switch {
	case b.excess:
		return b.Reject(ReasonLimit, excessMessage, b.maxLabels())
	case b.full(measurementBytes) || !b.read():
		return false
	}
	if b.indexed {
		b.indexes = append(b.indexes, b.n)
	}
	b.n++
	b.sample(timeMs, value)
	return true
}

const excessMessage = "more than %d labels"

// AddTo adds one more sample of the series to a measurement that is counted already: a histogram is one measurement and
// many samples, and is rejected when one of them is. With NoMeasurement the sample belongs to none, and its rejection has
// that index. It is not added, and false, when the batch is full.
func (b *Batch) AddTo(index int, timeMs int64, value float64) bool {
	switch {
	case b.excess:
		b.index()
		return b.reject(index, ReasonLimit, excessMessage, b.maxLabels())
	case b.full(measurementBytes) || !b.read():
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

// read counts the text that the series' first sample makes ingest read.
func (b *Batch) read() bool {
	b.allText += b.text
	b.text = 0
	if b.MaxText > 0 && b.allText > b.MaxText {
		b.stopped = ErrTooLarge
	}
	return b.stopped == nil
}

// full says whether one more measurement, which takes so many bytes, has no room.
func (b *Batch) full(bytes int64) bool {
	if b.stopped == nil && b.Max > 0 && max(b.n, len(b.samples), len(b.rejected)) >= b.Max {
		b.stopped = ErrTooMany
	}
	return !b.Charge(bytes)
}

// Reject counts a measurement that could not be decoded. It is not counted, and false, when the batch is full.
func (b *Batch) Reject(reason Reason, format string, args ...any) bool {
	b.index()
	ok := b.reject(b.n, reason, format, args...)
	if ok {
		b.n++
	}
	return ok
}

func (b *Batch) reject(index int, reason Reason, format string, args ...any) bool {
	if b.full(rejectionBytes) {
		return false
	}
	// Those of one measurement come one after the other.
	if n := len(b.rejected); n == 0 || b.rejected[n-1].Index != index {
		b.rejected = append(b.rejected, Rejection{Index: index, Reason: reason, Message: b.messages.of(reason, format, args...)})
	}
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
