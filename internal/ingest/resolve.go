package ingest

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// resolver turns the measurements of one Append into samples. Each measurement takes these steps, and is rejected by the first
// that it does not pass:
//
//  1. time: it is neither too old nor too far ahead.
//  2. find: its name and labels are within the limits, the token may write its series, and its source can be read. The registry
//     knows the id of the series, or its text is valid, and it waits with other new ones.
//  3. register: the registry gives ids to the new series of all sources together.
//
// A resolver is scratch memory for one Append at a time.
type resolver struct {
	in     *Ingest
	held   *hold
	ageCap time.Duration // 0 is none
	nowMs  int64
	// wholeFromMs is the time from which raw is whole. Older samples are rejected.
	wholeFromMs int64
	bound       *bound.Bound // what the request is restricted to, nil for nothing

	samples  []metric.Sample
	rejected []Rejection
	messages messages
	// taken are the samples by source, in the order of the reports.
	taken []taken

	labels labelSet
	key    []byte

	// fresh are the samples of series without an id, and newcomers these series by source. places says where each of them is, and,
	// for the empty key, at which index a source. freshBytes is what the labels of newcomers and their text take.
	fresh      []unregistered
	newcomers  []*registry.Newcomers
	places     map[seriesKey]place
	freshBytes int
}

type seriesKey struct {
	source *registry.Source
	key    string
}

// place is the index of a source in newcomers, and that of a series of it.
type place struct{ source, series int }

// taken is what samples of a source are, and what they and the names of their series are in bytes.
type taken struct {
	source  *registry.Source
	samples int
	bytes   int64
}

const (
	// maxFreshBytes bounds the labels of new series that are registered together: a body may name its
	// labels once for very many series.
	maxFreshBytes = 4 << 20
	// lookEvery is the number of measurements between two checks of whether the caller has gone.
	lookEvery = 1 << 10
	// yieldEvery is the number of new series after which other goroutines get their turn; see ADR 9.
	yieldEvery = 64
)

// series is what is known of the series of a measurement.
type series struct {
	flaw
	id metric.ScheduleID
	// bytes is what a sample of it counts: its time, its value, and the names and values of its labels.
	bytes int64
	// place is where it is among the newcomers if it has no id yet.
	place
}

// unregistered is a sample whose series has no id yet.
type unregistered struct {
	series
	index  int // of the measurement
	sample int // index in samples
	taken  int // index in taken
}

func (r *resolver) resolve(held *hold, in *Ingest, reports []Report, ageCap time.Duration) error {
	r.in, r.held, r.ageCap, r.nowMs = in, held, ageCap, clock.NowMs(in.clk)
	r.wholeFromMs = in.store.WholeFrom(metric.Raw, r.nowMs)
	r.bound = bound.FromContext(held.ctx)
	r.samples, r.rejected = r.samples[:0], r.rejected[:0]
	clear(r.messages)
	clear(r.taken) // a source may have been dropped
	r.taken = r.taken[:0]
	r.forget()
	r.labels.take(nil) // the old reports' memory may hold other labels now
	index := 0
	for i := range reports {
		if err := r.report(&reports[i], index); err != nil {
			return err
		}
		index += len(reports[i].Measurements)
	}
	return r.register()
}

func (r *resolver) report(rep *Report, base int) error {
	if reason, msg := checkSource(rep); reason != "" {
		for i := range rep.Measurements {
			r.reject(base+i, reason, "%s", msg)
		}
		return nil
	}
	source := reporter{report: rep}
	var s series
	var last *Measurement // that of s
	for i := range rep.Measurements {
		index := base + i
		if index%lookEvery == lookEvery-1 && r.held.ctx.Err() != nil {
			return context.Cause(r.held.ctx)
		}
		m := &rep.Measurements[i]
		timeMs, ok := r.time(m, index)
		if !ok {
			continue
		}
		if last == nil || !m.sameSeries(last) {
			var err error
			if s, err = r.find(&source, m); err != nil {
				return err
			}
			last = m
		}
		switch {
		case s.reason != "":
			r.reject(index, s.reason, "%s", s.message)
			continue
		case s.id == registry.NoID:
			r.fresh = append(r.fresh, unregistered{series: s, index: index, sample: len(r.samples), taken: source.taken})
		default:
			r.taken[source.taken].add(s.bytes)
		}
		r.samples = append(r.samples, metric.Sample{Schedule: s.id, TimeMs: timeMs, Value: reported(m.Value)})
		if r.freshBytes > maxFreshBytes {
			if err := r.register(); err != nil {
				return err
			}
			last = nil
		}
	}
	return nil
}

func (r *resolver) reject(index int, reason Reason, format string, args ...any) {
	r.rejected = append(r.rejected, Rejection{Index: index, Reason: reason, Message: r.messages.text(reason, format, args...)})
}

func (t *taken) add(bytes int64) {
	t.samples++
	t.bytes += bytes
}

