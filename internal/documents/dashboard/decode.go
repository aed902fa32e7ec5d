package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/quern/quern/internal/wire/excerpt"
)

func invalid(format string, args ...any) error {
	return &InvalidError{Message: fmt.Sprintf(format, excerpt.Args(args)...)}
}

// Decode reads a dashboard in Quern's format, and checks it. The error is an *InvalidError.
func Decode(text []byte) (*Dashboard, error) {
	if len(text) > MaxBytes {
		return nil, invalid("the dashboard has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	if err := readable(text); err != nil {
		return nil, err
	}
	type plain Dashboard
	var f struct {
		plain
		// Each of these is decoded by itself, so that an error names it, and those beyond the limit are not.
		Variables []json.RawMessage `json:"variables"`
		Panels    []json.RawMessage `json:"panels"`
	}
	if err := strict(text, &f); err != nil {
		return nil, invalid("%s", plainly(err))
	}
	d := Dashboard(f.plain)
	var err error
	if d.Variables, err = list(f.Variables, MaxVariables, "variable", func(v Variable) string { return v.Name }); err != nil {
		return nil, err
	}
	if d.Panels, err = list(f.Panels, MaxPanels, "panel", func(p Panel) string { return p.Title }); err != nil {
		return nil, err
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	d.fill()
	return &d, nil
}

// readable returns an error if a text is not one JSON object of this format. A later format may have other fields.
func readable(text []byte) error {
	if !utf8.Valid(text) {
		return invalid("the dashboard is not valid UTF-8")
	}
	var made struct {
		Format json.RawMessage `json:"format"`
	}
	err, syntax := json.Unmarshal(text, &made), (*json.SyntaxError)(nil)
	switch format := string(made.Format); {
	case errors.As(err, &syntax):
		// The offset is that of the byte after the fault.
		before := text[:max(0, min(int(syntax.Offset)-1, len(text)))]
		line := 1 + bytes.Count(before, []byte("\n"))
		column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
		return invalid("line %d, column %d: %s", line, column, syntax.Error())
	case err != nil || !bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")):
		return invalid("a dashboard is a JSON object: it must begin with {")
	case format == "":
		return invalid("there is no field \"format\": a dashboard of Quern begins with \"format\": %d; `quern dashboard convert FILE` makes one of a dashboard of Grafana", Format)
	case format != fmt.Sprint(Format):
		return invalid("format %s: made by a newer Quern; this one reads format %d", format, Format)
	}
	return nil
}

// strict decodes a text, and refuses fields that are not known.
func strict[T any](text []byte, to *T) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(to)
}

// list decodes at most so many elements.
func list[T any](raw []json.RawMessage, most int, what string, name func(T) string) ([]T, error) {
	if len(raw) > most {
		return nil, invalid("%ss: there are more than %d, the limit", what, most)
	}
	out := make([]T, len(raw))
	for i := range raw {
		if err := strict(raw[i], &out[i]); err != nil {
			return nil, invalid("%s: %s", place(what, i, name(out[i])), plainly(err))
		}
	}
	return out, nil
}

// place names an element of a list in messages.
func place(what string, i int, name string) string {
	return fmt.Sprintf("%s %d %s", what, i+1, excerpt.Quoted(name))
}

// plainly says what encoding/json found, without the names of Go.
func plainly(err error) string {
	if kind := (*json.UnmarshalTypeError)(nil); errors.As(err, &kind) {
		// The name of an embedded type is no field of the text.
		return fmt.Sprintf("the field %q takes no %s", strings.TrimPrefix(kind.Field, "plain."), excerpt.Shorten(kind.Value))
	}
	return excerpt.Message(strings.TrimPrefix(err.Error(), "json: "))
}
