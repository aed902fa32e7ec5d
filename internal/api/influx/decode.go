// Package influx reads Influx line protocol: measurement, tags, fields and a time in each line, of which each field that
// is a number becomes a sample.
//
// The grammar is that of InfluxDB 2, https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/. It is more
// lenient in two things that InfluxDB 1 or VictoriaMetrics take: a tag without a value is as if absent, and a measurement may be
// empty. Which metric a field becomes is as with VictoriaMetrics and Telegraf's output for Prometheus.
package influx

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"strings"
	"time"
	"unsafe"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
)

// Options are what a request says of its lines.
type Options struct {
	// Unit is what times are counted in; see ParsePrecision. The default is a nanosecond.
	Unit time.Duration
	// Labels are given to all series, each unless a series has a tag of that name. There are at most maxFixed.
	Labels []metric.Label
}

// maxFixed is how many Options.Labels there can be: one for the database, one for the bucket.
const maxFixed = 2

// Loss is what Decode passes over, and what it stores under a name that something else has too.
type Loss struct {
	// Strings are fields that are strings, which cannot be kept.
	Strings int
	// SameName are values of fields whose metric is also that of another measurement's field, and Clash says which two
	// the last of them were.
	SameName int
	Clash    string
}

// ParsePrecision is the unit of times that a request's parameter precision names: in the words of InfluxDB 1 or 2.
func ParsePrecision(s string) (time.Duration, error) {
	switch s {
	case "", "n", "ns":
		return time.Nanosecond, nil
	case "u", "us", "µ", "μ": // the micro sign, and the Greek letter
		return time.Microsecond, nil
	case "ms":
		return time.Millisecond, nil
	case "s":
		return time.Second, nil
	case "m":
		return time.Minute, nil
	case "h":
		return time.Hour, nil
	}
	return 0, fmt.Errorf("precision %q is not known: use ns, us, ms, s, m or h", s)
}

// Decoder turns lines into samples. It is used by one goroutine at a time, and faster the second time that it meets a metric.
type Decoder struct {
	opts Options
	b    *ingest.Batch
	s    string // the body
	line int    // the number of the line at which the reading is, from 1
	last int    // the number of the line of the last measurement

	// Clashes finds fields of different measurements that become one metric. It may be shared. The default is that
	// nobody looks.
	Clashes *Clashes

	names   names
	labels  []metric.Label // of the line
	fields  []field        // of the line
	scratch []byte
	strings int // of the line
	loss    Loss
}

// field is one with a number, as the metric that it becomes.
type field struct {
	metric string
	clash  *clash // nil for none
	value  float64
}

// fieldBytes is what a field takes until its line has ended.
const fieldBytes = int64(unsafe.Sizeof(field{}))

// fault is why a line cannot be taken.
type fault struct {
	reason  ingest.Reason
	message string
}

func faultf(reason ingest.Reason, format string, args ...any) *fault {
	return &fault{reason, fmt.Sprintf(format, args...)}
}

// Decode adds the samples of a body to the batch, which keeps views into the body. A line with a fault is one rejected
// measurement, see Line; the others count. The result is what is lost otherwise.
func (d *Decoder) Decode(body []byte, opts Options, b *ingest.Batch) Loss {
	opts.Unit = cmp.Or(opts.Unit, time.Nanosecond)
	d.opts, d.b, d.s, d.line, d.loss = opts, b, unsafe.String(unsafe.SliceData(body), len(body)), 1, Loss{}
	d.last = 0
	for i := 0; i < len(d.s) && !b.TooMany(); {
		i = d.next(i)
	}
	// Nothing of the body stays here, nor what a huge line has made large.
	d.labels, d.fields, d.scratch = emptied(d.labels), emptied(d.fields), emptied(d.scratch)
	d.b, d.s = nil, ""
	return d.loss
}

// maxKept is how many labels and fields, or bytes, a decoder keeps room for.
const maxKept = 1 << 10

func emptied[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	clear(s[:cap(s)])
	return s[:0]
}

