package annotation

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/storage"
)

// Pair is a label or an annotation of an alert.
type Pair struct{ Name, Value string }

// Alert is an alert as Alertmanager sends it. It may hold views into a body.
type Alert struct {
	Status      string
	Fingerprint string
	StartsAt    string // RFC 3339
	EndsAt      string // RFC 3339, in the year 1 while the alert fires
	Labels      []Pair
	Annotations []Pair
}

// MaxAlertPairs is the number of labels, and of annotations, that Draft looks at.
const MaxAlertPairs = 256

// Draft returns the annotation that stands for the alert. Its id comes from the fingerprint, so that all notifications
// of an alert that began at one time are one annotation. While the alert fires, the annotation ends at nowMs: the next
// notification extends it. What is longer than an annotation may be is cut.
func (a *Alert) Draft(nowMs int64) (Draft, error) {
	start, err := time.Parse(time.RFC3339, a.StartsAt)
	switch {
	case a.Fingerprint == "":
		return Draft{}, errors.New("the alert has no fingerprint")
	case err != nil || start.Year() < 1970:
		return Draft{}, fmt.Errorf("startsAt %.40q is no time: it must be as in RFC 3339", a.StartsAt)
	case a.Status != "firing" && a.Status != "resolved":
		return Draft{}, fmt.Errorf("the status %.40q is neither firing nor resolved", a.Status)
	}
	d := Draft{Annotation: storage.Annotation{
		ID: alertTag + "-" + a.Fingerprint, StartMs: start.UnixMilli(), EndMs: nowMs, Text: a.text(), Tags: []string{alertTag},
	}}
	if a.Status == "firing" {
		d.Tags = append(d.Tags, firingTag)
	} else if end, err := time.Parse(time.RFC3339, a.EndsAt); err == nil && end.Year() >= 1970 {
		d.EndMs = end.UnixMilli()
	}
	d.EndMs = max(d.EndMs, d.StartMs)
	slices.SortStableFunc(a.Labels, func(x, y Pair) int { return cmp.Compare(x.Name, y.Name) })
	for _, l := range a.Labels[:min(len(a.Labels), storage.MaxAnnotationTags-2)] {
		most := storage.MaxAnnotationTag
		d.Tags = append(d.Tags, cut(cut(l.Name, most)+"="+cut(l.Value, most), most))
	}
	return d, nil
}

// text returns the summary and the description, then the other annotations with their names. An alert without any has
// its name.
func (a *Alert) text() string {
	first := map[string]int{"summary": 1, "description": 2}
	rank := func(p Pair) int { return cmp.Or(first[p.Name], 3) }
	slices.SortStableFunc(a.Annotations, func(x, y Pair) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.Name, y.Name))
	})
	most := storage.MaxAnnotationText
	var sb strings.Builder
	for _, p := range a.Annotations {
		if sb.Len() > most {
			break
		}
		if sb.Len() > 0 {
			sb.WriteByte('\n')
		}
		if rank(p) == 3 {
			sb.WriteString(cut(p.Name, most) + ": ")
		}
		sb.WriteString(cut(p.Value, most))
	}
	for _, l := range a.Labels {
		if sb.Len() == 0 && l.Name == "alertname" {
			sb.WriteString(cut(l.Value, most))
		}
	}
	return cut(sb.String(), most)
}

// cut shortens a text to at most so many bytes, between two characters, and marks that.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const mark = "…"
	n := most - len(mark)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + mark
}
