package annotations

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/protocol/jsonscan"
)

const (
	// webhookVersion is that of the notifications of Alertmanager that are understood.
	webhookVersion = "4"
	// maxAlertPairs is the number of labels, and of annotations, of an alert that are looked at.
	maxAlertPairs = 256

	// alertTag is on all annotations that come from alerts, and firingTag on those whose end is not known yet.
	alertTag  = "alert"
	firingTag = "firing"
)

// alertsOf reads a whole notification, and returns the list of its alerts. The version is among the last members, and
// nothing is taken of a notification of another one.
func alertsOf(s *jsonscan.Scanner) (list json.RawMessage, ok bool) {
	if s.Space() != '{' {
		return nil, s.Unexpected("a notification of Alertmanager, which is an object")
	}
	if !s.Skip() {
		return nil, false
	}
	if s.Space() != 0 || s.Pos < len(s.Text) {
		return nil, s.Unexpected("the end of the notification")
	}
	var in struct {
		Version lax             `json:"version"`
		Alerts  json.RawMessage `json:"alerts"`
	}
	_ = json.Unmarshal(s.Text, &in) // it is an object, and what is no string is empty
	switch {
	case in.Version != webhookVersion:
		return nil, s.Fail(0, "the version of the notification is %.20q, want %q: this endpoint takes the webhook of Prometheus' Alertmanager", in.Version, webhookVersion)
	case !bytes.HasPrefix(in.Alerts, []byte("[")):
		return nil, s.Fail(0, "the notification has no list of alerts")
	}
	return in.Alerts, true
}

// lax is a string. What is none is empty.
type lax string

// UnmarshalJSON implements json.Unmarshaler.
func (l *lax) UnmarshalJSON(text []byte) error {
	var s string
	if json.Unmarshal(text, &s) == nil {
		*l = lax(s)
	}
	return nil
}

// pairs are the labels or the annotations of an alert: the first maxAlertPairs that have a value.
type pairs []pair

type pair struct{ name, value string }

// UnmarshalJSON implements json.Unmarshaler.
func (p *pairs) UnmarshalJSON(text []byte) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('{') {
		return err
	}
	for dec.More() && len(*p) < maxAlertPairs {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		var value lax
		if err := dec.Decode(&value); err != nil {
			return err
		}
		if value != "" {
			*p = append(*p, pair{name.(string), string(value)})
		}
	}
	return nil
}

// alert is an alert as Alertmanager sends it.
type alert struct {
	Status      lax   `json:"status"`
	Fingerprint lax   `json:"fingerprint"`
	StartsAt    lax   `json:"startsAt"` // RFC 3339
	EndsAt      lax   `json:"endsAt"`   // RFC 3339, in the year 1 while the alert fires
	Labels      pairs `json:"labels"`
	Annotations pairs `json:"annotations"`
}

// decodeAlert reads an alert as the annotation that stands for it. why says what is wrong with it.
func decodeAlert(text []byte, nowMs int64) (draft Draft, why string) {
	var a alert
	err := json.Unmarshal(text, &a)
	if err == nil {
		draft, err = a.draft(nowMs)
	}
	if err != nil {
		why = err.Error()
	}
	return draft, why
}

// draft returns the annotation that stands for the alert. Its id comes from the fingerprint, so that all notifications
// of an alert that began at one time are one annotation. While the alert fires, the annotation ends at nowMs: the next
// notification extends it. What is longer than an annotation may be is cut.
func (a *alert) draft(nowMs int64) (Draft, error) {
	start, err := time.Parse(time.RFC3339, string(a.StartsAt))
	switch {
	case a.Fingerprint == "":
		return Draft{}, errors.New("the alert has no fingerprint")
	case err != nil || start.Year() < 1970:
		return Draft{}, fmt.Errorf("startsAt %.40q is no time: it must be as in RFC 3339", a.StartsAt)
	case a.Status != "firing" && a.Status != "resolved":
		return Draft{}, fmt.Errorf("the status %.40q is neither firing nor resolved", a.Status)
	}
	d := Draft{Annotation: Annotation{
		ID: alertTag + "-" + string(a.Fingerprint), StartMs: start.UnixMilli(), EndMs: nowMs, Text: a.text(), Tags: []string{alertTag},
	}}
	if a.Status == "firing" {
		d.Tags = append(d.Tags, firingTag)
	} else if end, err := time.Parse(time.RFC3339, string(a.EndsAt)); err == nil && end.Year() >= 1970 {
		d.EndMs = end.UnixMilli()
	}
	d.EndMs = max(d.EndMs, d.StartMs)
	slices.SortStableFunc(a.Labels, func(x, y pair) int { return cmp.Compare(x.name, y.name) })
	for _, l := range a.Labels[:min(len(a.Labels), maxTags-2)] {
		most := maxTag
		d.Tags = append(d.Tags, cut(cut(l.name, most)+"="+cut(l.value, most), most))
	}
	return d, nil
}

// text returns the summary and the description, then the other annotations with their names. An alert without any has
// its name.
func (a *alert) text() string {
	first := map[string]int{"summary": 1, "description": 2}
	rank := func(p pair) int { return cmp.Or(first[p.name], 3) }
	slices.SortStableFunc(a.Annotations, func(x, y pair) int {
		return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.name, y.name))
	})
	most := maxText
	var sb strings.Builder
	for _, p := range a.Annotations {
		if sb.Len() > most {
			break
		}
		if sb.Len() > 0 {
			sb.WriteByte('\n')
		}
		if rank(p) == 3 {
			sb.WriteString(cut(p.name, most) + ": ")
		}
		sb.WriteString(cut(p.value, most))
	}
	for _, l := range a.Labels {
		if sb.Len() == 0 && l.name == "alertname" {
			sb.WriteString(cut(l.value, most))
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
