package reports

import (
	"fmt"
	"slices"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/wire/excerpt"
)

// decoder decodes the reports of one body. It is reused, so that after a few bodies it
// allocates nothing. Its strings are views of the body and of its own arena.
//
// A wrong type rejects one measurement, since the JSON around it still shows where the next begins.
// A syntax error ends decoding: what follows is unknown; what came before is kept.
type decoder struct {
	jsonscan.Scanner
	limits *push.Limits
	// allowance limits the memory for decoded data.
	allowance ingest.Allowance

	// measurements are the kept measurements of all reports. Their labels are concatenated in
	// labels. labelEnds has the end of each measurement's labels, and indexes its index in the
	// body. Slices of these arrays are made only at the end, when the arrays no longer move.
	measurements []ingest.Measurement
	labels       []metric.Label
	labelEnds    []int
	indexes      []int
	spans        []span
	reports      []ingest.Report

	// values counts the top-level values of the body: reports and lists of reports.
	values int
	// seen counts the measurements that have begun, kept or not.
	seen int
	// inside is the index of the current measurement, -1 between measurements.
	inside int
	// rejected holds the first limits.Rejections of rejectedTotal rejections.
	rejected      []ingest.Rejection
	rejectedTotal int
	// badLabels are the names of the current labels whose value is not a string.
	badLabels []string

	// malformed describes the first JSON in the body that is not a report, "" if there is none.
	malformed string
	// stopped is why decoding ended early in a readable body: an error of ingest or of the
	// allowance.
	stopped error
	// charged is the part of the arena already charged to the allowance.
	charged int
}

// keptBytes is roughly the memory of a measurement: here, as a sample and a rejection in ingest,
// and in the reply. keptLabelBytes is the memory of a label.
const (
	keptBytes      = 160
	keptLabelBytes = 32
	// spanBytes is the memory of a report.
	spanBytes = 80
)

// charge asks the allowance for n bytes and for the growth of the arena.
func (d *decoder) charge(n int) bool {
	n += len(d.Arena) - d.charged
	d.charged = len(d.Arena)
	if d.stopped == nil && !d.allowance.Grow(int64(n)) {
		d.stopped = d.allowance.Err()
	}
	return d.stopped == nil
}

// span is a report's range of the decoder's measurements.
type span struct {
	source    string
	from, end int
}

// decode decodes body as far as possible. It returns false if it did not reach the end, because of
// a syntax error or because of stopped.
func (d *decoder) decode(body []byte) bool {
	d.reset(body)
	for {
		d.Space()
		if d.Pos == len(d.Text) {
			return true
		}
		d.values++
		if d.Text[d.Pos] != '[' {
			if !d.report() {
				return false
			}
			continue
		}
		d.Pos++
		for first := true; ; first = false {
			more, ok := d.Element(first)
			if !ok {
				return false
			}
			if !more {
				break
			}
			if !d.report() {
				return false
			}
		}
	}
}

func (d *decoder) reset(body []byte) {
	d.Scanner.Reset(body, d.limits.Depth)
	d.measurements = d.measurements[:0]
	d.labels = d.labels[:0]
	d.labelEnds = d.labelEnds[:0]
	d.indexes = d.indexes[:0]
	d.spans = d.spans[:0]
	d.reports = d.reports[:0]
	d.values, d.seen, d.inside = 0, 0, -1
	d.rejected, d.rejectedTotal = d.rejected[:0], 0
	d.malformed, d.stopped, d.charged = "", nil, 0
}

// release drops references to the body, and slices that a large body has made large.
func (d *decoder) release() {
	d.Text = nil
	d.allowance = ingest.Allowance{}
	d.measurements = letGo(d.measurements, push.MaxPooledBytes/64)
	d.labels = letGo(d.labels, push.MaxPooledBytes/32)
	d.labelEnds = letGo(d.labelEnds, push.MaxPooledBytes/8)
	d.indexes = letGo(d.indexes, push.MaxPooledBytes/8)
	d.spans = letGo(d.spans, push.MaxPooledBytes/32)
	d.reports = letGo(d.reports, push.MaxPooledBytes/32)
	d.rejected = letGo(d.rejected, push.MaxPooledBytes/64)
	d.Arena = letGo(d.Arena, push.MaxPooledBytes)
	d.badLabels = letGo(d.badLabels, 1024)
}

