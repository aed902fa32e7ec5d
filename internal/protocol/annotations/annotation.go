package annotations

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/quern/quern/internal/storage"
)

// The limits of an annotation. Lengths are in bytes.
const (
	maxID       = 64
	maxText     = 16 << 10
	maxTags     = 64
	maxTag      = 256
	maxSelector = 4 << 10
	maxAuthor   = 256
	// farthestMs bounds times on both sides of 1970.
	farthestMs = 1 << 53
)

const dayMs = int64(24 * time.Hour / time.Millisecond)

// Annotation is a remark about a time. All texts are valid UTF-8, and all but ID may be empty.
type Annotation struct {
	// ID has 1 to maxID bytes. ID and StartMs together identify the annotation.
	ID string
	// StartMs and EndMs are the first and the last millisecond that the annotation is about, in Unix ms. They are
	// equal for a moment.
	StartMs, EndMs int64
	Text           string
	// Tags are sorted and unique, such as "release" or "team=web".
	Tags []string
	// Selector is a PromQL vector selector of the series that the annotation is about.
	Selector  string
	Author    string
	UpdatedMs int64
}

// position returns where the annotation is in the order of annotations. It also identifies it.
func (a *Annotation) position() Position { return Position{a.StartMs, a.ID} }

// overlaps reports whether the annotation is about a time in [fromMs, toMs], both included.
func (a *Annotation) overlaps(fromMs, toMs int64) bool { return a.StartMs <= toMs && a.EndMs >= fromMs }

// fault returns which limit the annotation breaks, nil if none.
func (a *Annotation) fault() error {
	switch {
	case a.ID == "":
		return errors.New("the id is empty")
	case a.StartMs < -farthestMs || a.EndMs > farthestMs:
		return errors.New("the time is too far from 1970")
	case a.EndMs < a.StartMs:
		return errors.New("the end is before the start")
	case len(a.Tags) > maxTags:
		return fmt.Errorf("it has %d tags, at most %d are allowed", len(a.Tags), maxTags)
	}
	for _, t := range []struct {
		what string
		most int
		text []string
	}{
		{"id", maxID, []string{a.ID}},
		{"text", maxText, []string{a.Text}},
		{"selector", maxSelector, []string{a.Selector}},
		{"author", maxAuthor, []string{a.Author}},
		{"tag", maxTag, a.Tags},
	} {
		for _, text := range t.text {
			if len(text) > t.most {
				return fmt.Errorf("the %s has %d bytes, at most %d are allowed", t.what, len(text), t.most)
			}
			if !utf8.ValidString(text) {
				return fmt.Errorf("the %s is not valid UTF-8", t.what)
			}
		}
	}
	return nil
}

// An annotation is an item of the kind of the month of its start, or of longKind if it is longer than a day. monthsKind
// lists the months that have any. So a read of a time looks into the months from the day before it on, and at all that are
// longer than a day.
const (
	longKind   = "annotation.long"
	monthsKind = "annotation.months"
)

// monthOf returns the month of a time, in UTC, so that months order as text: the years begin 300,000 before our era.
func monthOf(ms int64) string {
	t := time.UnixMilli(ms).UTC()
	return fmt.Sprintf("%06d-%02d", t.Year()+300_000, t.Month())
}

func kindOfMonth(month string) string { return "annotation." + month }

// startID returns the ids, or their first part, of annotations that start at a time. They order as the times do.
func startID(ms int64) string { return fmt.Sprintf("%017d ", ms+farthestMs) }

func (p Position) id() string { return startID(p.StartMs) + p.ID }

// near and long return where an annotation at the position is kept, if it is at most a day long, and if it is longer.
func (p Position) near() storage.ItemKey {
	return storage.ItemKey{Kind: kindOfMonth(monthOf(p.StartMs)), ID: p.id()}
}

func (p Position) long() storage.ItemKey { return storage.ItemKey{Kind: longKind, ID: p.id()} }

// content is the value of an item, as JSON: what is not in its id.
type content struct {
	EndMs     int64    `json:"end"`
	Text      string   `json:"text,omitempty"`
	Tags      []string `json:"tags,omitempty"`
	Selector  string   `json:"selector,omitempty"`
	Author    string   `json:"author,omitempty"`
	UpdatedMs int64    `json:"updated"`
}

// item returns where the annotation is kept, and the place where it is if it has another length.
func (a *Annotation) item(ttl time.Duration) (e storage.Item, other storage.ItemKey, err error) {
	e.ItemKey, other = a.position().near(), a.position().long()
	if a.EndMs-a.StartMs > dayMs {
		e.ItemKey, other = other, e.ItemKey
	}
	e.TTL = ttl
	e.Value, err = json.Marshal(content{a.EndMs, a.Text, a.Tags, a.Selector, a.Author, a.UpdatedMs})
	return e, other, err
}

func parse(e storage.Item) (Annotation, error) {
	start, id, _ := strings.Cut(e.ID, " ")
	ms, err := strconv.ParseInt(start, 10, 64)
	var c content
	if err == nil {
		err = json.Unmarshal(e.Value, &c)
	}
	a := Annotation{ID: id, StartMs: ms - farthestMs, EndMs: c.EndMs, Text: c.Text, Tags: c.Tags, Selector: c.Selector, Author: c.Author, UpdatedMs: c.UpdatedMs}
	if err != nil {
		err = fmt.Errorf("annotation %q that starts at %s, which a put or a delete replaces: %w: %w",
			a.ID, time.UnixMilli(a.StartMs).UTC().Format(time.RFC3339), storage.ErrCorrupt, err)
	}
	return a, err
}
