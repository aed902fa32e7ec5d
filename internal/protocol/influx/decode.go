// Package influx serves the write endpoints of InfluxDB. It decodes line protocol: each line has a
// measurement, tags, fields and a time; each numeric field becomes a sample.
//
// The grammar is InfluxDB 2's,
// https://docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol/. It is more lenient in
// two points, as InfluxDB 1 or VictoriaMetrics are: a tag without a value counts as absent, and a
// measurement may be empty. Fields map to metrics as in VictoriaMetrics and in Telegraf's output
// for Prometheus.
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
	"github.com/quern/quern/internal/wire/excerpt"
)

// Settings are the parameters of a request that apply to all of its lines.
type Settings struct {
	// Unit is the unit of times; see parsePrecision. The default is a nanosecond.
	Unit time.Duration
	// Labels are added to all series, except where a series has a tag of the same name. There are
	// at most maxFixed labels.
	Labels []metric.Label
}

// maxFixed is the maximum number of Settings.Labels: one for the database, one for the bucket.
const maxFixed = 2

// parsePrecision parses a request's precision parameter, in the notation of InfluxDB 1 or 2.
func parsePrecision(s string) (time.Duration, error) {
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
	return 0, fmt.Errorf("unknown precision %s: use ns, us, ms, s, m or h", excerpt.Quoted(s))
}

// Decoder decodes lines into samples. It is not safe for concurrent use. It caches metric names, so
// repeated metrics decode faster.
type Decoder struct {
	opts Settings
	b    *ingest.Batch
	s    string // the body
	line int    // current line number, from 1
	// lines are the line numbers of the batch's measurements.
	lines []int32

	names   names
	labels  []metric.Label // labels of the current line
	fields  []field        // fields of the current line
	scratch []byte
	// strings counts the string fields of the current line, and ignored those of all lines: they are not stored.
	strings, ignored int
}

// field is a numeric field and its metric.
type field struct {
	metric string
	value  float64
}

// fieldBytes is the memory of a field until its line ends, and of its line number.
const fieldBytes = int64(unsafe.Sizeof(field{})) + 4

// fault is the reason why a line is rejected.
type fault struct {
	reason  ingest.Reason
	message string
}

func faultf(reason ingest.Reason, format string, args ...any) *fault {
	return &fault{reason, fmt.Sprintf(format, args...)}
}

// Decode adds the samples of a body to the batch, which keeps views into the body. A faulty line
// counts as one rejected measurement; the other lines are kept. It returns the number of string
// fields, which cannot be stored.
func (d *Decoder) Decode(body []byte, opts Settings, b *ingest.Batch) (ignored int) {
	opts.Unit = cmp.Or(opts.Unit, time.Nanosecond)
	d.opts, d.b, d.s, d.line, d.ignored = opts, b, unsafe.String(unsafe.SliceData(body), len(body)), 1, 0
	d.lines = nil // the reply has those of the previous body
	for i := 0; i < len(d.s) && !b.TooMany(); {
		i = d.next(i)
	}
	// Keep no references to the body, nor slices that a huge line has made large.
	d.labels, d.fields, d.scratch = emptied(d.labels), emptied(d.fields), emptied(d.scratch)
	d.b, d.s = nil, ""
	return d.ignored
}

// maxKept is the number of labels, fields or bytes for which a decoder keeps capacity.
const maxKept = 1 << 10

func emptied[T any](s []T) []T {
	if cap(s) > maxKept {
		return nil
	}
	clear(s[:cap(s)])
	return s[:0]
}

// next decodes the line at i, or skips what separates lines. It returns the end position.
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
		d.lines = append(d.lines, int32(line))
	}
	return d.endOfLine(i)
}

// wholeLines returns the complete lines of a body: the last line may be cut off.
func wholeLines(body []byte) []byte { return body[:bytes.LastIndexByte(body, '\n')+1] }

// endOfLine returns the position of the next line feed from i on, or the end.
func (d *Decoder) endOfLine(i int) int {
	if n := strings.IndexByte(d.s[i:], '\n'); n >= 0 {
		return i + n
	}
	return len(d.s)
}

