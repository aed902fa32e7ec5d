// Package grafana converts dashboards of Grafana's classic model to Quern's. Only the commands use it: a server knows
// one form.
package grafana

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// MaxBytes bounds what Convert reads.
const MaxBytes = 4 << 20

// Convert makes a dashboard of Grafana's JSON, as exported for sharing or as its API returns it. A dashboard of Quern
// is returned as it is. notes say what of Grafana's has no counterpart, in the order of the text. What exceeds a limit
// of Quern is an error.
func Convert(text []byte) (d *dashboard.Dashboard, notes []string, err error) {
	if len(text) > MaxBytes {
		return nil, nil, fmt.Errorf("the text has %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	var in original
	if err := json.Unmarshal(text, &in); err != nil && !isOfField(err) || in.Format != nil {
		d, err := dashboard.Decode(text) // also says what is wrong with a text that is no JSON object
		return d, nil, err
	}
	from := cmp.Or(in.Dashboard, in.Spec, &in)
	switch {
	case from.Panels != nil:
	case from.Elements != nil:
		return nil, nil, errors.New("this is Grafana's dashboard schema v2: export it with the model \"Classic\", which this version reads")
	case from.Rows != nil:
		return nil, nil, errors.New("this is of a Grafana before version 5: import it into a newer one, and export it from there")
	default:
		return nil, nil, fmt.Errorf("this is no dashboard: one of Quern has \"format\": %d, and one of Grafana has \"panels\"", dashboard.Format)
	}
	c := converter{known: map[string]bool{}}
	made, err := c.dashboard(from).Encode()
	if err != nil {
		return nil, nil, err
	}
	d, err = dashboard.Decode(made) // it keeps all limits
	return d, c.notes, err
}

// isOfField returns whether err is about one field, which has been left out. The files were written by many versions of
// Grafana and of its plugins, which have fields of several types.
func isOfField(err error) bool {
	kind := (*json.UnmarshalTypeError)(nil)
	return errors.As(err, &kind) && kind.Field != ""
}

// original is a dashboard of Grafana, as far as it is looked at.
type original struct {
	Format             json.RawMessage // only in one of Quern
	Dashboard, Spec    *original       // in the answers of Grafana's API
	Elements, Rows     json.RawMessage // in schemas that are not read
	Title, Description string
	Refresh            string
	Tags               []string
	Time               struct{ From, To string }
	Templating         struct{ List []variable }
	Annotations        struct{ List []struct{ BuiltIn any } }
	Panels             []panel
}

// converter makes one dashboard.
type converter struct {
	notes  []string
	known  map[string]bool // variables
	panels []dashboard.Panel
}

func (c *converter) note(format string, args ...any) {
	c.notes = append(c.notes, fmt.Sprintf(format, excerpt.Args(args)...))
}

func (c *converter) dashboard(from *original) *dashboard.Dashboard {
	d := &dashboard.Dashboard{Format: dashboard.Format, Title: from.Title, Description: from.Description, Tags: from.Tags}
	begin, end := from.Time.From, from.Time.To
	if back, ok := strings.CutPrefix(begin, "now-"); ok && end == "now" && isSpan(back) {
		d.Range = back
	} else if begin+end != "" {
		c.note("the time range from %q to %q is left out: ranges go from a span ago until now", begin, end)
	}
	if isSpan(from.Refresh) {
		d.Refresh = from.Refresh
	} else if from.Refresh != "" {
		c.note("refresh %q is left out", from.Refresh)
	}
	for i := range from.Templating.List {
		if v, ok := c.variable(&from.Templating.List[i]); ok {
			d.Variables = append(d.Variables, v)
		}
	}
	for _, a := range from.Annotations.List {
		if a.BuiltIn == nil {
			c.note("annotations are left out")
			break
		}
	}
	c.layOut(from.Panels)
	d.Panels = c.panels
	return d
}

// isSpan returns whether a dashboard may have a span.
func isSpan(text string) bool {
	d, err := metric.ParseSpan(text)
	return err == nil && d >= time.Second
}

// variable is one of Grafana. Query is a text, or an object with a text; Value is a text or a list.
type variable struct {
	Name, Type, Label, Regex, Definition string
	Query                                any
	Multi, IncludeAll, Auto              bool
	Current                              struct{ Value any }
}

// labelValues is the query of a variable: label_values(label), or label_values(selector, label).
var labelValues = regexp.MustCompile(`(?s)^\s*label_values\(\s*(?:(.*),)?\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*\)\s*$`)

// variable converts a variable. ok is false if it is left out.
func (c *converter) variable(from *variable) (v dashboard.Variable, ok bool) {
	where := "variable " + excerpt.Quoted(from.Name)
	switch {
	case from.Type == "datasource":
		c.note("%s: there is one data source, Quern itself; left out", where)
		return v, false
	case from.Type == "adhoc":
		c.note("%s: kind adhoc is not supported, left out", where)
		return v, false
	}
	c.known[from.Name] = true
	query, _ := from.Query.(string)
	if object, ok := from.Query.(map[string]any); ok {
		query, _ = object["query"].(string)
	}
	query = cmp.Or(query, from.Definition)
	v = dashboard.Variable{Name: from.Name, Label: from.Label, Kind: dashboard.FreeText, Value: chosen(from.Current.Value)}
	switch from.Type {
	case "query":
		if from.Regex != "" {
			c.note("%s: its regular expression is left out, all values are offered", where)
		}
		if found := labelValues.FindStringSubmatch(query); found != nil {
			v.Kind, v.Of, v.Selector = dashboard.ByLabel, found[2], c.expression(where, strings.TrimSpace(found[1]))
		} else {
			c.note("%s: the query %q is not supported, it became a text", where, query)
		}
	case "custom", "interval":
		if from.Auto {
			c.note("%s: the value auto is left out", where)
		}
		v.Kind, v.Values = dashboard.ByList, choices(query)
		v.Value = slices.DeleteFunc(v.Value, func(s string) bool { return !slices.Contains(v.Values, s) })
	case "textbox", "constant":
		if len(v.Value) == 0 && query != "" {
			v.Value = []string{query}
		}
	default:
		c.note("%s: kind %s is not supported, it became a text", where, from.Type)
	}
	if v.Multi = v.Kind != dashboard.FreeText && (from.Multi || from.IncludeAll); !v.Multi {
		v.Value = v.Value[:min(len(v.Value), 1)]
	}
	return v, true
}

// chosen returns what is chosen in a variable; nothing stands for all.
func chosen(current any) (out []string) {
	switch v := current.(type) {
	case string:
		if v != "" && v != "$__all" && !strings.HasPrefix(v, "$__auto_interval") {
			out = append(out, v)
		}
	case []any:
		for _, one := range v {
			out = append(out, chosen(one)...)
		}
	}
	return out
}

// choices splits the values of a list, which may have names: "one : 1, two : 2". A comma in a value has a \ before it.
func choices(text string) (out []string) {
	const comma = "\x00"
	for one := range strings.SplitSeq(strings.ReplaceAll(text, `\,`, comma), ",") {
		if _, value, ok := strings.Cut(one, " : "); ok {
			one = value
		}
		if one = strings.TrimSpace(strings.ReplaceAll(one, comma, ",")); one != "" && !slices.Contains(out, one) {
			out = append(out, one)
		}
	}
	return out
}

// provided are the variables that each dashboard has without declaring them.
var provided = map[string]bool{"__range": true, "__interval": true, "__rate_interval": true}

// reference is a variable in an expression of Grafana: $name, ${name}, ${name:format} or [[name]].
var reference = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::([^}]*))?\}|\[\[(\w+)(?::([^\]]*))?\]\]`)

// expression writes the variables of an expression as Quern does, and says which there are none of.
func (c *converter) expression(where, expr string) string {
	return reference.ReplaceAllStringFunc(expr, func(text string) string {
		part := reference.FindStringSubmatch(text)
		name, format := part[1]+part[2]+part[4], part[3]+part[5]
		if format != "" && format != "regex" && format != "pipe" {
			c.note("%s: the form %q of $%s is left out", where, format, name)
		}
		switch {
		case provided[name], c.known[name] && part[1] != "":
			return "$" + name
		case c.known[name]:
			return "${" + name + "}"
		case strings.Trim(name, "0123456789") != "": // otherwise a group of a regular expression, as in label_replace
			c.note("%s: there is no variable $%s", where, name)
		}
		return text
	})
}
