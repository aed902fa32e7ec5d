package reports

import (
	"errors"
	"fmt"
	"slices"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/wire/excerpt"
)

// decoder decodes the reports of one body. Its strings are views of the body and of its own arena.
//
// A wrong type rejects one measurement, since the JSON around it still shows where the next begins.
// A syntax error ends decoding: what follows is unknown; what came before is kept.
type decoder struct {
	jsonscan.Scanner
	batch *ingest.Batch

	labels []metric.Label // of the current measurement
	// badLabels are the names of those whose value is not a string.
	badLabels []string
	// inside says that the current measurement is the batch's next one.
	inside bool
	// malformed describes the first JSON in the body that is not a report.
	malformed error
	// charged is the part of the arena already charged to the batch.
	charged int
}

var errEmpty = errors.New("the body is empty, want a report")

// decode adds the measurements of a body to the batch, as far as possible.
func (d *decoder) decode(body []byte, depth int, b *ingest.Batch) error {
	d.Scanner.Reset(body, depth)
	d.batch, d.inside, d.malformed, d.charged = b, false, errEmpty, 0
	for d.Space(); d.Pos < len(d.Text); d.Space() {
		if errors.Is(d.malformed, errEmpty) {
			d.malformed = nil
		}
		if d.value() {
			continue
		}
		switch n := b.Len(); {
		case b.TooMany():
			return nil
		case d.inside:
			return fmt.Errorf("measurement %d, at byte %d: %s", n, d.At, d.Fault)
		case n > 0:
			return fmt.Errorf("after measurement %d, at byte %d: %s", n-1, d.At, d.Fault)
		}
		return fmt.Errorf("before any measurement, at byte %d: %s", d.At, d.Fault)
	}
	return d.malformed
}

// value decodes a report or a list of reports.
func (d *decoder) value() bool {
	if d.Text[d.Pos] != '[' {
		return d.report()
	}
	d.Pos++
	for first := true; ; first = false {
		if more, ok := d.Element(first); !ok || !more {
			return ok
		}
		if !d.report() {
			return false
		}
	}
}

// misfit records JSON that is not a report; decoding continues.
func (d *decoder) misfit(at int, what string) {
	if d.malformed == nil {
		d.malformed = fmt.Errorf("at byte %d: %s", at, what)
	}
}

// sender is the source of a report, or what is wrong with it.
type sender struct{ name, fault string }

// report decodes one report, or skips whatever else is in its place.
func (d *decoder) report() bool {
	begin := d.Pos
	if kind := d.Kind(); kind != "an object" {
		if kind != "" {
			d.misfit(begin, "want a report, which is an object, not "+kind)
		}
		return d.Skip()
	}
	d.Pos++
	source, list, decoded := sender{fault: "the report has no source"}, -1, false
	named := false
	for first := true; ; first = false {
		member, more, ok := d.Member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		at := d.Pos
		switch member {
		case "source":
			if decoded {
				d.misfit(at, "the report has two sources")
			}
			named = true
			source, ok = d.source()
		case "measurements":
			kind := d.Kind()
			switch {
			case kind == "an array" && (decoded || list >= 0):
				d.misfit(at, "the report has two lists of measurements")
				ok = d.Skip()
			case kind == "an array" && named:
				decoded = true
				ok = d.measurements(source)
			case kind == "an array": // the source follows
				list = at
				ok = d.Skip()
			default:
				if kind != "" && kind != "null" {
					d.misfit(at, "measurements is "+kind+", not an array")
				}
				ok = d.Skip()
			}
		default:
			ok = d.Skip()
		}
		if !ok {
			return false
		}
	}
	if list >= 0 {
		end := d.Pos
		d.Pos = list
		ok := d.measurements(source)
		d.Pos = end
		return ok
	}
	if !decoded {
		d.misfit(begin, "the report has no list of measurements")
	}
	return true
}

// source decodes the value of "source".
func (d *decoder) source() (source sender, ok bool) {
	name, wrong, ok := d.text()
	switch {
	case wrong != "":
		return sender{fault: "source is " + wrong + ", not a string"}, ok
	case name == "":
		return sender{fault: "the report has no source"}, ok
	}
	return sender{name: name}, ok
}

// text decodes a value that should be a string. wrong is the actual type; it is "" for a string and
// for null, which always means absent.
func (d *decoder) text() (s, wrong string, ok bool) {
	switch kind := d.Kind(); kind {
	case "a string":
		s, ok = d.Str()
		return s, "", ok
	case "null":
		return "", "", d.Skip()
	default:
		return "", kind, d.Skip()
	}
}

// measurements decodes the list of a report.
func (d *decoder) measurements(source sender) bool {
	d.Pos++
	d.inside = true
	for first := true; ; first = false {
		more, ok := d.Element(first)
		if !ok {
			return false
		}
		if !more {
			d.inside = false
			return true
		}
		if !d.measurement(source) || d.batch.TooMany() {
			return false
		}
	}
}

// fault is why a measurement is rejected; no message means that it is not.
type fault struct {
	reason  ingest.Reason
	message string
}