// next reads a line, or what is between two, at i. It returns where it ends.
func (d *Decoder) next(i int) int {
	switch d.s[i] {
	case ' ', '\r':
		return i + 1
	case '\n':
		d.line++
		return i + 1
	case '#':
		return d.endOfLine(i)
	}
	line := d.line
	i, f := d.point(i)
	if f == nil {
		return i
	}
	if d.b.Reject(f.reason, "%s", f.message) {
		d.last = line
	}
	return d.endOfLine(i)
}

// Line is the number of the line, from 1, that a measurement of a body is in: one that Decode has counted. It decodes
// all that is before it once more, and keeps nothing of that.
func Line(body []byte, opts Options, measurement int) int {
	var b ingest.Batch
	d := Decoder{opts: opts, b: &b, s: unsafe.String(unsafe.SliceData(body), len(body)), line: 1}
	d.opts.Unit = cmp.Or(opts.Unit, time.Nanosecond)
	for i := 0; i < len(d.s) && measurement >= 0; {
		i = d.next(i)
		if n := b.Len(); n > measurement || n >= lineBatch {
			measurement -= n
			b.Reset()
		}
	}
	return d.last
}

// lineBatch is how many measurements Line holds at once, besides those of one line.
const lineBatch = 1 << 10

// Whole is what a body has in whole lines: the last one may be one that was cut off.
func Whole(body []byte) []byte { return body[:bytes.LastIndexByte(body, '\n')+1] }

