package ingest

import (
	"cmp"
	"slices"
	"unsafe"

	"github.com/quern/quern/internal/metric"
)

// Batch collects the measurements of one request, for protocols that know only series with all of
// their labels. It groups them by source. The zero value is empty. It does not copy strings, and
// refers to its input until Reset.
//
// It counts measurements from 0, including those that are rejected while decoding.
//
// It bounds the memory that few bytes of a hostile body can cause. Decoders must follow three
// rules: collect labels with Label, stop when TooMany returns true, and call Charge for all else
// that they build or collect, and for each message that may be empty; see MessageBytes.
type Batch struct {
	// Sources says which label holds the source of a series. It is the same for all batches of a store, since a series
	// has one id per source.
	Sources metric.SourceLabels
	// Max is the maximum number of measurements, and of samples; 0 is no limit.
	Max int
	// MaxLabels is the maximum number of labels of a series. Measurements of a series with more are
	// rejected. The default is 128.
	MaxLabels int
	// MaxText is the maximum number of bytes of names and labels of all series. Each series counts
	// all of its labels, even shared ones, because ingest reads all of them to find the series. 0
	// is no limit.
	MaxText int64
	// Allowance limits the memory of the batch.
	Allowance Allowance

	reports []span
	ready   []Report
	samples []Measurement
	arena   []metric.Label
	owned   []byte
	series  Measurement // the series that samples are added to
	// excess says that the series has too many labels. labelText is the length of its labels in
	// bytes.
	excess    bool
	labelText int64
	// text is the length of the series' labels and name, in bytes, until its first sample. allText
	// is the total over all series with samples.
	text, allText int64

	n        int   // measurements so far
	stopped  error // why the batch accepts no more
	indexes  []int // the measurement of each sample
	rejected []Rejection
	messages messages
}

// NoMeasurement is the index for a sample that belongs to no measurement.
const NoMeasurement = -1

const (
	defaultMaxLabels = 128
	// MaxNameBytes bounds metric names that a decoder joins from several texts. It exceeds what
	// ingest accepts.
	MaxNameBytes = 1 << 10
	// maxMergedSource is the longest source, in bytes, that is compared with the previous one.
	// Ingest rejects longer ones.
	maxMergedSource = 4 << 10

	// measurementBytes is about the memory of a measurement: here, as a sample and a rejection in
	// ingest, and in the reply.
	measurementBytes = 128
	labelBytes       = int64(unsafe.Sizeof(metric.Label{}))
	spanBytes        = int64(unsafe.Sizeof(span{}) + unsafe.Sizeof(Report{}))
	// MessageBytes is what a decoder charges for each message that may be empty, such as a series without samples. Decoding it
	// takes time, so their number is bounded too.
	MessageBytes   = 32
	rejectionBytes = 2 * int64(unsafe.Sizeof(Rejection{}))
	// maxKeptBytes is about how much of each of its buffers a batch keeps for the next request.
	maxKeptBytes = 8 << 20
)

// span is a report whose measurements are a range of the samples, since samples may still move.
type span struct {
	source  string
	derived bool
	begin   int
}

// continues reports whether a series of the source continues the span. Long sources count as different:
// comparing them for each series would cost more than reading the series.
func (s *span) continues(source string, derived bool) bool {
	return s.derived == derived && len(source) <= maxMergedSource && s.source == source
}

// Reset empties the batch for the next request, or for more of the same one. It keeps its buffers,
// unless they are large.
func (b *Batch) Reset() {
	b.reports, b.ready = emptied(b.reports), emptied(b.ready)
	b.samples, b.arena = emptied(b.samples), emptied(b.arena)
	b.owned, b.indexes = emptied(b.owned), emptied(b.indexes)
	b.series, b.excess, b.labelText, b.text, b.allText = Measurement{}, false, 0, 0, 0
	b.n, b.stopped, b.rejected = 0, nil, nil
	clear(b.messages)
	b.Allowance.reuse()
}

// emptied returns s without elements, or nil if its buffer is large.
func emptied[T any](s []T) []T {
	if uintptr(cap(s))*unsafe.Sizeof(*new(T)) > maxKeptBytes {
		return nil
	}
	clear(s)
	return s[:0]
}

// Label appends a label of the series that is being read, for Series. It keeps one label more than
// the limit, so that Series sees the excess, and drops the rest.
func (b *Batch) Label(to []metric.Label, name, value string) []metric.Label {
	if len(to) > b.maxLabels() {
		return to
	}
	return append(to, metric.Label{Name: name, Value: value})
}

func (b *Batch) maxLabels() int { return cmp.Or(b.MaxLabels, defaultMaxLabels) }

// Charge takes n bytes of the allowance, for memory that a decoder keeps outside of the batch. If
// there is no room, the batch is full and Charge returns false.
func (b *Batch) Charge(n int64) bool {
	if b.stopped == nil && !b.Allowance.Grow(n) {
		b.stopped = b.Allowance.Err()
	}
	return b.stopped == nil
}

