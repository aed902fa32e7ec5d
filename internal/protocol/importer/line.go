package importer

import (
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/annotations"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/wire"
)

// line decodes one line after the other. Its strings are views of the line.
type line struct {
	jsonscan.Scanner

	name   string
	labels []metric.Label // at most one more than most
	most   int
	// valuesAt and timesAt are where the lists of the values and the times begin, -1 if there is none; n is the length of each.
	valuesAt, timesAt, n int

	annotated bool
	draft     annotations.Draft
}

// decode checks a whole line. It decodes the name and the labels, or the annotation. The values and the times are only counted:
// samples decodes them again. It returns false if the line is malformed.
func (l *line) decode(text []byte) bool {
	l.Text, l.Pos, l.Arena = text, 0, l.Arena[:0]
	l.name, l.labels, l.valuesAt, l.timesAt, l.n, l.annotated = "", l.labels[:0], -1, -1, 0, false
	if l.Space() != '{' {
		return l.Unexpected("an object")
	}
	l.Pos++
	times, why := 0, ""
	for first := true; ; first = false {
		member, more, ok := l.Member(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		at := l.Pos
		switch member {
		case "metric":
			ok = l.metric()
		case "values":
			l.valuesAt = at
			l.n, ok = l.count(func() bool { _, ok := l.value(); return ok })
		case "timestamps":
			l.timesAt = at
			times, ok = l.count(func() bool { _, ok := l.timeMs(); return ok })
		case "annotation":
			if ok = l.Skip(); ok {
				l.draft, why = annotations.DecodeLine(l.Text[at:l.Pos])
				l.annotated = true
			}
		default:
			ok = l.Skip()
		}
		if !ok {
			return false
		}
	}
	if l.Space() != 0 || l.Pos < len(l.Text) {
		return l.Unexpected("the end of the line")
	}
	sampled := l.valuesAt >= 0 || l.timesAt >= 0
	switch {
	case l.annotated && why == "" && (sampled || l.name != ""):
		return l.unfit("a line has samples or an annotation, not both")
	case l.annotated:
		return why == "" || l.unfit(why)
	case l.valuesAt < 0 || l.timesAt < 0:
		return l.Fail(0, "a line must have metric, values and timestamps")
	case l.n != times:
		return l.Fail(0, "there are %d values and %d timestamps", l.n, times)
	}
	return true
}

// unfit says why the annotation of the line cannot be stored.
func (l *line) unfit(why string) bool {
	return l.Fail(0, "annotation %.80q: %s", l.draft.ID, why)
}

// metric decodes the name and the labels.
func (l *line) metric() bool {
	begin := l.Pos
	if begin >= len(l.Text) || l.Text[begin] != '{' {
		return l.Unexpected("an object of labels")
	}
	l.Pos++
	l.name, l.labels = "", l.labels[:0]
	for first := true; ; first = false {
		label, more, ok := l.Member(first)
		if !ok || !more {
			return ok
		}
		if l.Pos >= len(l.Text) || l.Text[l.Pos] != '"' {
			return l.Unexpected("a label's value in quotes")
		}
		value, ok := l.Str()
		switch {
		case !ok:
			return false
		case l.Pos-begin > maxSeries:
			return l.Fail(begin, "the metric is longer than the limit of %d bytes", maxSeries)
		case label == metric.NameLabel:
			l.name = value
		case len(l.labels) <= l.most:
			l.labels = append(l.labels, metric.Label{Name: label, Value: value})
		}
	}
}

// count reads a list, and returns its length.
func (l *line) count(read func() bool) (n int, ok bool) {
	if l.Pos >= len(l.Text) || l.Text[l.Pos] != '[' {
		return 0, l.Unexpected("an array")
	}
	l.Pos++
	for first := true; ; first = false {
		if more, ok := l.Element(first); !ok || !more {
			return n, ok
		}
		if !read() {
			return 0, false
		}
		n++
	}
}

// value decodes a value in any form that exports use.
func (l *line) value() (float64, bool) {
	at := l.Pos
	if word := l.word(); word != "" {
		v, ok := wire.ParseNotFinite(word)
		if !ok {
			return 0, l.Fail(at, "%q is not a value", word)
		}
		l.Pos += len(word)
		return v, true
	}
	switch l.Kind() {
	case "a string":
		text, ok := l.Str()
		if !ok {
			return 0, false
		}
		if v, ok := wire.ParseNotFinite(text); ok {
			return v, true
		}
		if v, ok := metric.ParseDecimal(text); ok { // the form of values in Prometheus' API
			return v, true
		}
		return 0, l.Fail(at, "%q is not a value", text)
	case "a number":
		n, ok := l.Number()
		if !ok {
			return 0, false
		}
		v, ok := n.Float()
		if !ok {
			return 0, l.Fail(at, "%s is too large or too long", n.Text)
		}
		return v, true
	}
	return 0, l.Unexpected("a value")
}

// word returns an unquoted word such as NaN or +Inf at the place of a value, which JSON does not
// allow; "" if there is none.
func (l *line) word() string {
	end := l.Pos
	if end < len(l.Text) && (l.Text[end] == '+' || l.Text[end] == '-') {
		end++
	}
	first := end
	for end < len(l.Text) && (l.Text[end]|0x20) >= 'a' && (l.Text[end]|0x20) <= 'z' {
		end++
	}
	if end == first {
		return ""
	}
	return jsonscan.View(l.Text[l.Pos:end])
}

func (l *line) timeMs() (int64, bool) {
	at := l.Pos
	if l.Kind() != "a number" {
		return 0, l.Unexpected("a time in Unix ms")
	}
	n, ok := l.Number()
	if !ok {
		return 0, false
	}
	ms, ok := n.Int()
	if !ok || ms == ingest.NoTime {
		return 0, l.Fail(at, "%s is not a time in Unix ms", n.Text)
	}
	return ms, true
}
