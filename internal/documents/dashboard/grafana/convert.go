// Package grafana converts dashboards of Grafana's classic model to Quern's. Only the commands use it: a server knows
// one form.
package grafana

import (
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
	from := parse(text)
	if _, object := from.v.(map[string]any); !object || from.at("format").v != nil {
		d, err := dashboard.Decode(text) // also says what is wrong with a text that is no JSON object
		return d, nil, err
	}
	switch {
	case from.has("dashboard"):
		from = from.at("dashboard")
	case from.has("apiVersion") && from.has("spec"):
		from = from.at("spec")
	}
	panels, rows := from.at("panels").v != nil, from.at("rows").v != nil
	switch {
	case from.at("elements").v != nil && !panels:
		return nil, nil, errors.New("this is Grafana's dashboard schema v2: export it with the model \"Classic\", which this version reads")
	case !panels && !rows:
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

// first returns the first elements of a list that is too long, and says so.
func (c *converter) first(where, what string, list []value, most int) []value {
	if len(list) <= most {
		return list
	}
	c.note("%s: only the first %d %s are kept", where, most, what)
	return list[:most]
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

func (c *converter) dashboard(from value) *dashboard.Dashboard {
	d := &dashboard.Dashboard{
		Format: dashboard.Format, Title: c.line("the title", from.text("title"), dashboard.MaxTitle),
		Description: c.clip("the description", from.text("description"), dashboard.MaxText),
	}
	if d.Title == "" {
		d.Title = "Untitled"
		c.note("the dashboard has no title")
	}
	for _, t := range c.first("the dashboard", "tags", from.list("tags"), dashboard.MaxTags) {
		if tag := c.line("tag", t.word(), dashboard.MaxName); tag != "" {
			d.Tags = append(d.Tags, tag)
		}
	}
	begin, end := from.text("time.from"), from.text("time.to")
	if back, ok := strings.CutPrefix(begin, "now-"); ok && end == "now" && isSpan(back) {
		d.Range = back
	} else if begin+end != "" {
		c.note("the time range from %s to %s is left out: ranges go from a span ago until now", excerpt.Quoted(begin), excerpt.Quoted(end))
	}
	if refresh := from.text("refresh"); isSpan(refresh) {
		d.Refresh = refresh
	} else if refresh != "" {
		c.note("refresh %s is left out", excerpt.Quoted(refresh))
	}
	for _, v := range c.first("the dashboard", "variables", from.list("templating.list"), dashboard.MaxVariables) {
		if made, ok := c.variable(v); ok {
			d.Variables = append(d.Variables, made)
		}
	}
	if others := from.list("annotations.list"); len(others) > 1 || len(others) == 1 && others[0].whole("builtIn", 0, 1) != 1 {
		c.note("annotations are left out")
	}
	c.sections(from)
	d.Panels = c.panels
	return d
}

// isSpan returns whether a dashboard may have a span.
func isSpan(text string) bool {
	d, err := metric.ParseSpan(text)
	return err == nil && d >= time.Second && len(text) <= dashboard.MaxUnit
}

var (
	// variableName is what Quern allows as the name of a variable.
	variableName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
	// labelValues is the query of a variable: label_values(label), or label_values(selector, label).
	labelValues = regexp.MustCompile(`(?s)^\s*label_values\(\s*(?:(.*),)?\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*\)\s*$`)
)

// variable converts a variable. ok is false if it is left out.
func (c *converter) variable(from value) (v dashboard.Variable, ok bool) {
	name, kind := from.text("name"), from.text("type")
	where := "variable " + excerpt.Quoted(name)
	switch {
	case !variableName.MatchString(name) || len(name) > dashboard.MaxName || strings.HasPrefix(name, "__"):
		c.note("%s: this cannot be a name, left out", where)
		return v, false
	case c.known[name]:
		c.note("%s: there are two of this name, the second is left out", where)
		return v, false
	case kind == "datasource":
		c.note("%s: there is one data source, Quern itself; left out", where)
		return v, false
	case kind == "adhoc":
		c.note("%s: kind adhoc is not supported, left out", where)
		return v, false
	}
	c.known[name] = true
	v = dashboard.Variable{
		Name: name, Label: c.line(where+": the label", from.text("label"), dashboard.MaxTitle),
		Multi: from.flag("multi") || from.flag("includeAll"), Value: c.chosen(where, from.at("current")),
	}
	query := from.at("query").word()
	for _, path := range []string{"query.query", "definition"} {
		if query == "" {
			query = from.text(path)
		}
	}
	v.Kind = dashboard.FreeText
	switch kind {
	case "query":
		c.byQuery(where, query, from, &v)
	case "custom", "interval":
		if from.flag("auto") {
			c.note("%s: the value auto is left out", where)
		}
		v.Values = c.choices(where, query)
		v.Value = slices.DeleteFunc(v.Value, func(s string) bool { return !slices.Contains(v.Values, s) })
		if len(v.Values) > 0 {
			v.Kind = dashboard.ByList
		} else {
			c.note("%s: there are no values to choose from, it became a text", where)
		}
	case "textbox", "constant":
		if len(v.Value) == 0 && query != "" {
			v.Value = []string{c.clip(where+": the value", query, dashboard.MaxTitle)}
		}
	default:
		c.note("%s: kind %s is not supported, it became a text", where, excerpt.Of(kind))
	}
	if v.Kind == dashboard.FreeText {
		v.Multi = false
	}
	if !v.Multi && len(v.Value) > 1 {
		v.Value = v.Value[:1]
	}
	return v, true
}

func (c *converter) byQuery(where, query string, from value, v *dashboard.Variable) {
	if from.has("regex") {
		c.note("%s: its regular expression is left out, all values are offered", where)
	}
	var found []string
	if len(query) <= dashboard.MaxExpr {
		found = labelValues.FindStringSubmatch(query)
	}
	if found == nil {
		c.note("%s: the query %s is not supported, it became a text", where, excerpt.Quoted(query))
		return
	}
	v.Kind, v.Of = dashboard.ByLabel, c.clip(where+": the label", found[2], dashboard.MaxTitle)
	v.Selector = c.expression(where, strings.TrimSpace(found[1]))
}

// chosen returns what is chosen in a variable; nothing stands for all.
func (c *converter) chosen(where string, current value) (out []string) {
	chosen := []value{current.at("value")}
	if _, several := chosen[0].v.([]any); several {
		chosen = c.first(where, "chosen values", current.list("value"), dashboard.MaxValues)
	}
	for _, one := range chosen {
		if value := one.word(); value != "" && value != "$__all" && !strings.HasPrefix(value, "$__auto_interval") {
			out = append(out, c.clip(where+": a value", value, dashboard.MaxTitle))
		}
	}
	return out
}

// choices splits the values of a list, which may have names: "one : 1, two : 2".
func (c *converter) choices(where, text string) (out []string) {
	seen := make(map[string]bool)
	for rest, more := text, true; more; {
		var one string
		one, rest, more = cutUnescaped(rest)
		if _, value, ok := strings.Cut(one, " : "); ok {
			one = value
		}
		if one = c.clip(where+": a value", strings.TrimSpace(one), dashboard.MaxTitle); one == "" || seen[one] {
			continue
		}
		if len(out) == dashboard.MaxValues {
			c.note("%s: only the first %d values are kept", where, dashboard.MaxValues)
			break
		}
		seen[one] = true
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

// provided are the variables that each dashboard has without declaring them.
var provided = map[string]bool{"__range": true, "__interval": true, "__rate_interval": true}

// reference is a variable in an expression of Grafana: $name, ${name}, ${name:format} or [[name]].
var reference = regexp.MustCompile(`\$(\w+)|\$\{(\w+)(?::([^}]*))?\}|\[\[(\w+)(?::([^\]]*))?\]\]`)

// expression writes the variables of an expression as Quern does, and says which there are none of.
func (c *converter) expression(where, expr string) string {
	unknown := ""
	out := reference.ReplaceAllStringFunc(expr, func(text string) string {
		part := reference.FindStringSubmatch(text)
		name, format := part[1]+part[2]+part[4], part[3]+part[5]
		switch format {
		case "", "regex", "pipe":
		default:
			c.note("%s: the form %s of $%s is left out", where, excerpt.Quoted(format), excerpt.Of(name))
		}
		switch {
		case provided[name]:
			return "$" + name
		case c.known[name]:
			if part[1] != "" {
				return text
			}
			return "${" + name + "}"
		case strings.Trim(name, "0123456789") == "":
			return text // a group of a regular expression, as in label_replace
		}
		unknown = name
		return text
	})
	if unknown != "" {
		c.note("%s: there is no variable $%s", where, excerpt.Of(unknown))
	}
	return out
}