// endOfLine is the place of the next line feed from i on, or the end.
func (d *Decoder) endOfLine(i int) int {
	if n := strings.IndexByte(d.s[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(d.s)
}

// ends says whether a line ends at i.
func (d *Decoder) ends(i int) bool {
	return i >= len(d.s) || d.s[i] == '\n' || d.s[i] == '\r' && (i+1 == len(d.s) || d.s[i+1] == '\n')
}

func (d *Decoder) spaces(i int) int {
	for i < len(d.s) && d.s[i] == ' ' {
		i++
	}
	return i
}

// point reads the line that begins at i. It returns where it ends, or where the fault is.
func (d *Decoder) point(i int) (int, *fault) {
	line, at := d.line, i
	measurement, i := d.token(i, measurementEnd)
	if len(measurement) > ingest.MaxNameBytes {
		// It would be put together with each of the fields.
		return at, faultf(ingest.ReasonInvalidMetric, "the measurement's name has %d bytes, more than the limit of %d", len(measurement), ingest.MaxNameBytes)
	}
	i, f := d.tags(i)
	if f != nil {
		return i, f
	}
	if i >= len(d.s) || d.s[i] != ' ' {
		if d.ends(i) {
			return i, faultf(ingest.ReasonInvalidValue, "there is no field")
		}
		return i, faultf(ingest.ReasonInvalidLabel, "%s must be escaped", d.quote(i))
	}
	if i, f = d.readFields(d.names.of(measurement), d.spaces(i)); f != nil {
		return i, f
	}
	i, timeMs, f := d.time(d.spaces(i))
	if f != nil {
		return i, f
	}
	d.loss.Strings += d.strings
	for n := range d.fields {
		if n == 0 {
			d.b.Series(d.fields[n].metric, d.labels)
		} else {
			d.b.Metric(d.fields[n].metric)
		}
		if !d.b.Add(timeMs, d.fields[n].value) {
			break
		}
		d.last = line
		if c := d.fields[n].clash; c != nil {
			d.loss.SameName++
			d.loss.Clash = c.String()
		}
	}
	return i, nil
}

func (d *Decoder) tags(i int) (int, *fault) {
	d.labels = d.labels[:0]
	var tagged [maxFixed]bool // Options.Labels that give way to a tag
	for i < len(d.s) && d.s[i] == ',' {
		var key, value string
		at := i + 1
		if key, i = d.token(at, keyEnd); key == "" {
			return at, faultf(ingest.ReasonInvalidLabel, "a tag has no name")
		}
		if i >= len(d.s) || d.s[i] != '=' {
			return i, faultf(ingest.ReasonInvalidLabel, "tag %q has no value", clip(key))
		}
		if value, i = d.token(i+1, keyEnd); value == "" {
			continue
		}
		for n := range d.opts.Labels {
			tagged[n] = tagged[n] || key == d.opts.Labels[n].Name
		}
		d.labels = d.b.Label(d.labels, key, value)
	}
	for n, l := range d.opts.Labels {
		if !tagged[n] {
			d.labels = d.b.Label(d.labels, l.Name, l.Value)
		}
	}
	return i, nil
}

func (d *Decoder) readFields(n *fieldNames, i int) (int, *fault) {
	d.fields, d.strings = d.fields[:0], 0
	for {
		at := i
		key, next := d.token(i, keyEnd)
		i = next
		switch {
		case key == "" && d.ends(i):
			return i, faultf(ingest.ReasonInvalidValue, "there is no field where one should be")
		case key == "":
			return at, faultf(ingest.ReasonInvalidMetric, "a field has no name")
		case i >= len(d.s) || d.s[i] != '=':
			return i, faultf(ingest.ReasonInvalidValue, "field %q has no value", clip(key))
		}
		if i++; i < len(d.s) && d.s[i] == '"' {
			end := d.quoted(i)
			if end < 0 {
				return i, faultf(ingest.ReasonInvalidValue, "the string of field %q does not end", clip(key))
			}
			i = end
			d.strings++
		} else {
			v, end, ok := number(d.s, i)
			if !ok {
				return i, faultf(ingest.ReasonInvalidValue, "field %q: %s is no number that can be kept", clip(key), d.quote(i))
			}
			i = end
			if !d.b.Charge(fieldBytes) {
				return i, nil
			}
			name, c := d.names.metric(n, len(d.fields), key, d.b, d.Clashes)
			d.fields = append(d.fields, field{name, c, v})
		}
		if i >= len(d.s) || d.s[i] != ',' {
			break
		}
		i++
	}
	if !d.ends(i) && d.s[i] != ' ' {
		return i, faultf(ingest.ReasonInvalidValue, "%s is behind a value", d.quote(i))
	}
	return i, nil
}

// quoted is the place behind the string that begins at i, or negative. It may hold line feeds.
func (d *Decoder) quoted(i int) int {
	lines := 0
	for i++; i < len(d.s); i++ {
		switch d.s[i] {
		case '"':
			d.line += lines
			return i + 1
		case '\\':
			if i+1 < len(d.s) && d.s[i+1] != '\n' {
				i++
			}
		case '\n':
			lines++
		}
	}
	return -1
}

// time reads what is left of a line: a time, or nothing.
func (d *Decoder) time(i int) (int, int64, *fault) {
	if d.ends(i) {
		return i, ingest.NoTime, nil
	}
	at := i
	negative := d.s[i] == '-'
	if negative {
		i++
	}
	digits := i
	var n uint64
	for ; i < len(d.s) && isDigit(d.s[i]); i++ {
		n = n*10 + uint64(d.s[i]-'0')
	}
	end := d.spaces(i)
	switch {
	case i == digits || !d.ends(end):
		return at, 0, faultf(ingest.ReasonInvalidTime, "%s is no time", d.quote(at))
	case i-digits > maxDigits || n > math.MaxInt64:
		return at, 0, faultf(ingest.ReasonInvalidTime, "the time %s is out of range", d.quote(at))
	}
	t := int64(n)
	if negative {
		t = -t
	}
	ms, ok := toMs(t, d.opts.Unit)
	if !ok {
		return at, 0, faultf(ingest.ReasonInvalidTime, "the time %s is out of range", d.quote(at))
	}
	return end, ms, nil
}

// toMs is a time in Unix ms, rounded down.
func toMs(t int64, unit time.Duration) (int64, bool) {
	if unit < time.Millisecond {
		per := int64(time.Millisecond / unit)
		ms := t / per
		if t%per < 0 {
			ms--
		}
		return ms, true
	}
	per := int64(unit / time.Millisecond)
	if t > math.MaxInt64/per || t < -math.MaxInt64/per {
		return 0, false
	}
	return t * per, true
}

// quote is what stands at i, up to where a person would see its end.
func (d *Decoder) quote(i int) string {
	if d.ends(i) {
		return "nothing"
	}
	end := i + 1
	for end < len(d.s) && classes[d.s[end]]&keyEnd == 0 {
		end++
	}
	return fmt.Sprintf("%q", clip(d.s[i:end]))
}

// clip shortens what goes into a message.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
