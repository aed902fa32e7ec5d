// Package grafana converts dashboards of Grafana's classic model to Quern's. Only the commands use it: a server knows
// one form.
package grafana

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// MaxBytes bounds what Convert reads.
const MaxBytes = 4 << 20

// Convert makes a dashboard of Grafana's JSON, as exported for sharing or as its API returns it. A dashboard of Quern
// is returned as it is. notes say what of Grafana's has no counterpart, in the order of the text.
func Convert(text []byte) (d *dashboard.Dashboard, notes []string, err error) {
	if len(text) > MaxBytes {
		return nil, nil, fmt.Errorf("the text has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	var outer struct {
		Dashboard  json.RawMessage `json:"dashboard"`
		APIVersion json.RawMessage `json:"apiVersion"`
		Spec       json.RawMessage `json:"spec"`
		Format     json.RawMessage `json:"format"`
	}
	if err := json.Unmarshal(text, &outer); err != nil || outer.Format != nil {
		d, err := dashboard.Decode(text) // also says what is wrong with a text that is no JSON object
		return d, nil, err
	}
	inner := text
	switch {
	case bytes.HasPrefix(outer.Dashboard, []byte("{")):
		inner = outer.Dashboard
	case outer.APIVersion != nil && bytes.HasPrefix(outer.Spec, []byte("{")):
		inner = outer.Spec
	}
	var seen struct {
		Elements json.RawMessage `json:"elements"`
		Panels   json.RawMessage `json:"panels"`
		Rows     json.RawMessage `json:"rows"`
	}
	if err := json.Unmarshal(inner, &seen); err != nil {
		return nil, nil, err
	}
	switch {
	case seen.Elements != nil && seen.Panels == nil:
		return nil, nil, errors.New("this is Grafana's dashboard schema v2: export it with the model \"Classic\", which this version reads")
	case seen.Panels == nil && seen.Rows == nil:
		return nil, nil, fmt.Errorf("this is no dashboard: one of Quern has \"format\": %d, and one of Grafana has \"panels\"", dashboard.Format)
	}
	c := converter{known: map[string]bool{}}
	made, err := c.dashboard(inner).Encode()
	if err != nil {
		return nil, nil, err
	}
	d, err = dashboard.Decode(made) // it keeps all limits
	return d, c.notes, err
}

// list returns the first elements of a list, undecoded, and whether there are others. What is no list is empty.
func list(text raw, most int) (all []raw, more bool) {
	all = elements(text)
	return all[:min(most, len(all))], len(all) > most
}

// loose is a value that stays zero if the text has another type: the files were written by many versions of Grafana
// and of its plugins.
type loose[T any] struct{ V T }

// UnmarshalJSON implements json.Unmarshaler.
func (l *loose[T]) UnmarshalJSON(text []byte) error {
	var v T
	if json.Unmarshal(text, &v) == nil {
		l.V = v
	}
	return nil
}

type (
	words = loose[string]
	flag  = loose[bool]
	raw   = json.RawMessage
)

// theirs is a dashboard of Grafana, as far as it is read.
type theirs struct {
	Title       words `json:"title"`
	Description words `json:"description"`
	Tags        raw   `json:"tags"`
	Time        loose[struct {
		From words `json:"from"`
		To   words `json:"to"`
	}] `json:"time"`
	Refresh    words `json:"refresh"`
	Templating loose[struct {
		List raw `json:"list"`
	}] `json:"templating"`
	Annotations loose[struct {
		List raw `json:"list"`
	}] `json:"annotations"`
	Panels raw `json:"panels"`
	Rows   raw `json:"rows"`
}

// converter makes one dashboard.
type converter struct {
	notes  []string
	known  map[string]bool // variables
	panels []dashboard.Panel
	full   bool
}

func (c *converter) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, args...))
}

// clip returns the beginning of a text that is too long, and says so.
func (c *converter) clip(where, text string, most int) string {
	if len(text) <= most {
		return text
	}
	c.note("%s: it has %d bytes, cut off after %d", where, len(text), most)
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most]
}

// line is clip for what must be one line.
func (c *converter) line(where, text string, most int) string {
	text = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text))
	return c.clip(where, text, most)
}

