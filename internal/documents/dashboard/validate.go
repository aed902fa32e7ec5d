package dashboard

import (
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire/excerpt"
)

// maxProblems is how many problems an error names.
const maxProblems = 10

// problems are what is wrong with a dashboard.
type problems struct {
	problems []string
	more     int
}

func (p *problems) add(where, format string, args ...any) {
	if len(p.problems) == maxProblems {
		p.more++
		return
	}
	text := fmt.Sprintf(format, excerpt.Args(args)...)
	if where != "" {
		text = where + ": " + text
	}
	p.problems = append(p.problems, text)
}

func (p *problems) err() error {
	if len(p.problems) == 0 {
		return nil
	}
	text := strings.Join(p.problems, "; ")
	if p.more > 0 {
		text = fmt.Sprintf("%s; and %d more problems", text, p.more)
	}
	return &InvalidError{Message: text}
}

// size complains about a text that is too long.
func (p *problems) size(where, what, text string, most int) {
	if len(text) > most {
		p.add(where, "%s has %d bytes, at most %d are allowed", what, len(text), most)
	}
}

// many complains about a list that is too long.
func (p *problems) many(where, what string, n, most int) {
	if n > most {
		p.add(where, "%s: there are more than %d, the limit", what, most)
	}
}

// line complains about a text that is too long, or has more than one line.
func (p *problems) line(where, what, text string, most int) {
	p.size(where, what, text, most)
	if strings.ContainsFunc(text, unicode.IsControl) {
		p.add(where, "%s must be one line of text, without control characters", what)
	}
}

func (p *problems) span(what, text string, least time.Duration) {
	if text == "" {
		return
	}
	if span, err := metric.ParseSpan(text); err != nil || span < least || len(text) > MaxUnit {
		p.add("", "%s must be a span of %s or more, such as 30s or 6h, and not %q", what, metric.FormatSpan(least), text)
	}
}

// variableName is what can follow $ in an expression.
var variableName = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)

// validate returns an *InvalidError that names what is wrong.
func (d *Dashboard) validate() error {
	var p problems
	if strings.TrimSpace(d.Title) == "" {
		p.add("", "the title is empty")
	}
	p.line("", "the title", d.Title, MaxTitle)
	p.size("", "the description", d.Description, MaxText)
	p.many("", "tags", len(d.Tags), MaxTags)
	for i, tag := range d.Tags {
		p.line(fmt.Sprintf("tag %d", i+1), "it", tag, MaxName)
	}
	p.span("range", d.Range, time.Second)
	p.span("refresh", d.Refresh, time.Second)
	names := make(map[string]bool)
	for i := range d.Variables {
		v := &d.Variables[i]
		where := place("variable", i, v.Name)
		v.validate(&p, where)
		if names[v.Name] {
			p.add(where, "there is another variable of this name")
		}
		names[v.Name] = true
	}
	ids := make(map[int]string)
	for i := range d.Panels {
		panel := &d.Panels[i]
		where := place("panel", i, panel.Title)
		panel.validate(&p, where)
		if other, taken := ids[panel.ID]; taken {
			p.add(where, "its id %d is that of %s, too", panel.ID, other)
		} else {
			ids[panel.ID] = where
		}
	}
	return p.err()
}

func (v *Variable) validate(p *problems, where string) {
	if !variableName.MatchString(v.Name) || len(v.Name) > MaxName || strings.HasPrefix(v.Name, "__") {
		p.add(where, "a name has 1 to %d letters, digits and _, and begins with a letter or one _", MaxName)
	}
	p.line(where, "the label", v.Label, MaxTitle)
	p.line(where, "the name of the label", v.Of, MaxTitle)
	p.size(where, "the selector", v.Selector, MaxExpr)
	switch v.Kind {
	case ByLabel:
		if v.Of == "" {
			p.add(where, "the field \"of\" must name the label whose values are offered")
		}
	case ByList:
		if len(v.Values) == 0 {
			p.add(where, "there are no values to choose from")
		}
	case FreeText:
	default:
		p.add(where, "its kind is %q, and must be label, list or text", v.Kind)
	}
	if !v.Multi && len(v.Value) > 1 {
		p.add(where, "it has %d chosen values, and without \"multi\" at most one is allowed", len(v.Value))
	}
	for _, list := range [][]string{v.Values, v.Value} {
		p.many(where, "values", len(list), MaxValues)
		for _, value := range list {
			p.size(where, "a value", value, MaxTitle)
		}
	}
}

func (panel *Panel) validate(p *problems, where string) {
	if panel.ID < 1 || panel.ID > MaxPanelID {
		p.add(where, "its id is %d, and must be from 1 to %d", panel.ID, MaxPanelID)
	}
	p.line(where, "the title", panel.Title, MaxTitle)
	p.size(where, "the description", panel.Description, MaxText)
	p.size(where, "the text", panel.Text, MaxText)
	p.line(where, "the unit", panel.Unit, MaxUnit)
	switch panel.Kind {
	case TimeSeries, Stat, Gauge, Heatmap, Table, Text:
	default:
		p.add(where, "its kind is %q, and must be timeseries, stat, gauge, heatmap, table or text", panel.Kind)
	}
	panel.At.validate(p, where)
	p.many(where, "queries", len(panel.Queries), MaxQueries)
	p.many(where, "thresholds", len(panel.Thresholds), MaxThresholds)
	for i, q := range panel.Queries {
		p.size(where, fmt.Sprintf("the expression of query %d", i+1), q.Expr, MaxExpr)
		p.line(where, fmt.Sprintf("the legend of query %d", i+1), q.Legend, MaxTitle)
	}
	if n := panel.Decimals; n != nil && (*n < 0 || *n > MaxDecimals) {
		p.add(where, "decimals is %d, and must be from 0 to %d", *n, MaxDecimals)
	}
	if panel.Min != nil && panel.Max != nil && *panel.Min >= *panel.Max {
		p.add(where, "min is %v, and must be below max, which is %v", *panel.Min, *panel.Max)
	}
	for i, t := range panel.Thresholds {
		if t.Level != OK && t.Level != Warn && t.Level != Bad {
			p.add(where, "threshold %d has the level %q, and must have ok, warn or bad", i+1, t.Level)
		}
		if i > 0 && t.From <= panel.Thresholds[i-1].From {
			p.add(where, "threshold %d is from %v, and must be above the one before it", i+1, t.From)
		}
	}
}

func (r Rectangle) validate(p *problems, where string) {
	switch {
	case r.W < 1 || r.W > Columns || r.H < 1 || r.H > MaxHeight:
		p.add(where, "it is %d columns wide and %d rows high, and must be 1 to %d wide and 1 to %d high", r.W, r.H, Columns, MaxHeight)
	case r.X < 0 || r.X > Columns-r.W:
		p.add(where, "with x %d and w %d it does not lie within the %d columns", r.X, r.W, Columns)
	case r.Y < 0 || r.Y > MaxRow:
		p.add(where, "y is %d, and must be from 0 to %d", r.Y, MaxRow)
	}
}
