package graphite

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"unsafe"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// Decoder decodes lines into samples. It is not safe for concurrent use.
//
// It accepts what carbon accepts, https://graphite.readthedocs.io/en/stable/feeding-carbon.html,
// including tags in the path. Like VictoriaMetrics, it also accepts a line without a time. A path
// becomes the metric's name unchanged, with its dots; tags become labels.
type Decoder struct {
	labels []metric.Label // labels of the current line
}

// Decode adds the samples of lines to the batch, which keeps views into them. An invalid line
// counts as one rejected measurement; the other lines are kept. Empty lines do not count. nowMs, in
// Unix ms, is the time of lines without a time.
func (d *Decoder) Decode(lines []byte, nowMs int64, b *ingest.Batch) {
	for len(lines) > 0 && !b.TooMany() {
		line := lines
		if end := bytes.IndexByte(lines, '\n'); end >= 0 {
			line, lines = lines[:end], lines[end+1:]
		} else {
			lines = nil
		}
		d.line(unsafe.String(unsafe.SliceData(line), len(line)), nowMs, b)
	}
	// Keep no references to the lines.
	clear(d.labels)
	d.labels = d.labels[:0]
}

func (d *Decoder) line(line string, nowMs int64, b *ingest.Batch) {
	path, rest := field(line)
	if path == "" {
		return
	}
	value, rest := field(rest)
	at, rest := field(rest)
	more, _ := field(rest)
	if value == "" || more != "" {
		b.Reject(ingest.ReasonInvalidValue, "%s: a line must be a path, a value and a time", excerpt.Quoted(strings.TrimRight(line, "\r")))
		return
	}
	name, ok := d.tags(path, b)
	if !ok {
		b.Reject(ingest.ReasonInvalidLabel, "%s: a path must be NAME or NAME;TAG=VALUE;TAG=VALUE…", excerpt.Quoted(strings.TrimRight(line, "\r")))
		return
	}
	v, ok := number(value)
	switch {
	case !ok:
		b.Reject(ingest.ReasonInvalidValue, "%s: the value is not a number", excerpt.Quoted(strings.TrimRight(line, "\r")))
		return
	case math.IsNaN(v):
		b.Reject(ingest.ReasonInvalidValue, "%s: NaN is not a value in Graphite", excerpt.Quoted(strings.TrimRight(line, "\r")))
		return
	}
	timeMs, ok := unixMs(at, nowMs)
	if !ok {
		b.Reject(ingest.ReasonInvalidTime, "%s: the time is not a number of Unix seconds", excerpt.Quoted(strings.TrimRight(line, "\r")))
		return
	}
	b.Series(name, d.labels)
	b.Add(timeMs, v)
}

// field returns the text up to the next white space, and the rest.
func field(s string) (text, rest string) {
	i := 0
	for i < len(s) && isSpace(s[i]) {
		i++
	}
	j := i
	for j < len(s) && !isSpace(s[j]) {
		j++
	}
	return s[i:j], s[j:]
}

func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }

// tags decodes a path's tags into d.labels and returns the name. If a tag is repeated, the last
// counts, as in carbon. The search for a repeated tag is short, since the batch bounds the labels.
func (d *Decoder) tags(path string, b *ingest.Batch) (name string, ok bool) {
	d.labels = d.labels[:0]
	name, rest, tagged := strings.Cut(path, ";")
	if name == "" {
		return "", false
	}
next:
	for tagged {
		var tag string
		tag, rest, tagged = strings.Cut(rest, ";")
		key, value, ok := strings.Cut(tag, "=")
		if !ok || key == "" {
			return "", false
		}
		for i := range d.labels {
			if d.labels[i].Name == key {
				d.labels[i].Value = value
				continue next
			}
		}
		d.labels = b.Label(d.labels, key, value)
	}
	return name, true
}

// number parses a decimal number, or a word for a non-finite value.
func number(s string) (float64, bool) {
	if strings.ContainsAny(s, "0123456789") {
		return metric.ParseDecimal(s)
	}
	v, err := strconv.ParseFloat(s, 64)
	return v, err == nil
}

// unixMs parses Unix seconds with an optional fraction, rounded down to milliseconds. "" and -1
// mean now.
func unixMs(s string, nowMs int64) (int64, bool) {
	if s == "" || s == "-1" {
		return nowMs, true
	}
	if sec, err := strconv.ParseUint(s, 10, 53); err == nil {
		return int64(sec) * 1000, true
	}
	v, ok := number(s)
	switch {
	case !ok || math.IsNaN(v) || math.Abs(v) > 1<<53:
		return 0, false
	case v > -2 && v <= -1: // carbon truncates such times to -1
		return nowMs, true
	}
	// Seconds times 1000 may come out just below a whole number. A float of today has about six decimals.
	return int64(math.Floor(math.Round(v*1e6) / 1e3)), true
}
