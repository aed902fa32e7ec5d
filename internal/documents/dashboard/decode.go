package dashboard

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	if err := wellFormed(text); err != nil {
		return nil, err
	}
	// A later format may have other fields, so that comes first.
	var made struct {
		Format json.RawMessage `json:"format"`
	}
	if err := json.Unmarshal(text, &made); err != nil {
		return nil, invalid("%s", plainly(err))
	}
	switch format := string(made.Format); {
	case format == "":
		return nil, invalid("there is no field \"format\": a dashboard of Quern begins with \"format\": %d; `quern dashboard convert FILE` makes one of a dashboard of Grafana", Format)
	case format != "1":
		return nil, invalid("format %s: made by a newer Quern; this one reads format %d", format, Format)
	}
	d, err := decode(text)
	if err != nil {
		return nil, err
	}
	if err := d.validate(); err != nil {
		return nil, err
	}
	d.fill()
	return d, nil
}

// wellFormed returns an error if a text is not one JSON object.
func wellFormed(text []byte) error {
	if !utf8.Valid(text) {
		return invalid("the dashboard is not valid UTF-8")
	}
	var nothing struct{}
	if err := json.Unmarshal(text, &nothing); err != nil {
		if syntax := (*json.SyntaxError)(nil); errors.As(err, &syntax) {
			// The offset is that of the byte after the fault.
			before := text[:max(0, min(int(syntax.Offset)-1, len(text)))]
			line := 1 + bytes.Count(before, []byte("\n"))
			column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
			return invalid("line %d, column %d: %s", line, column, syntax.Error())
		}
	}
	if !bytes.HasPrefix(bytes.TrimLeft(text, " \t\r\n"), []byte("{")) {
		return invalid("a dashboard is a JSON object: it must begin with {")
	}
	return nil
}

// fields are those of a dashboard, with lists that are not decoded yet.
type fields struct {
	plainDashboard
	Tags      json.RawMessage `json:"tags"`
	Variables json.RawMessage `json:"variables"`
	Panels    json.RawMessage `json:"panels"`
}

type plainDashboard Dashboard

func decode(text []byte) (*Dashboard, error) {
	var f fields
	if err := strict(text, &f); err != nil {
		return nil, invalid("%s", plainly(err))
	}
	d := Dashboard(f.plainDashboard)
	var err error
	if d.Tags, err = list(f.Tags, MaxTags, "tags", strict[string]); err != nil {
		return nil, err
	}
	if d.Variables, err = list(f.Variables, MaxVariables, "variables", decodeVariable); err != nil {
		return nil, err
	}
	d.Panels, err = list(f.Panels, MaxPanels, "panels", decodePanel)
	return &d, err
}

func decodeVariable(text []byte, v *Variable) error {
	type plain Variable
	var f struct {
		plain
		Values json.RawMessage `json:"values"`
		Value  json.RawMessage `json:"value"`
	}
	err := strict(text, &f)
	*v = Variable(f.plain)
	if err == nil {
		v.Values, err = list(f.Values, MaxValues, "values", strict[string])
	}
	if err == nil {
		v.Value, err = list(f.Value, MaxValues, "value", strict[string])
	}
	return named(err, v.Name)
}

func decodePanel(text []byte, p *Panel) error {
	type plain Panel
	var f struct {
		plain
		Queries    json.RawMessage `json:"queries"`
		Thresholds json.RawMessage `json:"thresholds"`
	}
	err := strict(text, &f)
	*p = Panel(f.plain)
	if err == nil {
		p.Queries, err = list(f.Queries, MaxQueries, "queries", strict[Query])
	}
	if err == nil {
		p.Thresholds, err = list(f.Thresholds, MaxThresholds, "thresholds", strict[Threshold])
	}
	return named(err, p.Title)
}

// namedError is an error within something that has a name.
type namedError struct {
	name string
	err  error
}

func (e *namedError) Error() string { return e.err.Error() }

func (e *namedError) Unwrap() error { return e.err }

func named(err error, name string) error {
	if err == nil {
		return nil
	}
	return &namedError{name, err}
}

// strict decodes a text, and refuses fields that are not known.
func strict[T any](text []byte, to *T) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	return dec.Decode(to)
}

// list decodes a list of at most so many elements. Its error names the element.
func list[T any](text json.RawMessage, most int, what string, one func([]byte, *T) error) ([]T, error) {
	raw, more, err := elements(text, most)
	switch {
	case err != nil:
		return nil, invalid("%s: %s", what, plainly(err))
	case more:
		return nil, invalid("%s: there are more than %d, the limit", what, most)
	}
	out := make([]T, len(raw))
	for i, r := range raw {
		if err := one(r, &out[i]); err != nil {
			where := fmt.Sprintf("%s %d", singular(what), i+1)
			if n := (*namedError)(nil); errors.As(err, &n) && n.name != "" {
				where += " " + excerpt.Quoted(n.name)
			}
			return nil, &InvalidError{Message: where + ": " + excerpt.Message(plainly(err))}
		}
	}
	return out, nil
}

func singular(what string) string {
	if begin, ok := strings.CutSuffix(what, "ies"); ok {
		return begin + "y"
	}
	return strings.TrimSuffix(what, "s")
}

// elements returns the first elements of a list, undecoded. more says that there are others. Nothing and null are an
// empty list.
func elements(text json.RawMessage, most int) (all []json.RawMessage, more bool, err error) {
	if len(text) == 0 || string(text) == "null" {
		return nil, false, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if begin, err := dec.Token(); err != nil || begin != json.Delim('[') {
		return nil, false, errors.New("this must be a list")
	}
	for dec.More() {
		if len(all) == most {
			return all, true, nil
		}
		var one json.RawMessage
		if err := dec.Decode(&one); err != nil {
			return nil, false, err
		}
		all = append(all, one)
	}
	return all, false, nil
}

// plainly says what encoding/json found, without the names of Go.
func plainly(err error) string {
	var kind *json.UnmarshalTypeError
	switch {
	case errors.As(err, &kind) && kind.Field == "":
		return "this cannot be a " + excerpt.Of(kind.Value)
	case errors.As(err, &kind):
		// The names of embedded types are no fields of the text.
		at := strings.TrimPrefix(strings.TrimPrefix(kind.Field, "plain."), "plainDashboard.")
		return fmt.Sprintf("the field %q cannot be a %s", at, excerpt.Of(kind.Value))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the text ends in the middle"
	}
	return excerpt.Message(strings.TrimPrefix(err.Error(), "json: "))
}