func (c *converter) dashboard(text []byte) *dashboard.Dashboard {
	var from theirs
	_ = json.Unmarshal(text, &from) // it is an object, and its fields fail by themselves
	d := &dashboard.Dashboard{
		Format: dashboard.Format, Title: c.line("the title", from.Title.V, dashboard.MaxTitle),
		Description: c.clip("the description", from.Description.V, dashboard.MaxText),
	}
	if d.Title == "" {
		d.Title = "Untitled"
		c.note("the dashboard has no title")
	}
	tags, more := list(from.Tags, dashboard.MaxTags)
	for _, t := range tags {
		if tag := c.line("tag", asText(t), dashboard.MaxName); tag != "" {
			d.Tags = append(d.Tags, tag)
		}
	}
	if more {
		c.note("tags: only the first %d are kept", dashboard.MaxTags)
	}
	d.Range = c.timeRange(from.Time.V.From.V, from.Time.V.To.V)
	if refresh := from.Refresh.V; refresh != "" {
		if span, ok := spanOf(refresh); ok {
			d.Refresh = span
		} else {
			c.note("refresh %s is left out", excerpt.Quoted(refresh))
		}
	}
	d.Variables = c.variables(from.Templating.V.List)
	if others, _ := list(from.Annotations.V.List, 2); len(others) > 0 {
		var first struct {
			BuiltIn loose[int] `json:"builtIn"`
		}
		_ = json.Unmarshal(others[0], &first)
		if len(others) > 1 || first.BuiltIn.V != 1 {
			c.note("annotations are left out")
		}
	}
	c.sections(from.Panels, from.Rows)
	d.Panels = c.panels
	return d
}

// timeRange returns the span of a range up to now.
func (c *converter) timeRange(from, to string) string {
	if from == "" && to == "" {
		return ""
	}
	if back, ok := strings.CutPrefix(from, "now-"); ok && to == "now" {
		if span, ok := spanOf(back); ok {
			return span
		}
	}
	c.note("the time range from %s to %s is left out: ranges go from a span ago until now", excerpt.Quoted(from), excerpt.Quoted(to))
	return ""
}

// spanOf returns a span that validate accepts.
func spanOf(text string) (string, bool) {
	d, err := metric.ParseSpan(text)
	if err != nil || d < time.Second || len(text) > dashboard.MaxUnit {
		return "", false
	}
	return text, true
}

// asText returns a string or a number as text, and nothing of another type.
func asText(text json.RawMessage) string {
	var s string
	if json.Unmarshal(text, &s) == nil {
		return s
	}
	var n json.Number
	if json.Unmarshal(text, &n) == nil {
		return n.String()
	}
	return ""
}

// variableName is what Quern allows as the name of a variable.
var variableName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// variable is a variable of Grafana.
type variable struct {
	Name    words `json:"name"`
	Label   words `json:"label"`
	Kind    words `json:"type"`
	Query   raw   `json:"query"` // a text, or an object with one
	Defined words `json:"definition"`
	Regex   words `json:"regex"`
	Multi   flag  `json:"multi"`
	All     flag  `json:"includeAll"`
	Auto    flag  `json:"auto"`
	Current loose[struct {
		Value raw `json:"value"`
	}] `json:"current"`
}

func (c *converter) variables(text raw) []dashboard.Variable {
	all, more := list(text, dashboard.MaxVariables)
	if more {
		c.note("variables: only the first %d are kept", dashboard.MaxVariables)
	}
	var out []dashboard.Variable
	for _, one := range all {
		var from variable
		_ = json.Unmarshal(one, &from)
		name := from.Name.V
		where := "variable " + excerpt.Quoted(name)
		switch {
		case !variableName.MatchString(name) || len(name) > dashboard.MaxName || strings.HasPrefix(name, "__"):
			c.note("%s: this cannot be a name, left out", where)
			continue
		case c.known[name]:
			c.note("%s: there are two of this name, the second is left out", where)
			continue
		case from.Kind.V == "datasource":
			c.note("%s: there is one data source, Quern itself; left out", where)
			continue
		case from.Kind.V == "adhoc":
			c.note("%s: kind adhoc is not supported, left out", where)
			continue
		}
		c.known[name] = true
		out = append(out, c.variable(where, &from))
	}
	return out
}

