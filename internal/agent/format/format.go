// Package format turns lines of text into samples: JSON, logfmt, CSV, access logs, what a regular expression finds, and the lines
// of InfluxDB and Graphite. A line has fields, which become labels, values and the time, much as in Telegraf's parsers. A line
// costs what it is long: nesting, the number of fields and the length of their names are bounded.
package format

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// maxFields is the maximum number of fields of a line.
	maxFields = 1024
	// maxNames is the number of fields that a Format remembers, in case each line has others.
	maxNames = 4 * maxFields
)

// Format reads lines. It is for one goroutine.
type Format struct {
	// LastMs is the time of the latest sample of a counter. Whoever resumes a stream sets it to what it was.
	LastMs int64

	opts    Options
	all     bool                                            // all fields that are numbers are values
	read    func(line []byte) bool                          // sets the fields of a line; false if there is nothing to add
	decode  func(line []byte, nowMs int64, b *ingest.Batch) // reads a line of samples
	decoded ingest.Batch
	scan    jsonscan.Scanner
	csv     *csv.Reader
	csvLine bytes.Reader
	pattern *regexp.Regexp
	layouts []string // of times
	layout  int      // of the previous line

	fields map[string]*field
	times  []*field // may hold the time
	labels []label
	listed []*field // Options.ValueFields
	named  *field   // Options.MetricField

	// Of the current line:
	present []*field
	reason  ingest.Reason // why it is rejected
	problem string
	series  []metric.Label
	values  []*field
	scratch []byte

	counters map[string]*counter // by labels and name
	lines    string              // the name of those that count lines
	keys     int                 // the size of the counters' keys
	raised   []*counter          // since the last Flush
	latestMs int64               // the time of the latest line that was counted
}

// field is a field by its name, with what the current line has of it.
type field struct {
	name, metric string
	used         bool // the options name it
	seen         bool // it is in Format.present
	word         bool // it is a string or boolean of JSON, which is a number only if Options.ValueFields says so
	text         string
	value        float64
}

// label is a label of all series. Its value is that of a field, or else fixed.
type label struct {
	from        *field
	name, fixed string
}

// Line adds the samples of a line, without its line feed, to a batch, which may keep views into the line until its Reset. nowMs,
// in Unix ms, is the time of a line that has none. A line that cannot be read is one rejected measurement. An empty line is
// nothing.
func (f *Format) Line(line []byte, nowMs int64, b *ingest.Batch) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	line, f.reason = bytes.TrimSuffix(line, []byte("\r")), ""
	switch {
	case !utf8.Valid(line):
		f.reject(ingest.ReasonInvalidValue, "the line is not UTF-8")
	case f.decode != nil:
		f.copyDecoded(line, nowMs, b)
	default:
		f.line(line, nowMs, b)
	}
	if f.reason != "" {
		b.Reject(f.reason, "%s: %s", excerpt.Quoted(jsonscan.View(line)), f.problem)
	}
	for _, got := range f.present {
		got.seen, got.text = false, ""
	}
	f.present = f.present[:0]
	if len(f.fields) > maxNames {
		maps.DeleteFunc(f.fields, func(_ string, got *field) bool { return !got.used })
	}
}

// reject rejects the line, for the first reason of several. It returns false.
func (f *Format) reject(reason ingest.Reason, problem string, args ...any) bool {
	if f.reason == "" {
		f.reason, f.problem = reason, fmt.Sprintf(problem, excerpt.Args(args)...)
	}
	return false
}

func (f *Format) line(line []byte, nowMs int64, b *ingest.Batch) {
	f.scan.Reset(line, maxDepth)
	if !f.read(line) {
		return
	}
	if !utf8.Valid(f.scan.Arena) {
		f.reject(ingest.ReasonInvalidValue, "a string holds half of a surrogate pair")
	}
	timeMs := f.time(nowMs)
	f.readValues()
	f.series = f.series[:0]
	for _, l := range f.labels {
		text := l.from.text
		if text == "" {
			text = l.fixed
		} else if len(f.scan.Arena) > 0 { // the text may be there, which the next line overwrites
			text = b.Copy([]byte(text))
		}
		if text != "" {
			f.series = b.Label(f.series, l.name, text)
		}
	}
	switch {
	case f.reason != "":
	case f.opts.Count != "":
		f.count(timeMs, nowMs, b)
	default:
		f.store(timeMs, b)
	}
}

