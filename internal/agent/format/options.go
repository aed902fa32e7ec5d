package format

import (
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/graphite"
	"github.com/quern/quern/internal/protocol/influx"
)

// Options say how lines become samples. They are keys of an adaptor in the agent's YAML.
type Options struct {
	Format      string            `yaml:"format"`       // json, logfmt, csv, access, regexp, influx, graphite
	Labels      map[string]string `yaml:"labels"`       // added to each series, unless the line has the label
	Prefix      string            `yaml:"prefix"`       // before each metric's name; default "" ("access_" for access)
	TimeField   string            `yaml:"time-field"`   // default: the first of time, timestamp, ts, @timestamp that the line has
	TimeLayout  string            `yaml:"time-layout"`  // Go layout; default: recognise
	LabelFields []string          `yaml:"label-fields"` // fields that become labels
	ValueFields []string          `yaml:"value-fields"` // fields that become samples; default: all that are numbers and nothing else; with count: none
	MetricField string            `yaml:"metric-field"` // the field that names the metric
	Count       string            `yaml:"count"`        // lines are counted, not stored: the name of the counter
	Columns     []string          `yaml:"columns"`      // csv: names of the columns (required)
	Separator   string            `yaml:"separator"`    // csv: default ","
	Pattern     string            `yaml:"pattern"`      // regexp: named groups are the fields (required)
}

// New checks the options. The error begins with the key that is wrong, as in "pattern: ...".
func New(o Options) (*Format, error) {
	if err := o.unused(); err != nil {
		return nil, err
	}
	f := &Format{layouts: layouts, fields: make(map[string]*field), counters: make(map[string]*counter)}
	switch o.Format {
	case "json":
		f.read = f.json
	case "logfmt":
		f.read = f.logfmt
	case "csv":
		if len(o.Columns) == 0 {
			return nil, errors.New("columns: the format csv needs the names of the columns")
		}
		f.read, f.csv = f.record, csv.NewReader(&f.csvLine)
		f.csv.ReuseRecord, f.csv.FieldsPerRecord = true, len(o.Columns)
		f.csv.Comma, _ = utf8.DecodeRuneInString(cmp.Or(o.Separator, ","))
		if _, err := f.csv.Read(); !errors.Is(err, io.EOF) || utf8.RuneCountInString(o.Separator) > 1 {
			return nil, fmt.Errorf("separator: %q is not one character that can separate columns", o.Separator)
		}
	case "regexp", "access":
		if o.Format == "access" {
			o.setAccess()
		}
		var err error
		if f.pattern, err = regexp.Compile(o.Pattern); err != nil {
			return nil, fmt.Errorf("pattern: %w", err)
		}
		if strings.Join(f.pattern.SubexpNames(), "") == "" {
			return nil, errors.New("pattern: the format regexp needs one with named groups, such as (?P<duration>[0-9.]+), which are the fields")
		}
		f.read = f.match
	case "influx":
		var d influx.Decoder
		f.decode = func(line []byte, _ int64, b *ingest.Batch) { d.Decode(line, influx.Settings{}, b) }
	case "graphite":
		f.decode = new(graphite.Decoder).Decode
	}
	for i, name := range o.ValueFields {
		if o.Count == name+"_total" || slices.Contains(o.ValueFields[:i], name) {
			return nil, fmt.Errorf("value-fields: %s is there twice, or count has its name, %s_total", name, name)
		}
	}
	if o.TimeLayout != "" {
		f.layouts = []string{o.TimeLayout}
		at := time.Date(2013, 12, 30, 22, 47, 0, 0, time.UTC)
		if got, err := time.Parse(o.TimeLayout, at.Format(o.TimeLayout)); err != nil || !got.Equal(at) {
			return nil, fmt.Errorf(`time-layout: %q is not a layout of Go with year, month, day and time, such as "2006-01-02 15:04:05"`, o.TimeLayout)
		}
	}
	f.opts, f.all, f.lines = o, len(o.ValueFields) == 0 && o.Count == "", o.Prefix+o.Count
	f.name()
	return f, nil
}

// unused returns an error if the format does not use one of the options.
func (o *Options) unused() error {
	const fields = "json, logfmt, csv, access, regexp"
	const formats = fields + ", influx, graphite"
	if !slices.Contains(strings.Split(formats, ", "), o.Format) {
		return fmt.Errorf("format: %q is none of %s", o.Format, formats)
	}
	for _, k := range [][3]string{ // a key, its value, and who uses it
		{"time-field", o.TimeField, fields},
		{"time-layout", o.TimeLayout, fields},
		{"label-fields", strings.Join(o.LabelFields, " "), fields},
		{"value-fields", strings.Join(o.ValueFields, " "), fields},
		{"metric-field", o.MetricField, "json, logfmt, csv, regexp"},
		{"count", o.Count, fields},
		{"columns", strings.Join(o.Columns, " "), "csv"},
		{"separator", o.Separator, "csv"},
		{"pattern", o.Pattern, "regexp"},
	} {
		if k[1] != "" && !strings.Contains(k[2], o.Format) {
			return fmt.Errorf("%s: the format %s does not use it, only %s", k[0], o.Format, k[2])
		}
	}
	if o.MetricField != "" && o.Count != "" {
		return errors.New("metric-field: lines that are counted have the metric that count names")
	}
	return nil
}

// access is the common log format, with which Apache and nginx begin their lines, and what follows it: texts in quotes, maybe the
// length of the request, and the time that it took. nginx writes that in seconds with a fraction; a number without one may be
// anything. https://nginx.org/en/docs/http/ngx_http_log_module.html
const access = `^(?P<remote_addr>[^ ]+) [^\[]*\[(?P<time>[^\]]+)\] ` +
	`"(?P<method>[A-Z]*) ?(?P<path>(?:[^ "\\]|\\.)*)(?:[^"\\]|\\.)*" (?P<status>[0-9]{3}) (?:(?P<bytes>[0-9]+)|-)` +
	`(?: "(?:[^"\\]|\\.)*")*(?: [0-9]+)?(?: (?P<duration>[0-9]+\.[0-9]+))?(?: .*)?$`

func (o *Options) setAccess() {
	o.Pattern, o.Prefix, o.Count = access, cmp.Or(o.Prefix, "access_"), cmp.Or(o.Count, "requests_total")
	if o.LabelFields == nil {
		o.LabelFields = []string{"method", "status"}
	}
	if o.ValueFields == nil {
		o.ValueFields = []string{"bytes", "duration"}
	}
}

// name makes the fields that the options name.
func (f *Format) name() {
	o := &f.opts
	fixed := maps.Clone(o.Labels)
	for _, name := range o.LabelFields {
		f.labels = append(f.labels, label{f.field(name), name, fixed[name]})
		delete(fixed, name)
	}
	for _, name := range slices.Sorted(maps.Keys(fixed)) {
		f.labels = append(f.labels, label{new(field), name, fixed[name]})
	}
	if o.MetricField != "" {
		f.named = f.field(o.MetricField)
	}
	for _, name := range o.ValueFields {
		f.listed = append(f.listed, f.field(name))
	}
	if o.TimeField != "" {
		f.times = append(f.times, f.field(o.TimeField))
	} else {
		for _, name := range []string{"time", "timestamp", "ts", "@timestamp"} {
			if f.fields[name] == nil { // a label or a value is not taken for the time
				f.times = append(f.times, f.field(name))
			}
		}
	}
	for _, got := range f.fields {
		got.used = true
	}
}