// reported returns v as it is stored. A tombstone from outside becomes an ordinary NaN.
func reported(v float64) float64 {
	if metric.IsTombstone(v) {
		return math.NaN()
	}
	return v
}

// time returns the measurement's time, in Unix ms, if it is allowed, and rejects the measurement
// otherwise. A measurement without a time gets the server's. A clock that is behind may put that
// before what raw holds.
func (r *resolver) time(m *Measurement, index int) (int64, bool) {
	timeMs, what := m.TimeMs, "time"
	if timeMs == NoTime {
		timeMs, what = r.nowMs, "the server's own time"
	}
	switch {
	case timeMs < 0:
		r.reject(index, ReasonInvalidTime, "%s %d: must be Unix milliseconds, 0 or later", what, timeMs)
	case r.ageCap > 0 && r.nowMs-timeMs > r.ageCap.Milliseconds():
		r.reject(index, ReasonTooOld, "%s %d (%s) is %s old, more than the age cap of %s",
			what, timeMs, date(timeMs), beyond(r.nowMs-timeMs, r.ageCap), metric.SpanText(r.ageCap))
	case timeMs < r.wholeFromMs:
		// Samples beside it may have expired, so a roll-up could not be computed.
		r.reject(index, ReasonTooOld, "%s %d (%s) is before %s, the start of the raw samples that are kept",
			what, timeMs, date(timeMs), date(r.wholeFromMs))
	case timeMs-r.nowMs > r.in.opts.FutureLimit.Milliseconds():
		r.reject(index, ReasonTooFarAhead, "%s %d (%s) is %s ahead of the server's clock, more than %s",
			what, timeMs, date(timeMs), beyond(timeMs-r.nowMs, r.in.opts.FutureLimit), metric.SpanText(r.in.opts.FutureLimit))
	default:
		return timeMs, true
	}
	return 0, false
}

// beyond formats a span that exceeds a limit. It is exact if the rounded text would equal that of
// the limit. A span longer than a Duration can hold is cut to the longest Duration.
func beyond(ms int64, limit time.Duration) string {
	const most = int64(1<<63-1) / int64(time.Millisecond)
	d := time.Duration(min(ms, most)) * time.Millisecond
	if text := metric.SpanText(d); text != metric.SpanText(limit) {
		return text
	}
	return d.String()
}

// date is a time in Unix ms. Its text is readable, so that a time in another unit stands out.
type date int64

// String implements fmt.Stringer.
func (d date) String() string { return time.UnixMilli(int64(d)).UTC().Format(time.RFC3339) }

// reporter is the source of a report. It is looked up only if a measurement may be taken, since it stays in memory.
type reporter struct {
	report  *Report
	source  *registry.Source // nil until then
	taken   int              // index in resolver.taken
	damaged flaw
}

// find looks the series of a measurement up, and queues a new one for register. Errors are the store's.
func (r *resolver) find(from *reporter, m *Measurement) (series, error) {
	if n := len(m.Metric); n == 0 || n > maxNameBytes {
		return series{flaw: flaw{ReasonInvalidMetric, checkName("metric name", m.Metric, maxNameBytes)}}, nil
	}
	if !sameLabels(m.Labels, r.labels.given) {
		r.labels.take(m.Labels)
	}
	if r.labels.excess.reason != "" {
		return series{flaw: r.labels.excess}, nil
	}
	if f := r.denied(from.report, m); f.reason != "" {
		return series{flaw: f}, nil
	}
	if from.source == nil && from.damaged.reason == "" {
		source, err := r.in.registry.Source(r.held.ctx, from.report.Source, from.report.Derived)
		switch {
		case errors.Is(err, storage.ErrCorrupt):
			// A retry does not help, and other reports of the request must not wait for it.
			from.damaged = flaw{ReasonDamaged, fmt.Sprintf("the series of the source cannot be read: %v", err)}
		case err != nil:
			return series{}, fmt.Errorf("look up source: %w", err)
		}
		from.source, from.taken = source, len(r.taken)
		r.taken = append(r.taken, taken{source: source})
	}
	if from.damaged.reason != "" {
		return series{flaw: from.damaged}, nil
	}
	r.key = r.labels.appendKey(r.key[:0], m.Metric)
	s := series{bytes: int64(16 + len(r.key))}
	var known bool
	if s.id, known = from.source.Lookup(r.key); known {
		return s, nil
	}
	s.id = registry.NoID
	if msg := checkName("metric name", m.Metric, maxNameBytes); msg != "" {
		s.flaw = flaw{ReasonInvalidMetric, msg}
	} else {
		s.flaw = r.labels.check(from.report.Derived)
	}
	if s.reason == "" {
		s.place = r.queue(from.source, m.Metric)
	}
	return s, nil
}

