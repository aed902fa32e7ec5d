package annotations

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/quern/quern/internal/metric"
)

const (
	members   = "id, start, end, text, tags, selector, moved_from"
	timeForms = "a time such as 2025-11-21T12:00:00Z, 1763726400 (seconds), 1763726400000 (ms) or -6h"
)

// sent is an annotation in JSON, with times in one of two forms.
type sent[T any] struct {
	ID        string `json:"id"`
	Start     *T     `json:"start"`
	End       *T     `json:"end"`
	Text      string `json:"text"`
	Tags      tags   `json:"tags"`
	Selector  string `json:"selector"`
	MovedFrom *T     `json:"moved_from"`
	Author    string `json:"author"`
	Updated   *T     `json:"updated"`
}

// decode reads an annotation that a client sends. why says what is wrong with it.
func decode(text []byte, nowMs int64) (draft Draft, why string) {
	return read(text, func(m moment) int64 { return m.Ms(nowMs) }, nowMs)
}

// DecodeLine reads an annotation of an export: all times are whole numbers of Unix ms. why says what is wrong with it.
func DecodeLine(text []byte) (draft Draft, why string) {
	const none = -1 << 63
	draft, why = read(text, func(ms int64) int64 { return ms }, none)
	if why == "" && draft.StartMs == none {
		why = "it has no start"
	}
	return draft, why
}

func read[T any](text []byte, ms func(T) int64, absentMs int64) (draft Draft, why string) {
	if !utf8.Valid(text) {
		return draft, "the text is not valid UTF-8"
	}
	var in sent[T]
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	err := dec.Decode(&in)
	at := func(given *T, absentMs int64) int64 {
		if given == nil {
			return absentMs
		}
		return ms(*given)
	}
	draft.ID, draft.Text, draft.Selector, draft.Tags, draft.Author = in.ID, in.Text, in.Selector, in.Tags, in.Author
	draft.StartMs = at(in.Start, absentMs)
	draft.EndMs = at(in.End, draft.StartMs)
	draft.UpdatedMs = at(in.Updated, 0)
	draft.Moved, draft.WasMs = in.MovedFrom != nil, at(in.MovedFrom, 0)
	switch {
	case err != nil:
		return draft, plainly(err)
	case draft.Moved && draft.ID == "":
		return draft, "moved_from needs the id of the annotation"
	}
	return draft, ""
}

// plainly says what encoding/json found, without the names of Go.
func plainly(err error) string {
	if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		return fmt.Sprintf("there is no member %.40s: an annotation has %s", name, members)
	}
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return err.Error()
	}
	want := "a string"
	if kind.Type.Kind() == reflect.Int64 {
		want = "a whole number of Unix ms"
	}
	return fmt.Sprintf("%s must be %s, not a %.40s", kind.Field, want, kind.Value)
}

// moment is a time in any of the forms that a parameter of a query may have.
type moment struct{ metric.Moment }

// UnmarshalJSON implements json.Unmarshaler.
func (m *moment) UnmarshalJSON(text []byte) error {
	const most = 64
	form := strings.Trim(string(text[:min(len(text), most)]), `"`)
	var ok bool
	if m.Moment, ok = metric.ParseMoment(form); !ok || len(text) > most {
		return fmt.Errorf("the time %.40q must be %s", form, timeForms)
	}
	return nil
}

// tags are the tags of an annotation. No more are kept than an annotation may have.
type tags []string

// UnmarshalJSON implements json.Unmarshaler.
func (t *tags) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('[') {
		return errors.New("tags must be an array of strings")
	}
	n := 0
	for ; dec.More(); n++ {
		one, err := dec.Token()
		tag, ok := one.(string)
		switch {
		case err != nil:
			return err
		case !ok:
			return fmt.Errorf("tag %d must be a string", n)
		case n < maxTags:
			*t = append(*t, tag)
		}
	}
	if n > maxTags {
		return fmt.Errorf("it has %d tags, at most %d are allowed", n, maxTags)
	}
	return nil
}
