package format

import (
	"math"
	"slices"
	"strings"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

const (
	// New labels are counted up to so many series, and bytes of their keys.
	maxSeries = 100_000
	maxKeys   = 64 << 20
)

// counter counts since the start of the process. Lines of one series may follow each other within a millisecond, where a store
// keeps one sample, so they cannot be samples themselves.
//
//  1. The times of the samples of a series rise, also over a restart that sets LastMs.
//  2. The first sample of a series is a zero, so that PromQL's rate sees the first increase, and that the process began anew.
type counter struct {
	name          string
	labels        []metric.Label
	sum           float64
	begun, raised bool // it has a sample; it is in Format.raised
}

// count counts a line.
func (f *Format) count(timeMs, nowMs int64, b *ingest.Batch) {
	if i := slices.IndexFunc(f.values, func(got *field) bool { return got.value < 0 }); i >= 0 {
		f.reject(ingest.ReasonInvalidValue, "field %s is negative, and a counter cannot fall", f.values[i].name)
		return
	}
	lines := f.counter(f.lines)
	if lines == nil {
		f.reject(ingest.ReasonLimit, "there are %d series of counters, with %d bytes of labels: leave out label-fields with many values", len(f.counters), f.keys)
		return
	}
	timeMs = min(timeMs, nowMs)                                     // a time ahead would push those of all later lines ahead
	if metric.AlignDown(timeMs, 1000) > max(f.latestMs, f.LastMs) { // lines that are behind count together
		f.Flush(b)
	}
	f.latestMs = max(f.latestMs, timeMs)
	f.raise(lines, 1)
	for _, got := range f.values {
		f.raise(f.counter(got.metric), got.value)
	}
}

// counter returns the counter of a name that has the labels of the line, nil if there are too many.
func (f *Format) counter(name string) *counter {
	f.scratch = f.scratch[:0]
	for _, l := range f.series {
		f.scratch = l.AppendKey(f.scratch)
	}
	f.scratch = append(f.scratch, name...)
	n := f.counters[string(f.scratch)]
	if n == nil && (name != f.lines || len(f.counters) < maxSeries && f.keys < maxKeys) {
		n = &counter{name: name, labels: slices.Clone(f.series)}
		for i := range n.labels {
			n.labels[i].Value = strings.Clone(n.labels[i].Value) // it may lie in the line
		}
		f.counters[string(f.scratch)] = n
		f.keys += len(f.scratch)
	}
	return n
}

func (f *Format) raise(n *counter, by float64) {
	n.sum = min(n.sum+by, math.MaxFloat64)
	if !n.raised {
		n.raised = true
		f.raised = append(f.raised, n)
	}
}

// Flush adds what was counted since the last Flush.
func (f *Format) Flush(b *ingest.Batch) {
	if len(f.raised) == 0 {
		return
	}
	timeMs := max(f.latestMs, f.LastMs+1)
	if slices.ContainsFunc(f.raised, func(n *counter) bool { return !n.begun }) {
		timeMs = max(timeMs, f.LastMs+2) // the zero comes before
	}
	for _, n := range f.raised {
		b.Series(n.name, n.labels)
		if !n.begun {
			b.Add(timeMs-1, 0)
		}
		b.Add(timeMs, n.sum)
		n.begun, n.raised = true, false
	}
	f.raised, f.LastMs = f.raised[:0], timeMs
}