func (c *converter) variable(where string, from *variable) dashboard.Variable {
	v := dashboard.Variable{Name: from.Name.V, Label: c.line(where+": the label", from.Label.V, dashboard.MaxTitle), Multi: from.Multi.V || from.All.V}
	v.Value = c.chosen(where, from.Current.V.Value)
	query := asText(from.Query)
	if query == "" {
		var within struct {
			Query words `json:"query"`
		}
		_ = json.Unmarshal(from.Query, &within)
		if query = within.Query.V; query == "" {
			query = from.Defined.V
		}
	}
	switch from.Kind.V {
	case "query":
		c.byQuery(where, query, from, &v)
	case "custom", "interval":
		v.Kind = dashboard.ByList
		if from.Auto.V {
			c.note("%s: the value auto is left out", where)
		}
		v.Values = c.choices(where, query)
		v.Value = slices.DeleteFunc(v.Value, func(s string) bool { return !slices.Contains(v.Values, s) })
		if len(v.Values) == 0 {
			c.note("%s: there are no values to choose from, it became a text", where)
			v.Kind = dashboard.FreeText
		}
	case "textbox", "constant":
		v.Kind = dashboard.FreeText
		if len(v.Value) == 0 && query != "" {
			v.Value = []string{c.clip(where+": the value", query, dashboard.MaxTitle)}
		}
	default:
		v.Kind = dashboard.FreeText
		c.note("%s: kind %s is not supported, it became a text", where, excerpt.Of(from.Kind.V))
	}
	if v.Kind == dashboard.FreeText {
		v.Multi = false
	}
	if !v.Multi && len(v.Value) > 1 {
		v.Value = v.Value[:1]
	}
	return v
}

// labelValues is the query of a variable: label_values(label), or label_values(selector, label).
var labelValues = regexp.MustCompile(`(?s)^\s*label_values\(\s*(?:(.*),)?\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*\)\s*$`)

func (c *converter) byQuery(where, query string, from *variable, v *dashboard.Variable) {
	if from.Regex.V != "" {
		c.note("%s: its regular expression is left out, all values are offered", where)
	}
	var found []string
	if len(query) <= dashboard.MaxExpr {
		found = labelValues.FindStringSubmatch(query)
	}
	if found == nil {
		v.Kind = dashboard.FreeText
		c.note("%s: the query %s is not supported, it became a text", where, excerpt.Quoted(query))
		return
	}
	v.Kind, v.Of = dashboard.ByLabel, c.clip(where+": the label", found[2], dashboard.MaxTitle)
	v.Selector = c.expression(where, strings.TrimSpace(found[1]))
}

// chosen returns what is chosen in a variable; nothing stands for all.
func (c *converter) chosen(where string, text raw) []string {
	chosen := []raw{text}
	if bytes.HasPrefix(text, []byte("[")) {
		var more bool
		if chosen, more = list(text, dashboard.MaxValues); more {
			c.note("%s: only the first %d chosen values are kept", where, dashboard.MaxValues)
		}
	}
	var out []string
	for _, one := range chosen {
		if value := asText(one); value != "" && value != "$__all" && !strings.HasPrefix(value, "$__auto_interval") {
			out = append(out, c.clip(where+": a value", value, dashboard.MaxTitle))
		}
	}
	return out
}

// choices splits the values of a list, which may have names: "one : 1, two : 2".
func (c *converter) choices(where, text string) []string {
	var out []string
	there := make(map[string]bool)
	for rest, more := text, true; more; {
		var one string
		one, rest, more = cutUnescaped(rest)
		if _, value, ok := strings.Cut(one, " : "); ok {
			one = value
		}
		if one = c.clip(where+": a value", strings.TrimSpace(one), dashboard.MaxTitle); one == "" || there[one] {
			continue
		}
		if len(out) == dashboard.MaxValues {
			c.note("%s: only the first %d values are kept", where, dashboard.MaxValues)
			break
		}
		there[one] = true
		out = append(out, one)
	}
	return out
}

// cutUnescaped cuts a text at its first comma that has no \ before it.
func cutUnescaped(text string) (before, after string, found bool) {
	for i := 0; i < len(text); i++ {
		switch {
		case text[i] == '\\' && i+1 < len(text):
			i++
		case text[i] == ',':
			return strings.ReplaceAll(text[:i], `\,`, ","), text[i+1:], true
		}
	}
	return strings.ReplaceAll(text, `\,`, ","), "", false
}