// ends returns whether a line ends at i.
func (d *Decoder) ends(i int) bool {
	return i >= len(d.s) || d.s[i] == '\n' || d.s[i] == '\r' && (i+1 == len(d.s) || d.s[i+1] == '\n')
}

func (d *Decoder) spaces(i int) int {
	for i < len(d.s) && d.s[i] == ' ' {
		i++
	}
	return i
}

// point decodes the line at i. It returns the end of the line, or the position of the fault.
func (d *Decoder) point(i int) (int, *fault) {
	line, at := d.line, i
	measurement, i := d.token(i, measurementEnd)
	if len(measurement) > ingest.MaxNameBytes {
		// The name would be repeated in the name of each field's metric.
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
	if i, f = d.readFields(d.names.fields(measurement), d.spaces(i)); f != nil {
		return i, f
	}
	i, timeMs, f := d.time(d.spaces(i))
	if f != nil {
		return i, f
	}
	d.ignored += d.strings
	for n := range d.fields {
		if n == 0 {
			d.b.Series(d.fields[n].metric, d.labels)
		} else {
			d.b.Metric(d.fields[n].metric)
		}
		if !d.b.Add(timeMs, d.fields[n].value) {
			break
		}
		d.lines = append(d.lines, int32(line))
	}
	return i, nil
}

func (d *Decoder) tags(i int) (int, *fault) {
	d.labels = d.labels[:0]
	var tagged [maxFixed]bool // which of Settings.Labels a tag overrides
	for i < len(d.s) && d.s[i] == ',' {
		var key, value string
		at := i + 1
		if key, i = d.token(at, keyEnd); key == "" {
			return at, faultf(ingest.ReasonInvalidLabel, "a tag has no name")
		}
		if i >= len(d.s) || d.s[i] != '=' {
			return i, faultf(ingest.ReasonInvalidLabel, "tag %s has no value", excerpt.Quoted(key))
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
			return i, faultf(ingest.ReasonInvalidValue, "a field is missing")
		case key == "":
			return at, faultf(ingest.ReasonInvalidMetric, "a field has no name")
		case i >= len(d.s) || d.s[i] != '=':
			return i, faultf(ingest.ReasonInvalidValue, "field %s has no value", excerpt.Quoted(key))
		}
		if i++; i < len(d.s) && d.s[i] == '"' {
			end := d.quoted(i)
			if end < 0 {
				return i, faultf(ingest.ReasonInvalidValue, "the string of field %s has no closing quote", excerpt.Quoted(key))
			}
			i = end
			d.strings++
		} else {
			v, end, ok := number(d.s, i)
			if !ok {
				return i, faultf(ingest.ReasonInvalidValue, "field %s: %s is not a number that can be stored", excerpt.Quoted(key), d.quote(i))
			}
			i = end
			if !d.b.Charge(fieldBytes) {
				return i, nil
			}
			d.fields = append(d.fields, field{d.names.metric(n, len(d.fields), key, d.b), v})
		}
		if i >= len(d.s) || d.s[i] != ',' {
			break
		}
		i++
	}
	if !d.ends(i) && d.s[i] != ' ' {
		return i, faultf(ingest.ReasonInvalidValue, "unexpected %s after a value", d.quote(i))
	}
	return i, nil
}

// quoted returns the position after the string that begins at i, or a negative number if the string
// does not end. Strings may contain line feeds.
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

// time decodes the rest of a line: a time or nothing.
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
		return at, 0, faultf(ingest.ReasonInvalidTime, "%s is not a time", d.quote(at))
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

// toMs converts a time to Unix ms, rounded down.
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

// quote quotes the text at i for a message, up to its visible end.
func (d *Decoder) quote(i int) string {
	if d.ends(i) {
		return "nothing"
	}
	end := i + 1
	for end < len(d.s) && classes[d.s[end]]&keyEnd == 0 {
		end++
	}
	return excerpt.Quoted(d.s[i:end])
}
