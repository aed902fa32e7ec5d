package format

import (
	"bytes"
	"encoding/csv"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/go-logfmt/logfmt"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/jsonscan"
)

// maxDepth is the maximum nesting of a line of JSON.
const maxDepth = 64

// json reads a line that is an object.
func (f *Format) json([]byte) bool {
	s := &f.scan
	if s.Space() != '{' {
		s.Unexpected("an object")
	} else if f.object(0, maxDepth) && s.Space() != 0 {
		s.Unexpected("the end of the line")
	}
	return s.Fault == "" || f.reject(ingest.ReasonInvalidValue, "invalid JSON at byte %d: %s", s.At, s.Fault)
}

// object reads the object at s.Pos. f.scratch[:path] is what the names of its members begin with.
func (f *Format) object(path, depth int) bool {
	s := &f.scan
	s.Pos++
	for first := true; ; first = false {
		name, more, ok := s.Member(first)
		if !ok || !more {
			return ok
		}
		begin, c := s.Pos, s.Space()
		if path > 0 || c == '{' {
			f.scratch = append(f.scratch[:path], name...)
			name = jsonscan.View(f.scratch)
		}
		switch c {
		case '"':
			var text string
			text, ok = s.Str()
			f.set(name, text, true)
		case '{':
			if depth == 0 {
				return s.Fail(begin, "values are nested deeper than %d", maxDepth)
			}
			f.scratch = append(f.scratch, '_')
			ok = f.object(len(f.scratch), depth-1)
		default:
			if ok = s.Skip(); c != '[' && c != 'n' {
				f.set(name, jsonscan.View(s.Text[begin:s.Pos]), c == 't' || c == 'f')
			}
		}
		if !ok {
			return false
		}
	}
}

// logfmt reads pairs such as level=info msg="request served".
func (f *Format) logfmt(line []byte) bool {
	d, pairs := logfmt.NewDecoderSize(bytes.NewReader(line), len(line)+1), false
	for d.ScanRecord() {
		for d.ScanKeyval() {
			pairs = pairs || len(d.Value()) > 0
			f.set(jsonscan.View(d.Key()), jsonscan.View(d.Value()), false) // of memory that is not used again
		}
	}
	if d.Err() != nil {
		return f.reject(ingest.ReasonInvalidValue, "%s", d.Err())
	}
	return pairs || f.reject(ingest.ReasonInvalidValue, "there is no NAME=VALUE")
}

// record reads a line of columns. A line that holds their names is the header.
func (f *Format) record(line []byte) bool {
	f.csvLine.Reset(line)
	record, err := f.csv.Read()
	if err != nil {
		if errors.Is(err, csv.ErrFieldCount) {
			return f.reject(ingest.ReasonInvalidValue, "%d columns, want %d", len(record), len(f.opts.Columns))
		}
		return f.reject(ingest.ReasonInvalidValue, "%s", errors.Unwrap(err))
	}
	for i, text := range record {
		f.set(f.opts.Columns[i], text, false)
	}
	return !slices.Equal(record, f.opts.Columns)
}

// match reads a line by a pattern.
func (f *Format) match(line []byte) bool {
	found := f.pattern.FindSubmatchIndex(line)
	if found == nil {
		return f.reject(ingest.ReasonInvalidValue, "the line does not match the pattern of the format %s", f.opts.Format)
	}
	for i, name := range f.pattern.SubexpNames() {
		if begin := found[2*i]; begin >= 0 {
			f.set(name, jsonscan.View(line[begin:found[2*i+1]]), false)
		}
	}
	return true
}

// layouts are what times look like. A fraction may follow the seconds in any.
var layouts = []string{
	time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04:05Z0700", "02/Jan/2006:15:04:05 -0700",
	time.DateTime, "2006-01-02 15:04:05Z07:00", "2006-01-02 15:04:05Z0700",
}

// time returns the time of the line in Unix ms, rounded down.
func (f *Format) time(nowMs int64) int64 {
	i := slices.IndexFunc(f.times, func(got *field) bool { return got.text != "" })
	if i < 0 {
		return nowMs
	}
	text := f.times[i].text
	if f.opts.TimeLayout == "" {
		if ms, ok := unixMs(text); ok {
			return ms
		}
	}
	for range f.layouts { // that of the previous line first
		if t, err := time.Parse(f.layouts[f.layout], text); err == nil {
			return t.UnixMilli()
		}
		f.layout = (f.layout + 1) % len(f.layouts)
	}
	f.reject(ingest.ReasonInvalidTime, "field %s is not a time: %s", f.times[i].name, text)
	return 0
}

// unixMs parses a Unix time, whose magnitude tells whether it is in seconds, ms, µs or ns.
func unixMs(s string) (ms int64, ok bool) {
	v, ok := metric.ParseDecimal(s)
	abs := math.Abs(v)
	switch {
	case !ok || abs > math.MaxInt64/2:
		return 0, false
	case abs < 1e11: // until the year 5138
		// The float may be just below a whole number. It has about six decimals.
		return int64(math.Floor(math.Round(v*1e6) / 1e3)), true
	}
	perMs := int64(1)
	for limit := 1e14; abs >= limit && perMs < 1e6; limit *= 1e3 {
		perMs *= 1e3
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		n = int64(math.Floor(v))
	}
	return metric.AlignDown(n, perMs) / perMs, true
}