// queue puts the series whose key was built last among the newcomers, unless it is there.
func (r *resolver) queue(source *registry.Source, name string) place {
	if p, known := r.places[seriesKey{source, string(r.key)}]; known {
		return p
	}
	p, known := r.places[seriesKey{source: source}]
	if !known {
		p.source = len(r.newcomers)
		r.newcomers = append(r.newcomers, &registry.Newcomers{Source: source})
		r.places[seriesKey{source: source}] = p
	}
	g := r.newcomers[p.source]
	p.series = len(g.Series)
	r.places[seriesKey{source, string(r.key)}] = p
	g.Series = append(g.Series, r.labels.with(name))
	r.freshBytes += len(r.key) + (len(r.labels.sorted)+1)*int(labelBytes)
	if len(r.places)%yieldEvery == 0 {
		runtime.Gosched()
	}
	return p
}

// register assigns ids to the new series of all sources so far, in one call so that they are stored
// together. It drops the samples of series without an id.
func (r *resolver) register() error {
	if len(r.fresh) == 0 {
		return nil
	}
	if err := r.held.begin(r.held.most - len(r.rejected)); err != nil {
		return err
	}
	if err := r.assign(); err != nil {
		return fmt.Errorf("register series: %w", err)
	}
	refused := false
	for _, u := range r.fresh {
		g := r.newcomers[u.source]
		id := registry.NoID
		if u.place.series < len(g.IDs) {
			id = g.IDs[u.place.series]
		}
		r.samples[u.sample].Schedule = id
		if id == registry.NoID {
			refused = true
			r.reject(u.index, ReasonLimit, "%s", r.limit(g))
		} else {
			r.taken[u.taken].add(u.bytes)
		}
	}
	if refused {
		first := r.fresh[0].sample // all samples before it have ids
		kept := slices.DeleteFunc(r.samples[first:], func(s metric.Sample) bool { return s.Schedule == registry.NoID })
		r.samples = r.samples[:first+len(kept)]
	}
	r.forget()
	return nil
}

// forget drops the newcomers. Their text is the request's.
func (r *resolver) forget() {
	clear(r.fresh)
	r.fresh, r.newcomers, r.freshBytes = r.fresh[:0], nil, 0
	if r.places == nil || len(r.places) > 0 {
		r.places = make(map[seriesKey]place)
	}
}

// takeRejected returns the rejections, sorted by index, and hands over the slice: the next call
// starts a new one.
func (r *resolver) takeRejected() []Rejection {
	if len(r.rejected) == 0 {
		return nil
	}
	out := r.rejected
	r.rejected = nil
	slices.SortFunc(out, func(a, b Rejection) int { return a.Index - b.Index })
	return out
}

// labelSet holds the labels of a measurement and their part of the series' key. Measurements that share their labels share it.
type labelSet struct {
	given []metric.Label // as received
	// sorted are the same in order, without empty values. key is their key, and the metric's name belongs at nameAt.
	sorted []metric.Label
	key    []byte
	nameAt int
	// excess is why the labels are too large to look up. flaw is why a new series cannot have them;
	// it is set once checked is true.
	excess, flaw flaw
	checked      bool
}

// take sorts the labels. It checks their number and length first, so that labels beyond the
// limits cost no more than reading past them.
func (l *labelSet) take(labels []metric.Label) {
	l.given, l.sorted, l.key, l.nameAt = labels, l.sorted[:0], l.key[:0], 0
	l.checked, l.flaw = false, flaw{}
	if l.excess = checkSize(labels); l.excess.reason != "" {
		return
	}
	for _, lb := range labels {
		if lb.Value != "" {
			l.sorted = append(l.sorted, lb)
		}
	}
	slices.SortFunc(l.sorted, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
	for _, lb := range l.sorted {
		l.key = lb.AppendKey(l.key)
		if lb.Name < metric.NameLabel {
			l.nameAt = len(l.key)
		}
	}
}

// appendKey appends the registry's key of the series with a name: its labels and name in order. The labels may be invalid: only
// valid series are registered, so no invalid one is found.
func (l *labelSet) appendKey(dst []byte, name string) []byte {
	dst = append(dst, l.key[:l.nameAt]...)
	dst = metric.Label{Name: metric.NameLabel, Value: name}.AppendKey(dst)
	return append(dst, l.key[l.nameAt:]...)
}

// with returns a copy of the sorted labels with the name among them.
func (l *labelSet) with(name string) metric.Labels {
	at, _ := slices.BinarySearchFunc(l.sorted, metric.NameLabel, func(lb metric.Label, name string) int { return strings.Compare(lb.Name, name) })
	out := append(make(metric.Labels, 0, len(l.sorted)+1), l.sorted...)
	return slices.Insert(out, at, metric.Label{Name: metric.NameLabel, Value: name})
}

// check returns why a new series cannot have the labels.
func (l *labelSet) check(derived bool) flaw {
	if !l.checked {
		l.checked, l.flaw = true, checkLabels(l.given, l.sorted, derived)
	}
	return l.flaw
}
