package api

import (
	"fmt"
	"slices"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// maxShownBytes limits how much of the client's text a message repeats.
const maxShownBytes = 40

// reportDecoder decodes the reports of one body. It is reused, so that after a few bodies it
// allocates nothing. Its strings are views of the body and of its own arena.
//
// A wrong type rejects one measurement, since the JSON around it still shows where the next begins.
// A syntax error ends decoding: what follows is unknown; what came before is kept.
type reportDecoder struct {
	scanner
	limits *Limits
	// allowance limits the memory for decoded data.
	allowance ingest.Allowance

	// measurements are the kept measurements of all reports. Their labels are concatenated in
	// labels. labelEnds has the end of each measurement's labels, and indexes its index in the
	// body. Slices of these arrays are made only at the end, when the arrays no longer move.
	measurements []ingest.Measurement
	labels       []metric.Label
	labelEnds    []int
	indexes      []int
	spans        []reportSpan
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
func (d *reportDecoder) charge(n int) bool {
	n += len(d.arena) - d.charged
	d.charged = len(d.arena)
	if d.stopped == nil && !d.allowance.Grow(int64(n)) {
		d.stopped = d.allowance.Err()
	}
	return d.stopped == nil
}

// reportSpan is a report's range of the decoder's measurements.
type reportSpan struct {
	source    string
	from, end int
}

// decode decodes body as far as possible. It returns false if it did not reach the end, because of
// a syntax error or because of stopped.
func (d *reportDecoder) decode(body []byte) bool {
	d.reset(body)
	for {
		d.space()
		if d.i == len(d.b) {
			return true
		}
		d.values++
		if d.b[d.i] != '[' {
			if !d.report() {
				return false
			}
			continue
		}
		d.i++
		for first := true; ; first = false {
			more, ok := d.element(first)
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

func (d *reportDecoder) reset(body []byte) {
	d.scanner.reset(body, d.limits.Depth)
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
func (d *reportDecoder) release() {
	d.b = nil
	d.allowance = ingest.Allowance{}
	d.measurements = letGo(d.measurements, maxPooledBytes/64)
	d.labels = letGo(d.labels, maxPooledBytes/32)
	d.labelEnds = letGo(d.labelEnds, maxPooledBytes/8)
	d.indexes = letGo(d.indexes, maxPooledBytes/8)
	d.spans = letGo(d.spans, maxPooledBytes/32)
	d.reports = letGo(d.reports, maxPooledBytes/32)
	d.rejected = letGo(d.rejected, maxPooledBytes/64)
	d.arena = letGo(d.arena, maxPooledBytes)
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
func (d *reportDecoder) report() bool {
	at := d.i
	if at < len(d.b) && d.b[at] != '{' {
		if kind := d.kind(); kind != "" {
			d.misfit(at, "want a report, which is an object, not "+kind)
		}
		return d.skip()
	}
	if at == len(d.b) {
		return d.end()
	}
	d.i++

	begin := d.mark()
	var source, sourceFault string
	measured := false
	for first := true; ; first = false {
		name, more, ok := d.member(first)
		if ok && more {
			switch name {
			case "source":
				source, sourceFault, ok = d.text()
			case "measurements":
				// If a name occurs twice, the last member counts.
				d.rewind(begin)
				measured, ok = d.measurementList()
			default:
				ok = d.skip()
			}
		}
		if !ok || !more {
			switch {
			case sourceFault != "":
				sourceFault = "source is " + sourceFault + ", not a string"
			case source == "" && ok:
				sourceFault = "the report has no source"
			case source == "":
				sourceFault = "the body cannot be read as far as the report's source"
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

func (d *reportDecoder) mark() mark {
	return mark{len(d.measurements), len(d.labels), d.seen, len(d.rejected), d.rejectedTotal}
}

func (d *reportDecoder) rewind(m mark) {
	d.keep(m.measurements, m.labels)
	d.seen = m.seen
	d.rejected, d.rejectedTotal = d.rejected[:m.rejected], m.rejectedTotal
}

// keep truncates the kept data to the given lengths.
func (d *reportDecoder) keep(measurements, labels int) {
	d.measurements = d.measurements[:measurements]
	d.labelEnds = d.labelEnds[:measurements]
	d.indexes = d.indexes[:measurements]
	d.labels = d.labels[:labels]
}

func (d *reportDecoder) closeReport(begin mark, source, sourceFault string) {
	if sourceFault != "" {
		for _, index := range d.indexes[begin.measurements:] {
			d.reject(index, ingest.ReasonInvalidSource, sourceFault)
		}
		d.keep(begin.measurements, begin.labels)
	}
	if len(d.measurements) > begin.measurements {
		d.spans = append(d.spans, reportSpan{source: source, from: begin.measurements, end: len(d.measurements)})
	}
}

// misfit records JSON that is not a report; decoding continues.
func (d *reportDecoder) misfit(at int, what string) {
	if d.malformed == "" {
		d.malformed = fmt.Sprintf("at byte %d: %s", at, what)
	}
}

func (d *reportDecoder) reject(index int, reason ingest.Reason, message string) {
	d.rejectedTotal++
	if len(d.rejected) < d.limits.Rejections {
		d.rejected = append(d.rejected, ingest.Rejection{Index: index, Reason: reason, Message: message})
	}
}

// text decodes a value that should be a string. wrong is the actual type; it is "" for a string and
// for null, which always means absent.
func (d *reportDecoder) text() (s, wrong string, ok bool) {
	if d.i < len(d.b) && d.b[d.i] == '"' {
		s, ok = d.str()
		return s, "", ok
	}
	kind := d.kind()
	if !d.skip() {
		return "", "", false
	}
	if kind == "null" {
		kind = ""
	}
	return "", kind, true
}

// measurementList decodes the value of "measurements". measured is false if the value is null.
func (d *reportDecoder) measurementList() (measured, ok bool) {
	at := d.i
	if at >= len(d.b) || d.b[at] != '[' {
		kind := d.kind()
		if !d.skip() {
			return false, false
		}
		if kind == "null" {
			return false, true
		}
		d.misfit(at, "measurements is "+kind+", not an array")
		return true, true
	}
	d.i++
	for first := true; ; first = false {
		d.inside = d.seen
		more, ok := d.element(first)
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
func (d *reportDecoder) measurement() bool {
	if d.i >= len(d.b) || d.b[d.i] != '{' {
		kind := d.kind()
		if !d.skip() {
			return false
		}
		d.reject(d.inside, ingest.ReasonInvalidMetric, "the measurement is "+kind+", not an object")
		return true
	}
	d.i++

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
		name, more, ok := d.member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		switch name {
		case "metric":
			at := d.i
			if m.Metric, metricFault, ok = d.text(); metricFault != "" {
				metricFault = "metric is " + metricFault + ", not a string"
			}
			hasMetric = ok && d.b[at] == '"'
		case "labels":
			d.labels = d.labels[:labels]
			labelsReason, labelsFault, ok = d.labelSet()
		case "time":
			m.TimeMs, timeFault, ok = d.time()
		case "value":
			m.Value, hasValue, valueFault, ok = d.value()
		default:
			ok = d.skip()
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
func (d *reportDecoder) drop(labels int, reason ingest.Reason, message string) {
	d.labels = d.labels[:labels]
	d.reject(d.inside, reason, message)
}

// labelSet decodes the value of "labels" and appends the labels.
func (d *reportDecoder) labelSet() (reason ingest.Reason, fault string, ok bool) {
	if d.i >= len(d.b) || d.b[d.i] != '{' {
		kind := d.kind()
		if !d.skip() {
			return "", "", false
		}
		if kind == "null" {
			return "", "", true
		}
		return ingest.ReasonInvalidLabel, "labels is " + kind + ", not an object", true
	}
	d.i++
	from, long := len(d.labels), 0
	d.badLabels = d.badLabels[:0]
	for first := true; ; first = false {
		name, more, ok := d.member(first)
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
			if !d.skip() {
				return "", "", false
			}
			continue
		}
		if d.i >= len(d.b) || d.b[d.i] != '"' {
			if !d.skip() {
				return "", "", false
			}
			d.setBadLabel(name)
			continue
		}
		value, ok := d.str()
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
		return ingest.ReasonInvalidLabel, fmt.Sprintf("the value of label %s is not a string", shown(d.badLabels[0])), true
	}
	return "", "", true
}

// setLabel sets a label among those at from and later. The search is quadratic, but limits.Labels
// bounds it, and for the few labels of a series nothing is faster.
func (d *reportDecoder) setLabel(from int, name, value string) {
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

func (d *reportDecoder) setBadLabel(name string) {
	if !slices.Contains(d.badLabels, name) {
		d.badLabels = append(d.badLabels, name)
	}
}

// time decodes the value of "time".
func (d *reportDecoder) time() (ms int64, fault string, ok bool) {
	kind := d.kind()
	if kind != "a number" {
		if !d.skip() {
			return 0, "", false
		}
		if kind == "null" {
			return ingest.NoTime, "", true
		}
		return 0, "time is " + kind + ", not Unix milliseconds as an integer", true
	}
	n, ok := d.number()
	if !ok {
		return 0, "", false
	}
	// NoTime is reserved; a client must not set it by accident.
	ms, isInt := n.int()
	if !isInt || ms == ingest.NoTime {
		return 0, "time " + clip(view(n.text)) + " is not Unix milliseconds as a 64-bit integer", true
	}
	return ms, "", true
}

// value decodes the value of "value".
func (d *reportDecoder) value() (v float64, has bool, fault string, ok bool) {
	kind := d.kind()
	if kind != "a number" {
		if !d.skip() {
			return 0, false, "", false
		}
		if kind == "null" {
			return 0, false, "", true
		}
		return 0, false, "value is " + kind + ", not a number", true
	}
	n, ok := d.number()
	if !ok {
		return 0, false, "", false
	}
	v, finite := n.float()
	if !finite {
		return 0, false, "value " + clip(view(n.text)) + " is beyond what a 64-bit float holds", true
	}
	return v, true, "", true
}

// result builds the reports from the kept measurements. It leaves out reports without any.
func (d *reportDecoder) result() []ingest.Report {
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
func (d *reportDecoder) where() string {
	switch {
	case d.inside >= 0:
		return fmt.Sprintf("measurement %d, at byte %d", d.inside, d.at)
	case d.seen > 0:
		return fmt.Sprintf("after measurement %d, at byte %d", d.seen-1, d.at)
	}
	return fmt.Sprintf("before any measurement, at byte %d", d.at)
}

// shown quotes client text for a message.
func shown(s string) string {
	if len(s) > maxShownBytes {
		return fmt.Sprintf("%q…", s[:maxShownBytes])
	}
	return fmt.Sprintf("%q", s)
}

// clip is shown without quotes, for numbers.
func clip(s string) string {
	if len(s) > maxShownBytes {
		return s[:maxShownBytes] + "…"
	}
	return s
}