func letGo[T any](s []T, keep int) []T {
	if cap(s) > keep {
		return nil
	}
	clear(s)
	return s[:0]
}

// report decodes one report, or skips whatever else is in its place.
func (d *decoder) report() bool {
	at := d.Pos
	if at < len(d.Text) && d.Text[at] != '{' {
		if kind := d.Kind(); kind != "" {
			d.misfit(at, "want a report, which is an object, not "+kind)
		}
		return d.Skip()
	}
	if at == len(d.Text) {
		return d.End()
	}
	d.Pos++

	begin := d.mark()
	var source, sourceFault string
	measured := false
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if ok && more {
			switch name {
			case "source":
				source, sourceFault, ok = d.text()
			case "measurements":
				// If a name occurs twice, the last member counts.
				d.rewind(begin)
				measured, ok = d.measurementList()
			default:
				ok = d.Skip()
			}
		}
		if !ok || !more {
			switch {
			case sourceFault != "":
				sourceFault = "source is " + sourceFault + ", not a string"
			case source == "" && ok:
				sourceFault = "the report has no source"
			case source == "":
				sourceFault = "the body cannot be read up to the report's source"
			}
			if ok && !measured {
				d.misfit(at, "the report has no list of measurements")
			}
			// Do this after a syntax error, too: the measurements read so far are complete.
			d.closeReport(begin, source, sourceFault)
			return ok && d.charge(spanBytes)
		}
	}
}

// mark is a state to which rewind returns.
type mark struct{ measurements, labels, seen, rejected, rejectedTotal int }

func (d *decoder) mark() mark {
	return mark{len(d.measurements), len(d.labels), d.seen, len(d.rejected), d.rejectedTotal}
}

func (d *decoder) rewind(m mark) {
	d.keep(m.measurements, m.labels)
	d.seen = m.seen
	d.rejected, d.rejectedTotal = d.rejected[:m.rejected], m.rejectedTotal
}

// keep truncates the kept data to the given lengths.
func (d *decoder) keep(measurements, labels int) {
	d.measurements = d.measurements[:measurements]
	d.labelEnds = d.labelEnds[:measurements]
	d.indexes = d.indexes[:measurements]
	d.labels = d.labels[:labels]
}

func (d *decoder) closeReport(begin mark, source, sourceFault string) {
	if sourceFault != "" {
		for _, index := range d.indexes[begin.measurements:] {
			d.reject(index, ingest.ReasonInvalidSource, sourceFault)
		}
		d.keep(begin.measurements, begin.labels)
	}
	if len(d.measurements) > begin.measurements {
		d.spans = append(d.spans, span{source: source, from: begin.measurements, end: len(d.measurements)})
	}
}

// misfit records JSON that is not a report; decoding continues.
func (d *decoder) misfit(at int, what string) {
	if d.malformed == "" {
		d.malformed = fmt.Sprintf("at byte %d: %s", at, what)
	}
}

func (d *decoder) reject(index int, reason ingest.Reason, message string) {
	d.rejectedTotal++
	if len(d.rejected) < d.limits.Rejections {
		d.rejected = append(d.rejected, ingest.Rejection{Index: index, Reason: reason, Message: message})
	}
}

// text decodes a value that should be a string. wrong is the actual type; it is "" for a string and
// for null, which always means absent.
func (d *decoder) text() (s, wrong string, ok bool) {
	if d.Pos < len(d.Text) && d.Text[d.Pos] == '"' {
		s, ok = d.Str()
		return s, "", ok
	}
	kind := d.Kind()
	if !d.Skip() {
		return "", "", false
	}
	if kind == "null" {
		kind = ""
	}
	return "", kind, true
}

