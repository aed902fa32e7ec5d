package annotations

import (
	"fmt"
	"strings"

	"github.com/quern/quern/internal/documents/annotation"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/jsonscan"
	"github.com/quern/quern/internal/storage"
)

// Decoder reads annotations in JSON. What it returns are views into the text and the scanner's arena.
type Decoder struct {
	*jsonscan.Scanner
	// NowMs is what times that count back refer to. Exact takes only whole numbers of Unix ms, as exports have them,
	// with their author and the time of their update.
	NowMs int64
	Exact bool

	tags []string
	why  string // what is wrong with the annotation, which is no fault of the JSON
}

const members = "id, start, end, text, tags, selector, moved_from"

// Annotation reads the object at Pos. ok is false after a fault of the JSON. why says what else is wrong with the
// annotation, which is read to its end.
func (d *Decoder) Annotation() (draft annotation.Draft, why string, ok bool) {
	if d.Space() != '{' {
		return draft, "", d.Unexpected("an annotation, which is an object")
	}
	d.Pos++
	d.tags, d.why = d.tags[:0], ""
	started, ended := false, false
	for first := true; ; first = false {
		name, more, ok := d.Member(first)
		if !ok {
			return draft, "", false
		}
		if !more {
			break
		}
		switch name {
		case "id":
			ok = d.text(name, &draft.ID)
		case "text":
			ok = d.text(name, &draft.Text)
		case "selector":
			ok = d.text(name, &draft.Selector)
		case "start":
			started, ok = d.time(name, &draft.StartMs)
		case "end":
			ended, ok = d.time(name, &draft.EndMs)
		case "moved_from":
			draft.Moved, ok = d.time(name, &draft.WasMs)
		case "tags":
			ok = d.readTags()
		case "author":
			ok = d.text(name, &draft.Author)
		case "updated":
			_, ok = d.time(name, &draft.UpdatedMs)
		default:
			d.wrong("there is no member %.40q: an annotation has %s", name, members)
			ok = d.Skip()
		}
		if !ok {
			return draft, "", false
		}
	}
	if draft.Tags = d.tags; !started {
		if draft.StartMs = d.NowMs; d.Exact {
			d.wrong("it has no start")
		}
	}
	if !ended {
		draft.EndMs = draft.StartMs
	}
	if draft.Moved && draft.ID == "" {
		d.wrong("moved_from needs the id of the annotation")
	}
	return draft, d.why, true
}

// wrong keeps the first thing that is wrong with an annotation.
func (d *Decoder) wrong(format string, args ...any) {
	if d.why == "" {
		d.why = fmt.Sprintf(format, args...)
	}
}

// skip reads a value that a member cannot have. null means that the member is not there.
func (d *Decoder) skip(name, want string) bool {
	if kind := d.Kind(); kind != "null" {
		d.wrong("%s must be %s, not %s", name, want, kind)
	}
	return d.Skip()
}

func (d *Decoder) text(name string, to *string) bool {
	if d.Kind() != "a string" {
		return d.skip(name, "a string")
	}
	var ok bool
	*to, ok = d.Str()
	return ok
}

const timeForms = "a time such as 2025-11-21T12:00:00Z, 1763726400 (seconds), 1763726400000 (ms) or -6h"

// time reads a time. there is false if the member has none.
func (d *Decoder) time(name string, toMs *int64) (there, ok bool) {
	var text string
	switch kind := d.Kind(); {
	case kind == "a number":
		n, ok := d.Number()
		if !ok {
			return false, false
		}
		if d.Exact {
			if *toMs, ok = n.Int(); !ok {
				d.wrong("%s must be a whole number of Unix ms", name)
			}
			return true, true
		}
		text = jsonscan.View(n.Text)
	case kind == "a string" && !d.Exact:
		if text, ok = d.Str(); !ok {
			return false, false
		}
	default:
		return false, d.skip(name, "a time")
	}
	const most = 64
	m, ok := metric.ParseMoment(text[:min(len(text), most)])
	if !ok || len(text) > most {
		d.wrong("%s %.40q must be %s", name, text, timeForms)
		return true, true
	}
	*toMs = m.Ms(d.NowMs)
	return true, true
}

func (d *Decoder) readTags() bool {
	if d.Kind() != "an array" {
		return d.skip("tags", "an array of strings")
	}
	d.Pos++
	n := 0
	for first := true; ; first = false {
		more, ok := d.Element(first)
		if !ok {
			return false
		}
		if !more {
			break
		}
		if n++; d.Kind() != "a string" {
			d.wrong("tag %d must be a string, not %s", n-1, d.Kind())
		}
		if n > storage.MaxAnnotationTags || d.Kind() != "a string" {
			if !d.Skip() {
				return false
			}
			continue
		}
		tag, ok := d.Str()
		if !ok {
			return false
		}
		d.tags = append(d.tags, tag)
	}
	if n > storage.MaxAnnotationTags {
		d.wrong("it has %d tags, at most %d are allowed", n, storage.MaxAnnotationTags)
	}
	return true
}

// Clone copies what an annotation has as views, since a store may still use it when its request has ended.
func Clone(a *storage.Annotation) {
	for _, text := range []*string{&a.ID, &a.Text, &a.Selector, &a.Author} {
		*text = strings.Clone(*text)
	}
	tags := make([]string, len(a.Tags))
	for i, tag := range a.Tags {
		tags[i] = strings.Clone(tag)
	}
	a.Tags = tags
}