// measurement adds one measurement to the batch, or rejects it.
func (d *decoder) measurement(source sender) bool {
	if kind := d.Kind(); kind != "an object" {
		if !d.Skip() {
			return false
		}
		d.batch.Reject(ingest.ReasonInvalidMetric, "the measurement is %s, not an object", kind)
		return true
	}
	d.Pos++
	var (
		name   string
		timeMs = ingest.NoTime
		value  float64
		// The fault of each member. If a member is repeated, the last occurrence sets it.
		metricFault = fault{ingest.ReasonInvalidMetric, "metric is missing"}
		valueFault  = fault{ingest.ReasonInvalidValue, "value is missing"}
		labelsFault fault
		timeFault   fault
		sourceFault = fault{ingest.ReasonInvalidSource, source.fault}
	)
	d.labels = d.labels[:0]
	for first := true; ; first = false {
		member, more, ok := d.Member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		switch member {
		case "metric":
			name, metricFault, ok = d.metric()
		case "labels":
			labelsFault, ok = d.labelSet()
		case "time":
			timeMs, timeFault, ok = d.time()
		case "value":
			value, valueFault, ok = d.number()
		default:
			ok = d.Skip()
		}
		if !ok {
			return false
		}
	}
	if !d.batch.Charge(int64(len(d.Arena) - d.charged)) {
		return false
	}
	d.charged = len(d.Arena)
	for _, f := range [...]fault{metricFault, labelsFault, timeFault, valueFault, sourceFault} {
		if f.message != "" {
			return d.batch.Reject(f.reason, "%s", f.message)
		}
	}
	d.batch.SeriesOfSource(source.name, name, d.labels)
	return d.batch.Add(timeMs, value)
}

// metric decodes the value of "metric".
func (d *decoder) metric() (name string, f fault, ok bool) {
	missing := d.Kind() == "null"
	name, wrong, ok := d.text()
	switch {
	case missing:
		return "", fault{ingest.ReasonInvalidMetric, "metric is missing"}, ok
	case wrong != "":
		return "", fault{ingest.ReasonInvalidMetric, "metric is " + wrong + ", not a string"}, ok
	}
	return name, fault{}, ok
}

// labelSet decodes the value of "labels" into d.labels.
func (d *decoder) labelSet() (f fault, ok bool) {
	d.labels, d.badLabels = d.labels[:0], d.badLabels[:0]
	if kind := d.Kind(); kind != "an object" {
		if kind != "null" {
			f = fault{ingest.ReasonInvalidLabel, "labels is " + kind + ", not an object"}
		}
		return f, d.Skip()
	}
	d.Pos++
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok {
			return f, false
		}
		if !more {
			break
		}
		value := ""
		switch {
		case f.message != "" || len(d.labels) > d.batch.MaxLabels:
			ok = d.Skip() // the outcome is known, and the rest must only be valid JSON
		case len(name) > ingest.MaxNameBytes:
			f = fault{ingest.ReasonInvalidLabel, fmt.Sprintf("label name has %d bytes, more than the limit of %d", len(name), ingest.MaxNameBytes)}
			ok = d.Skip()
		case d.Kind() != "a string":
			d.setLabel(name, "")
			d.badLabels = append(d.badLabels, name)
			ok = d.Skip()
		default:
			value, ok = d.Str()
			d.setLabel(name, value)
			d.badLabels = slices.DeleteFunc(d.badLabels, func(bad string) bool { return bad == name })
		}
		if !ok {
			return f, false
		}
	}
	if f.message == "" && len(d.labels) <= d.batch.MaxLabels && len(d.badLabels) > 0 {
		f = fault{ingest.ReasonInvalidLabel, fmt.Sprintf("the value of label %s is not a string", excerpt.Quoted(d.badLabels[0]))}
	}
	return f, true
}

// setLabel sets a label. The search is quadratic, but the batch's limit bounds it, and for the few labels of a series
// nothing is faster.
func (d *decoder) setLabel(name, value string) {
	for i := range d.labels {
		if d.labels[i].Name == name {
			d.labels[i].Value = value
			return
		}
	}
	d.labels = d.batch.Label(d.labels, name, value)
}

// time decodes the value of "time".
func (d *decoder) time() (ms int64, f fault, ok bool) {
	switch kind := d.Kind(); kind {
	case "a number":
	case "null":
		return ingest.NoTime, f, d.Skip()
	default:
		return 0, fault{ingest.ReasonInvalidTime, "time is " + kind + ", not Unix milliseconds as an integer"}, d.Skip()
	}
	n, ok := d.Number()
	if !ok {
		return 0, f, false
	}
	// NoTime is reserved; a client must not set it by accident.
	ms, isInt := n.Int()
	if !isInt || ms == ingest.NoTime {
		f = fault{ingest.ReasonInvalidTime, "time " + excerpt.Of(jsonscan.View(n.Text)) + " is not Unix milliseconds as a 64-bit integer"}
	}
	return ms, f, true
}

// number decodes the value of "value".
func (d *decoder) number() (v float64, f fault, ok bool) {
	switch kind := d.Kind(); kind {
	case "a number":
	case "null":
		return 0, fault{ingest.ReasonInvalidValue, "value is missing"}, d.Skip()
	default:
		return 0, fault{ingest.ReasonInvalidValue, "value is " + kind + ", not a number"}, d.Skip()
	}
	n, ok := d.Number()
	if !ok {
		return 0, f, false
	}
	v, finite := n.Float()
	if !finite {
		f = fault{ingest.ReasonInvalidValue, "value " + excerpt.Of(jsonscan.View(n.Text)) + " is beyond what a 64-bit float holds"}
	}
	return v, f, true
}