// measurementList decodes the value of "measurements". measured is false if the value is null.
func (d *decoder) measurementList() (measured, ok bool) {
	at := d.Pos
	if at >= len(d.Text) || d.Text[at] != '[' {
		kind := d.Kind()
		if !d.Skip() {
			return false, false
		}
		if kind == "null" {
			return false, true
		}
		d.misfit(at, "measurements is "+kind+", not an array")
		return true, true
	}
	d.Pos++
	for first := true; ; first = false {
		d.inside = d.seen
		more, ok := d.Element(first)
		if !ok {
			return true, false
		}
		if !more {
			d.inside = -1
			return true, true
		}
		if d.seen == d.limits.Measurements {
			d.stopped = ingest.ErrTooMany
			return true, false
		}
		d.seen++
		labels := len(d.labels)
		if !d.measurement() || !d.charge(keptBytes+keptLabelBytes*(len(d.labels)-labels)) {
			d.labels = d.labels[:labels]
			return true, false
		}
	}
}

// measurement decodes one measurement and keeps or rejects it.
func (d *decoder) measurement() bool {
	if d.Pos >= len(d.Text) || d.Text[d.Pos] != '{' {
		kind := d.Kind()
		if !d.Skip() {
			return false
		}
		d.reject(d.inside, ingest.ReasonInvalidMetric, "the measurement is "+kind+", not an object")
		return true
	}
	d.Pos++

	var (
		m         = ingest.Measurement{TimeMs: ingest.NoTime}
		labels    = len(d.labels)
		hasMetric bool
		hasValue  bool
		// The error of each member. If a member is repeated, the last occurrence sets it.
		metricFault, labelsFault, timeFault, valueFault string
		labelsReason                                    ingest.Reason
	)
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		switch name {
		case "metric":
			at := d.Pos
			if m.Metric, metricFault, ok = d.text(); metricFault != "" {
				metricFault = "metric is " + metricFault + ", not a string"
			}
			hasMetric = ok && d.Text[at] == '"'
		case "labels":
			d.labels = d.labels[:labels]
			labelsReason, labelsFault, ok = d.labelSet()
		case "time":
			m.TimeMs, timeFault, ok = d.time()
		case "value":
			m.Value, hasValue, valueFault, ok = d.value()
		default:
			ok = d.Skip()
		}
		if !ok {
			return false
		}
	}

	switch {
	case metricFault != "":
		d.drop(labels, ingest.ReasonInvalidMetric, metricFault)
	case !hasMetric:
		d.drop(labels, ingest.ReasonInvalidMetric, "metric is missing")
	case labelsFault != "":
		d.drop(labels, labelsReason, labelsFault)
	case timeFault != "":
		d.drop(labels, ingest.ReasonInvalidTime, timeFault)
	case valueFault != "":
		d.drop(labels, ingest.ReasonInvalidValue, valueFault)
	case !hasValue:
		d.drop(labels, ingest.ReasonInvalidValue, "value is missing")
	default:
		d.measurements = append(d.measurements, m)
		d.labelEnds = append(d.labelEnds, len(d.labels))
		d.indexes = append(d.indexes, d.inside)
	}
	return true
}

// drop rejects the current measurement, whose labels begin at labels.
func (d *decoder) drop(labels int, reason ingest.Reason, message string) {
	d.labels = d.labels[:labels]
	d.reject(d.inside, reason, message)
}

// labelSet decodes the value of "labels" and appends the labels.
func (d *decoder) labelSet() (reason ingest.Reason, fault string, ok bool) {
	if d.Pos >= len(d.Text) || d.Text[d.Pos] != '{' {
		kind := d.Kind()
		if !d.Skip() {
			return "", "", false
		}
		if kind == "null" {
			return "", "", true
		}
		return ingest.ReasonInvalidLabel, "labels is " + kind + ", not an object", true
	}
	d.Pos++
	from, long := len(d.labels), 0
	d.badLabels = d.badLabels[:0]
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok {
			return "", "", false
		}
		if !more {
			break
		}
		if len(name) > ingest.MaxNameBytes {
			long = len(name)
		}
		if long > 0 || len(d.labels)-from+len(d.badLabels) > d.limits.Labels {
			// The outcome is known; the rest must only be valid JSON.
			if !d.Skip() {
				return "", "", false
			}
			continue
		}
		if d.Pos >= len(d.Text) || d.Text[d.Pos] != '"' {
			if !d.Skip() {
				return "", "", false
			}
			d.setBadLabel(name)
			continue
		}
		value, ok := d.Str()
		if !ok {
			return "", "", false
		}
		d.setLabel(from, name, value)
	}
	if long > 0 {
		return ingest.ReasonInvalidLabel, fmt.Sprintf("label name has %d bytes, more than the limit of %d", long, ingest.MaxNameBytes), true
	}
	if len(d.labels)-from+len(d.badLabels) > d.limits.Labels {
		return ingest.ReasonLimit, fmt.Sprintf("more than %d labels", d.limits.Labels), true
	}
	if len(d.badLabels) > 0 {
		return ingest.ReasonInvalidLabel, fmt.Sprintf("the value of label %s is not a string", excerpt.Quoted(d.badLabels[0])), true
	}
	return "", "", true
}

