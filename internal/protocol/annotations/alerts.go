package annotations

import (
	"fmt"

	"github.com/quern/quern/internal/documents/annotation"
	"github.com/quern/quern/internal/protocol/jsonscan"
)

// webhookVersion is that of the notifications of Alertmanager that are understood.
const webhookVersion = "4"

// alerts reads a notification of Alertmanager.
type alerts struct {
	*jsonscan.Scanner

	labels, notes []annotation.Pair
}

// outline reads a whole notification, and returns where its alerts begin. The version is among the last members, and
// nothing is taken of a notification of another one.
func (d *alerts) outline() (at int, ok bool) {
	if d.Space() != '{' {
		return 0, d.Unexpected("a notification of Alertmanager, which is an object")
	}
	d.Pos++
	version, at := "", -1
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok {
			return 0, false
		}
		if !more {
			break
		}
		switch {
		case name == "version" && d.Kind() == "a string":
			version, ok = d.Str()
		case name == "alerts" && d.Kind() == "an array":
			at = d.Pos
			ok = d.Skip()
		default:
			ok = d.Skip()
		}
		if !ok {
			return 0, false
		}
	}
	if d.Space() != 0 || d.Pos < len(d.Text) {
		return 0, d.Unexpected("the end of the notification")
	}
	switch {
	case version != webhookVersion:
		return 0, d.Fail(0, "the version of the notification is %.20q, want %q: this endpoint takes the webhook of Prometheus' Alertmanager", version, webhookVersion)
	case at < 0:
		return 0, d.Fail(0, "the notification has no list of alerts")
	}
	return at, true
}

// alert reads the alert at Pos.
func (d *alerts) alert() (a annotation.Alert, ok bool) {
	if d.Space() != '{' {
		return a, d.Unexpected("an alert, which is an object")
	}
	d.Pos++
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok || !more {
			return a, ok
		}
		switch {
		case d.Kind() == "an object" && name == "labels":
			d.labels, ok = d.pairs(d.labels[:0])
			a.Labels = d.labels
		case d.Kind() == "an object" && name == "annotations":
			d.notes, ok = d.pairs(d.notes[:0])
			a.Annotations = d.notes
		case d.Kind() != "a string":
			ok = d.Skip()
		case name == "status":
			a.Status, ok = d.Str()
		case name == "fingerprint":
			a.Fingerprint, ok = d.Str()
		case name == "startsAt":
			a.StartsAt, ok = d.Str()
		case name == "endsAt":
			a.EndsAt, ok = d.Str()
		default:
			ok = d.Skip()
		}
		if !ok {
			return a, false
		}
	}
}

// pairs reads an object of strings: the first MaxAlertPairs of them.
func (d *alerts) pairs(to []annotation.Pair) ([]annotation.Pair, bool) {
	d.Pos++
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		switch {
		case !ok || !more:
			return to, ok
		case d.Kind() != "a string" || len(to) == annotation.MaxAlertPairs:
			ok = d.Skip()
		default:
			var value string
			value, ok = d.Str()
			to = append(to, annotation.Pair{Name: name, Value: value})
		}
		if !ok {
			return to, false
		}
	}
}

// draft reads the alert at Pos as an annotation.
func (d *alerts) draft(nowMs int64) (draft annotation.Draft, why string, ok bool) {
	a, ok := d.alert()
	if !ok {
		return draft, "", false
	}
	draft, err := a.Draft(nowMs)
	if err != nil {
		return draft, fmt.Sprint(err), true
	}
	return draft, "", true
}