// field returns the field of a name.
func (f *Format) field(name string) *field {
	got := f.fields[name]
	if got == nil {
		name = strings.Clone(name)
		got = &field{name: name, metric: f.opts.Prefix + name}
		if f.opts.Count != "" {
			got.metric += "_total"
		}
		f.fields[name] = got
	}
	return got
}

// set says what the line has of a field. Of several fields with one name the last counts.
func (f *Format) set(name, text string, word bool) {
	switch {
	case name == "": // such as the column of a table's index
		return
	case len(name) > ingest.MaxNameBytes || len(f.present) == maxFields:
		f.reject(ingest.ReasonLimit, "more than %d fields, or a field's name of more than %d bytes", maxFields-1, ingest.MaxNameBytes)
		return
	}
	got := f.field(name)
	if !got.seen {
		got.seen = true
		f.present = append(f.present, got)
	}
	got.text, got.word = text, word
}

// readValues finds what is to be stored or added up.
func (f *Format) readValues() {
	f.values = f.values[:0]
	fields := f.listed
	if f.all {
		fields = f.present
	}
	for _, got := range fields {
		if got.text == "" || got.text == "-" || f.all && (got.used || got.word) { // a log's dash is what it does not know
			continue
		}
		var ok bool
		if got.value, ok = metric.ParseDecimal(got.text); !f.all && (got.text == "true" || got.text == "false") {
			got.value, ok = float64(len("false")-len(got.text)), true
		}
		if ok {
			f.values = append(f.values, got)
		} else if !f.all || f.opts.Format == "json" {
			f.reject(ingest.ReasonInvalidValue, "field %s is not a number that can be stored: %s", got.name, got.text)
		}
	}
	if len(f.values) == 0 && !f.all && f.opts.Count == "" {
		f.reject(ingest.ReasonInvalidValue, "the line has none of the value-fields %s", strings.Join(f.opts.ValueFields, ", "))
	}
}

// store adds the values to a batch.
func (f *Format) store(timeMs int64, b *ingest.Batch) {
	if f.named != nil && len(f.values) > 0 && (f.named.text == "" || len(f.named.text) > ingest.MaxNameBytes) {
		f.reject(ingest.ReasonInvalidMetric, "field %s has %d bytes, but must be a metric's name of at most %d", f.named.name, len(f.named.text), ingest.MaxNameBytes)
		return
	}
	for i, got := range f.values {
		name := got.metric
		if f.named != nil {
			f.scratch = append(append(f.scratch[:0], f.opts.Prefix...), f.named.text...)
			if got.name != "value" {
				f.scratch = append(append(f.scratch, '_'), got.name...)
			}
			name = b.Copy(f.scratch)
		}
		f.add(i, name, timeMs, got.value, b)
	}
}

// add adds the sample i of a line.
func (f *Format) add(i int, name string, timeMs int64, v float64, b *ingest.Batch) {
	if i == 0 {
		b.Series(name, f.series)
	} else {
		b.Metric(name)
	}
	b.Add(timeMs, v)
}

// copyDecoded adds what a protocol's decoder makes of a line. The samples of a line have the same labels.
func (f *Format) copyDecoded(line []byte, nowMs int64, b *ingest.Batch) {
	f.decoded.Reset()
	f.decode(line, nowMs, &f.decoded)
	for _, r := range f.decoded.Result(ingest.Result{}).Rejected {
		f.reject(r.Reason, "%s", r.Message)
	}
	for _, rep := range f.decoded.Reports() {
		f.series = f.series[:0]
		if !rep.Derived {
			f.series = b.Label(f.series, metric.SourceLabel, b.Copy([]byte(rep.Source)))
		}
		for _, l := range rep.Measurements[0].Labels {
			f.series = b.Label(f.series, b.Copy([]byte(l.Name)), b.Copy([]byte(l.Value)))
		}
		for _, l := range f.labels {
			if !slices.ContainsFunc(f.series, func(has metric.Label) bool { return has.Name == l.name }) {
				f.series = b.Label(f.series, l.name, l.fixed)
			}
		}
		for i, m := range rep.Measurements {
			if math.IsInf(m.Value, 0) { // which Graphite has
				f.reject(ingest.ReasonInvalidValue, "an infinity cannot be sent")
				return
			}
			if m.TimeMs == ingest.NoTime {
				m.TimeMs = nowMs
			}
			f.scratch = append(append(f.scratch[:0], f.opts.Prefix...), m.Metric...)
			f.add(i, b.Copy(f.scratch), m.TimeMs, m.Value, b)
		}
	}
}