// Series begins a series: Add adds samples to it. labels exclude the name, may be in any order, and
// are copied. If there are too many labels, every measurement of the series is rejected.
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
	source, derived, at := b.Sources.SourceOf(labels)
	if n := len(b.reports); n == 0 || !b.reports[n-1].continues(source, derived) {
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
	if !derived { // the report has the source in place of the label
		b.arena = slices.Delete(b.arena, begin+at, begin+at+1)
	}
	b.series = Measurement{Metric: name, Labels: b.arena[begin:len(b.arena):len(b.arena)]}
	b.text = b.labelText + int64(len(name))
}

// Metric begins a series that differs from the previous one only in its name. It costs less than
// Series, here and when the series is looked up.
func (b *Batch) Metric(name string) {
	b.series.Metric, b.text = name, b.labelText+int64(len(name))
}

// Copy returns a copy of s that is valid until Reset, for text that the body does not hold in its
// final form, such as escaped text. It returns "" if the batch is full.
func (b *Batch) Copy(s []byte) string {
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

// TooMany reports whether the batch has stopped accepting, so that part of the body is missing. Err
// says why.
func (b *Batch) TooMany() bool { return b.stopped != nil }

// Err returns why the batch accepts no more, or nil: ErrTooMany, or an error of its allowance.
func (b *Batch) Err() error { return b.stopped }

// Add adds a sample to the series. timeMs is in Unix ms, or NoTime. If the batch is full, Add drops
// the sample and returns false.
func (b *Batch) Add(timeMs int64, value float64) bool {
	switch {
	case b.excess:
		return b.Reject(ReasonLimit, excessMessage, b.maxLabels())
	case b.full(measurementBytes) || !b.read():
		return false
	}
	b.sample(b.n, timeMs, value)
	b.n++
	return true
}

const excessMessage = "more than %d labels"

// AddTo adds one more sample of the series to a measurement that is already counted. A histogram,
// for example, is one measurement with many samples, and is rejected if one of them is. With index
// NoMeasurement the sample belongs to none, and its rejection has that index. If the batch is full,
// AddTo drops the sample and returns false.
func (b *Batch) AddTo(index int, timeMs int64, value float64) bool {
	switch {
	case b.excess:
		return b.reject(index, ReasonLimit, excessMessage, b.maxLabels())
	case b.full(measurementBytes) || !b.read():
		return false
	}
	b.sample(index, timeMs, value)
	return true
}

func (b *Batch) sample(index int, timeMs int64, value float64) {
	b.indexes = append(b.indexes, index)
	b.series.TimeMs, b.series.Value = timeMs, value
	b.samples = append(b.samples, b.series)
}

// read counts the text that ingest reads for the series' first sample.
func (b *Batch) read() bool {
	b.allText += b.text
	b.text = 0
	if b.MaxText > 0 && b.allText > b.MaxText {
		b.stopped = ErrTooLarge
	}
	return b.stopped == nil
}

// full reports whether there is no room for one more measurement of the given size.
func (b *Batch) full(bytes int64) bool {
	if b.stopped == nil && b.Max > 0 && max(b.n, len(b.samples), len(b.rejected)) >= b.Max {
		b.stopped = ErrTooMany
	}
	return !b.Charge(bytes)
}

// Reject counts a measurement that could not be decoded. If the batch is full, it does not count it
// and returns false.
func (b *Batch) Reject(reason Reason, format string, args ...any) bool {
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
	// The rejections of one measurement follow each other.
	if n := len(b.rejected); n == 0 || b.rejected[n-1].Index != index {
		b.rejected = append(b.rejected, Rejection{Index: index, Reason: reason, Message: b.messages.text(reason, format, args...)})
	}
	return true
}

// Len returns the number of measurements, including those that could not be decoded.
func (b *Batch) Len() int { return b.n }

// Rejected returns the number of measurements that could not be decoded.
func (b *Batch) Rejected() int { return len(b.rejected) }

// Reports returns the reports to append. They are valid until Reset.
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

// oneToOne reports whether each measurement has one sample, and no sample belongs to none.
func (b *Batch) oneToOne() bool { return len(b.rejected) == 0 && b.n == len(b.samples) }

// SeriesOf returns the series of a measurement in Prometheus' notation. It returns false for a
// measurement that was rejected while decoding.
func (b *Batch) SeriesOf(index int) (string, bool) {
	if !b.oneToOne() {
		index = slices.Index(b.indexes, index)
	}
	if index < 0 || index >= len(b.samples) {
		return "", false
	}
	m := &b.samples[index]
	return m.Metric + metric.Labels(m.Labels).String(), true
}

// Result merges the result of Append with the rejections of decoding. All indexes count as the
// batch counts.
func (b *Batch) Result(appended Result) Result {
	if b.oneToOne() {
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
