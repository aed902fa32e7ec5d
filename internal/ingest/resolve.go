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
	"unicode/utf8"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Limits bounds the parts of a series. The source, the number of labels and all lengths are checked
// always. The rest is checked only when the series is new.
type Limits struct {
	// SourceBytes is the maximum length of a source's name. The default is 256.
	SourceBytes int
	// NameBytes is the maximum length of metric and label names. The default is 256.
	NameBytes int
	// ValueBytes is the maximum length of label values. The default is 4096.
	ValueBytes int
	// Labels is the maximum number of labels of a series, without name and source. The default is
	// 64.
	Labels int
}

func (l *Limits) ensureDefaults() {
	if l.SourceBytes == 0 {
		l.SourceBytes = 256
	}
	if l.NameBytes == 0 {
		l.NameBytes = 256
	}
	if l.ValueBytes == 0 {
		l.ValueBytes = 4096
	}
	if l.Labels == 0 {
		l.Labels = 64
	}
}

// resolver turns reports into samples: it validates them, and finds or registers schedule ids. It
// is scratch memory for one Append at a time.
type resolver struct {
	ageCap time.Duration // 0 is none
	// wholeFromMs is the time from which raw is whole. Older samples are rejected.
	wholeFromMs int64
	samples     []metric.Sample
	rejected    []Rejection

	messages messages

	key []byte
	// labels are the labels of the measurement whose key was built last, sorted and without empty
	// values. Other measurements may share them: shared is the slice that they came from. rest is
	// their part of the key, and the metric's name is inserted at nameAt.
	labels []metric.Label
	shared []metric.Label
	rest   []byte
	nameAt int
	// excess is why the labels are too large to look up. flaw is why a new series cannot have them;
	// it is set once checked is true.
	excess, flaw flaw
	checked      bool

	// fresh are the samples of series without an id, and newcomers these series by source. text are
	// the labels of newcomers; freshBytes is what they and their text take.
	fresh      []unregistered
	newcomers  []*registry.Newcomers
	of         map[*registry.Source]int // index in newcomers
	text       []metric.Label
	freshBytes int

	// bound is what the request is restricted to, nil for nothing. denied is the measurement that was found last to be
	// outside of it: a series is not looked at again for each of its samples.
	bound  *bound.Bound
	denied *Measurement
	lacks  string // the label that keeps it out

	// taken are the samples by source, in the order of the reports.
	taken []taken
}

// taken is what samples of a source are, and what they and the names of their series are in bytes.
type taken struct {
	source  *registry.Source
	samples int
	bytes   int64
}

