package ingest

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// What bounds the parts of a series. The source, the number of labels and all lengths are checked
// always. The rest is checked only when the series is new.
const (
	maxSourceBytes = 256
	maxNameBytes   = 256 // of metrics and labels
	maxValueBytes  = 4096
	maxLabels      = 64 // without name and source
)

// flaw is why a measurement is rejected. The zero value means no flaw.
type flaw struct {
	reason  Reason
	message string
}

// checkSize returns the flaw of labels that are too many or too long. It does not read their text.
func checkSize(labels []metric.Label) flaw {
	if len(labels) > maxLabels {
		return flaw{ReasonLimit, fmt.Sprintf("%d labels, more than the limit of %d", len(labels), maxLabels)}
	}
	for i := range labels {
		lb := &labels[i]
		if len(lb.Name) > maxNameBytes {
			return flaw{ReasonInvalidLabel, checkName("label name", lb.Name, maxNameBytes)}
		}
		if len(lb.Value) > maxValueBytes {
			return flaw{ReasonLimit, fmt.Sprintf("value of label %s has %d bytes, more than the limit of %d", excerpt.Quoted(lb.Name), len(lb.Value), maxValueBytes)}
		}
	}
	return flaw{}
}

// checkLabels returns why a new series cannot have the labels. labels are as received; sorted are the
// same in order, without empty values.
func checkLabels(labels, sorted []metric.Label, derived bool) flaw {
	for _, lb := range labels {
		if msg := checkName("label name", lb.Name, maxNameBytes); msg != "" {
			return flaw{ReasonInvalidLabel, msg}
		}
		switch {
		case lb.Name == metric.NameLabel:
			return flaw{ReasonInvalidLabel, "label " + metric.NameLabel + " is the metric's name; give it as such"}
		case lb.Name == metric.SourceLabel && !derived:
			return flaw{ReasonInvalidLabel, "label " + metric.SourceLabel + " is the report's source; give it as such"}
		case !utf8.ValidString(lb.Value):
			return flaw{ReasonInvalidLabel, fmt.Sprintf("value of label %s is not valid UTF-8", excerpt.Quoted(lb.Name))}
		}
	}
	for i := 1; i < len(sorted); i++ {
		if sorted[i].Name == sorted[i-1].Name {
			return flaw{ReasonInvalidLabel, fmt.Sprintf("label %s is given twice", excerpt.Quoted(sorted[i].Name))}
		}
	}
	return flaw{}
}

// checkSource returns why no measurement of a source can be accepted, or an empty reason. A derived
// source is the value of a label, or empty.
func checkSource(rep *Report) (Reason, string) {
	if !rep.Derived {
		if msg := checkName("source", rep.Source, maxSourceBytes); msg != "" {
			return ReasonInvalidSource, msg
		}
		return "", ""
	}
	switch {
	case len(rep.Source) > maxValueBytes:
		return ReasonLimit, fmt.Sprintf("the label that names the source has %d bytes, more than the limit of %d", len(rep.Source), maxValueBytes)
	case !utf8.ValidString(rep.Source):
		return ReasonInvalidLabel, fmt.Sprintf("the label that names the source, %s, is not valid UTF-8", excerpt.Quoted(rep.Source))
	}
	return "", ""
}

// checkName returns what is wrong with a name, or "". It accepts any UTF-8 without control
// characters, as Prometheus 3 does.
func checkName(what, name string, maxBytes int) string {
	switch {
	case name == "":
		return what + " is empty"
	case len(name) > maxBytes:
		return fmt.Sprintf("%s has %d bytes, more than the limit of %d", what, len(name), maxBytes)
	case !utf8.ValidString(name):
		return fmt.Sprintf("%s %s is not valid UTF-8", what, excerpt.Quoted(name))
	case strings.ContainsFunc(name, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fmt.Sprintf("%s %s has a control character", what, excerpt.Quoted(name))
	}
	return ""
}