// setLabel sets a label among those at from and later. The search is quadratic, but limits.Labels
// bounds it, and for the few labels of a series nothing is faster.
func (d *decoder) setLabel(from int, name, value string) {
	if len(d.badLabels) > 0 {
		d.badLabels = slices.DeleteFunc(d.badLabels, func(s string) bool { return s == name })
	}
	for i := from; i < len(d.labels); i++ {
		if d.labels[i].Name == name {
			d.labels[i].Value = value
			return
		}
	}
	d.labels = append(d.labels, metric.Label{Name: name, Value: value})
}

func (d *decoder) setBadLabel(name string) {
	if !slices.Contains(d.badLabels, name) {
		d.badLabels = append(d.badLabels, name)
	}
}

// time decodes the value of "time".
func (d *decoder) time() (ms int64, fault string, ok bool) {
	kind := d.Kind()
	if kind != "a number" {
		if !d.Skip() {
			return 0, "", false
		}
		if kind == "null" {
			return ingest.NoTime, "", true
		}
		return 0, "time is " + kind + ", not Unix milliseconds as an integer", true
	}
	n, ok := d.Number()
	if !ok {
		return 0, "", false
	}
	// NoTime is reserved; a client must not set it by accident.
	ms, isInt := n.Int()
	if !isInt || ms == ingest.NoTime {
		return 0, "time " + excerpt.Shorten(jsonscan.View(n.Text)) + " is not Unix milliseconds as a 64-bit integer", true
	}
	return ms, "", true
}

// value decodes the value of "value".
func (d *decoder) value() (v float64, has bool, fault string, ok bool) {
	kind := d.Kind()
	if kind != "a number" {
		if !d.Skip() {
			return 0, false, "", false
		}
		if kind == "null" {
			return 0, false, "", true
		}
		return 0, false, "value is " + kind + ", not a number", true
	}
	n, ok := d.Number()
	if !ok {
		return 0, false, "", false
	}
	v, finite := n.Float()
	if !finite {
		return 0, false, "value " + excerpt.Shorten(jsonscan.View(n.Text)) + " is beyond what a 64-bit float holds, or longer than 800 characters", true
	}
	return v, true, "", true
}

// result builds the reports from the kept measurements. It leaves out reports without any.
func (d *decoder) result() []ingest.Report {
	from := 0
	for i, end := range d.labelEnds {
		if end > from {
			// Limit the capacity, so that an append cannot overwrite the next measurement's labels.
			d.measurements[i].Labels = d.labels[from:end:end]
		}
		from = end
	}
	for _, s := range d.spans {
		if s.end > s.from {
			d.reports = append(d.reports, ingest.Report{
				Source:       s.source,
				Measurements: d.measurements[s.from:s.end:s.end],
			})
		}
	}
	return d.reports
}

// where returns the measurement and the byte of a syntax error.
func (d *decoder) where() string {
	switch {
	case d.inside >= 0:
		return fmt.Sprintf("measurement %d, at byte %d", d.inside, d.At)
	case d.seen > 0:
		return fmt.Sprintf("after measurement %d, at byte %d", d.seen-1, d.At)
	}
	return fmt.Sprintf("before any measurement, at byte %d", d.At)
}