// flaw is why labels are rejected. The zero value means no flaw.
type flaw struct {
	reason  Reason
	message string
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

// unregistered is a sample whose series has no id yet.
type unregistered struct {
	index  int
	sample int // index in samples
	taken  int // index in taken
	bytes  int64
	// of and at are where the series is among the newcomers.
	of, at int
}

func (r *resolver) resolve(held *hold, in *Ingest, reports []Report, ageCap time.Duration) error {
	r.ageCap = ageCap
	r.samples = r.samples[:0]
	r.rejected = r.rejected[:0]
	clear(r.taken) // a source may have been dropped
	r.taken = r.taken[:0]
	r.forget()
	clear(r.messages)
	r.bound, r.denied = bound.Of(held.ctx), nil
	r.takeLabels(nil, &in.opts.Limits) // the old reports' memory may hold other labels now
	nowMs := clock.NowMs(in.clk)
	r.wholeFromMs = in.store.WholeFrom(metric.Raw, nowMs)
	index := 0
	for _, rep := range reports {
		if err := r.report(held, in, rep, index, nowMs); err != nil {
			return err
		}
		index += len(rep.Measurements)
	}
	return r.register(held)
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

// overwritten counts those of the call's samples that are among the overwritten samples of the
// commit. There are hardly ever any.
func (r *resolver) overwritten(reports []Report, rejected []Rejection, lost []metric.Sample) (o Overwritten) {
	if len(lost) == 0 {
		return o
	}
	type lostSample struct {
		id     metric.ScheduleID
		timeMs int64
		bits   uint64
	}
	key := func(s metric.Sample) lostSample { return lostSample{s.Schedule, s.TimeMs, math.Float64bits(s.Value)} }
	left := make(map[lostSample]int, len(lost))
	for _, s := range lost {
		left[key(s)]++
	}
	for i, s := range r.samples {
		if left[key(s)] == 0 {
			continue
		}
		left[key(s)]--
		if o.Samples++; o.Samples == 1 {
			o.TimeMs = s.TimeMs
			o.Series = seriesAt(reports, measurementOf(i, rejected))
		}
	}
	return o
}

// measurementOf returns the index of the measurement of the i-th sample. Rejected measurements have
// no sample.
func measurementOf(i int, rejected []Rejection) int {
	for _, rej := range rejected {
		if rej.Index > i {
			break
		}
		i++
	}
	return i
}

// seriesAt returns the series of the measurement at index, in Prometheus' notation.
func seriesAt(reports []Report, index int) string {
	for _, rep := range reports {
		if index >= len(rep.Measurements) {
			index -= len(rep.Measurements)
			continue
		}
		m := &rep.Measurements[index]
		labels := slices.Clone(m.Labels)
		if !rep.Derived {
			labels = append(labels, metric.Label{Name: metric.SourceLabel, Value: rep.Source})
		}
		return m.Metric + metric.Labels(labels).String()
	}
	return ""
}

func (r *resolver) reject(index int, reason Reason, format string, args ...any) {
	r.rejected = append(r.rejected, Rejection{Index: index, Reason: reason, Message: r.messages.of(reason, format, args...)})
}

func (r *resolver) report(held *hold, in *Ingest, rep Report, base int, nowMs int64) error {
	if reason, msg := in.opts.Limits.checkSource(&rep); reason != "" {
		for i := range rep.Measurements {
			r.reject(base+i, reason, "%s", msg)
		}
		return nil
	}
	id, of := registry.NoID, (*Measurement)(nil) // the series that was found last
	// It is looked up only if a measurement may be taken, since it stays in memory.
	var source *registry.Source
	var took *taken
	for i := range rep.Measurements {
		if (base+i)%lookEvery == lookEvery-1 && held.ctx.Err() != nil {
			return context.Cause(held.ctx)
		}
		m := &rep.Measurements[i]
		timeMs, ok := r.time(in, m, base+i, nowMs)
		if !ok {
			continue
		}
		if of != nil && m.sameSeries(of) {
			took.add(r.bytes())
			r.samples = append(r.samples, metric.Sample{Schedule: id, TimeMs: timeMs, Value: reported(m.Value)})
			continue
		}
		if n := len(m.Metric); n == 0 || n > in.opts.Limits.NameBytes {
			r.reject(base+i, ReasonInvalidMetric, "%s", in.opts.Limits.checkName("metric name", m.Metric, in.opts.Limits.NameBytes))
			continue
		}
		if !sameLabels(m.Labels, r.shared) {
			r.takeLabels(m.Labels, &in.opts.Limits)
		}
		if r.excess.reason != "" {
			r.reject(base+i, r.excess.reason, "%s", r.excess.message)
			continue
		}
		if r.denies(&rep, m, base+i) {
			continue
		}
		if source == nil {
			var err error
			source, err = in.registry.Source(held.ctx, rep.Source, rep.Derived)
			if errors.Is(err, storage.ErrCorrupt) {
				// A retry does not help, and other reports of the request must not wait for it.
				for ; i < len(rep.Measurements); i++ {
					r.reject(base+i, ReasonDamaged, "the series of the source cannot be read: %v", err)
				}
				return nil
			}
			if err != nil {
				return fmt.Errorf("look up source: %w", err)
			}
			r.taken = append(r.taken, taken{source: source})
			took = &r.taken[len(r.taken)-1]
		}
		r.seriesKey(m)
		if id, ok = source.Lookup(r.key); ok {
			of = m
		} else {
			of = nil
			if !r.unknown(in, m, source, rep.Derived, base+i) {
				continue
			}
			id = registry.NoID
		}
		took.add(r.bytes())
		r.samples = append(r.samples, metric.Sample{Schedule: id, TimeMs: timeMs, Value: reported(m.Value)})
		if r.freshBytes > maxFreshBytes {
			if err := r.register(held); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *taken) add(bytes int64) {
	t.samples++
	t.bytes += bytes
}

// bytes returns what a sample of the series counts whose key was built last: its time, its value, and the names and
// values of its labels.
func (r *resolver) bytes() int64 { return int64(16 + len(r.key)) }

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
func (r *resolver) time(in *Ingest, m *Measurement, index int, nowMs int64) (int64, bool) {
	timeMs, what := m.TimeMs, "time"
	if timeMs == NoTime {
		timeMs, what = nowMs, "the server's own time"
	}
	switch {
	case timeMs < 0:
		r.reject(index, ReasonInvalidTime, "%s %d: must be Unix milliseconds, 0 or later", what, timeMs)
	case r.ageCap > 0 && nowMs-timeMs > r.ageCap.Milliseconds():
		r.reject(index, ReasonTooOld, "%s %d (%s) is %s old, more than the age cap of %s",
			what, timeMs, date(timeMs), beyond(nowMs-timeMs, r.ageCap), metric.SpanText(r.ageCap))
	case timeMs < r.wholeFromMs:
		// Samples beside it may have expired, so a roll-up could not be computed.
		r.reject(index, ReasonTooOld, "%s %d (%s) is before %s, the start of the raw samples that are kept",
			what, timeMs, date(timeMs), date(r.wholeFromMs))
	case timeMs-nowMs > in.opts.FutureLimit.Milliseconds():
		r.reject(index, ReasonTooFarAhead, "%s %d (%s) is %s ahead of the server's clock, more than %s",
			what, timeMs, date(timeMs), beyond(timeMs-nowMs, in.opts.FutureLimit), metric.SpanText(in.opts.FutureLimit))
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

// seriesKey builds the registry's key of the series: its labels and name in order. It does not
// validate them: only valid series are registered, so no invalid one is found.
func (r *resolver) seriesKey(m *Measurement) {
	r.key = append(r.key[:0], r.rest[:r.nameAt]...)
	r.key = metric.Label{Name: metric.NameLabel, Value: m.Metric}.AppendKey(r.key)
	r.key = append(r.key, r.rest[r.nameAt:]...)
}

// takeLabels sorts the labels. It checks their number and length first, so that labels beyond the
// limits cost no more than reading past them.
func (r *resolver) takeLabels(labels []metric.Label, limits *Limits) {
	r.shared, r.labels = labels, r.labels[:0]
	r.checked, r.flaw = false, flaw{}
	if r.excess = limits.checkSize(labels); r.excess.reason != "" {
		return
	}
	for _, l := range labels {
		if l.Value != "" {
			r.labels = append(r.labels, l)
		}
	}
	slices.SortFunc(r.labels, func(a, b metric.Label) int { return strings.Compare(a.Name, b.Name) })
	r.rest, r.nameAt = r.rest[:0], 0
	for _, l := range r.labels {
		r.rest = l.AppendKey(r.rest)
		if l.Name < metric.NameLabel {
			r.nameAt = len(r.rest)
		}
	}
}

// unknown queues a new series for registration, or rejects the measurement.
func (r *resolver) unknown(in *Ingest, m *Measurement, source *registry.Source, derived bool, index int) bool {
	limits := &in.opts.Limits
	if msg := limits.checkName("metric name", m.Metric, limits.NameBytes); msg != "" {
		r.reject(index, ReasonInvalidMetric, "%s", msg)
		return false
	}
	if !r.checked {
		r.checked, r.flaw = true, limits.check(r.shared, r.labels, derived)
	}
	if r.flaw.reason != "" {
		r.reject(index, r.flaw.reason, "%s", r.flaw.message)
		return false
	}
	first := len(r.text)
	named := false
	for _, l := range r.labels {
		if !named && l.Name > metric.NameLabel {
			r.text, named = append(r.text, metric.Label{Name: metric.NameLabel, Value: m.Metric}), true
		}
		r.text = append(r.text, l)
	}
	if !named {
		r.text = append(r.text, metric.Label{Name: metric.NameLabel, Value: m.Metric})
	}
	own := r.text[first:len(r.text):len(r.text)] // it stays where it is when text grows
	of := r.newcomersOf(source)
	g := r.newcomers[of]
	r.fresh = append(r.fresh, unregistered{
		index: index, sample: len(r.samples), taken: len(r.taken) - 1, bytes: r.bytes(), of: of, at: len(g.Series),
	})
	g.Series = append(g.Series, own)
	r.freshBytes += len(r.key) + len(own)*int(labelBytes)
	if len(r.fresh)%yieldEvery == 0 {
		runtime.Gosched()
	}
	return true
}

// newcomersOf returns the index of a source's newcomers.
func (r *resolver) newcomersOf(source *registry.Source) int {
	if n := len(r.newcomers); n > 0 && r.newcomers[n-1].Source == source {
		return n - 1
	}
	if at, known := r.of[source]; known {
		return at
	}
	at := len(r.newcomers)
	if at < cap(r.newcomers) && r.newcomers[:at+1][at] != nil {
		r.newcomers = r.newcomers[:at+1]
	} else {
		r.newcomers = append(r.newcomers, new(registry.Newcomers))
	}
	r.newcomers[at].Source = source
	if r.of == nil {
		r.of = make(map[*registry.Source]int)
	}
	r.of[source] = at
	return at
}

// forget drops the newcomers. Their text is the request's.
func (r *resolver) forget() {
	for _, g := range r.newcomers {
		clear(g.Series)
		*g = registry.Newcomers{Series: g.Series[:0], IDs: g.IDs[:0]}
	}
	clear(r.of)
	clear(r.text)
	r.fresh, r.newcomers, r.text, r.freshBytes = r.fresh[:0], r.newcomers[:0], r.text[:0], 0
}

// register assigns ids to the new series of all sources so far, in one call so that they are stored
// together. It drops the samples of series without an id.
func (r *resolver) register(held *hold) error {
	if len(r.fresh) == 0 {
		return nil
	}
	if err := held.begin(held.most - len(r.rejected)); err != nil {
		return err
	}
	if err := r.assign(held); err != nil {
		return fmt.Errorf("register series: %w", err)
	}
	refused := false
	for _, u := range r.fresh {
		g := r.newcomers[u.of]
		id := g.IDs[u.at]
		r.samples[u.sample].Schedule = id
		if id == registry.NoID {
			refused = true
			r.taken[u.taken].samples--
			r.taken[u.taken].bytes -= u.bytes
			r.reject(u.index, ReasonLimit, "%s", r.limit(g))
		}
	}
	if refused {
		first := r.fresh[0].sample // all samples before it have ids
		kept := r.samples[:first]
		for _, s := range r.samples[first:] {
			if s.Schedule != registry.NoID {
				kept = append(kept, s)
			}
		}
		r.samples = kept
	}
	r.forget()
	return nil
}

// checkSize returns the flaw of labels that are too many or too long. It does not read their text.
func (l *Limits) checkSize(labels []metric.Label) flaw {
	if len(labels) > l.Labels {
		return flaw{ReasonLimit, fmt.Sprintf("%d labels, more than the limit of %d", len(labels), l.Labels)}
	}
	for i := range labels {
		lb := &labels[i]
		if len(lb.Name) > l.NameBytes {
			return flaw{ReasonInvalidLabel, l.checkName("label name", lb.Name, l.NameBytes)}
		}
		if len(lb.Value) > l.ValueBytes {
			return flaw{ReasonLimit, fmt.Sprintf("value of label %s has %d bytes, more than the limit of %d", excerpt.Quoted(lb.Name), len(lb.Value), l.ValueBytes)}
		}
	}
	return flaw{}
}

// check returns why a new series cannot have the labels. labels are as received; sorted are the
// same in order, without empty values.
func (l *Limits) check(labels, sorted []metric.Label, derived bool) flaw {
	for _, lb := range labels {
		if msg := l.checkName("label name", lb.Name, l.NameBytes); msg != "" {
			return flaw{ReasonInvalidLabel, msg}
		}
		switch {
		case lb.Name == metric.NameLabel:
			return flaw{ReasonInvalidLabel, "label " + metric.NameLabel + " is the metric's name; give it as such"}
		case lb.Name == metric.SourceLabel && !derived:
			return flaw{ReasonInvalidLabel, "label " + metric.SourceLabel + " is the report's source; give it as such"}
		case !utf8.ValidString(lb.Value):
			return flaw{ReasonInvalidLabel, fmt.Sprintf("value of label %s is not valid UTF-8", excerpt.Quoted(lb.Name))}
		}
	}
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Name == sorted[i-1].Name {
			return flaw{ReasonInvalidLabel, fmt.Sprintf("label %s is given twice", excerpt.Quoted(sorted[i].Name))}
		}
	}
	return flaw{}
}

// checkSource returns why no measurement of a source can be accepted, or an empty reason. A derived
// source is the value of a label, or empty.
func (l *Limits) checkSource(rep *Report) (Reason, string) {
	if !rep.Derived {
		if msg := l.checkName("source", rep.Source, l.SourceBytes); msg != "" {
			return ReasonInvalidSource, msg
		}
		return "", ""
	}
	switch {
	case len(rep.Source) > l.ValueBytes:
		return ReasonLimit, fmt.Sprintf("the label that names the source has %d bytes, more than the limit of %d", len(rep.Source), l.ValueBytes)
	case !utf8.ValidString(rep.Source):
		return ReasonInvalidLabel, fmt.Sprintf("the label that names the source, %s, is not valid UTF-8", excerpt.Quoted(rep.Source))
	}
	return "", ""
}

// checkName returns what is wrong with a name, or "". It accepts any UTF-8 without control
// characters, as Prometheus 3 does.
func (l *Limits) checkName(what, name string, maxBytes int) string {
	switch {
	case name == "":
		return what + " is empty"
	case len(name) > maxBytes:
		return fmt.Sprintf("%s has %d bytes, more than the limit of %d", what, len(name), maxBytes)
	case !utf8.ValidString(name):
		return fmt.Sprintf("%s %s is not valid UTF-8", what, excerpt.Quoted(name))
	case strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fmt.Sprintf("%s %s has a control character", what, excerpt.Quoted(name))
	}
	return ""
}
