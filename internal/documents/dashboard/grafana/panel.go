package grafana

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire/excerpt"
)

// panel is a panel of Grafana, as far as it is read.
type panel struct {
	Kind        words             `json:"type"`
	Title       words             `json:"title"`
	Description words             `json:"description"`
	Targets     raw               `json:"targets"`
	Panels      raw               `json:"panels"` // of a row
	Repeat      words             `json:"repeat"`
	Options     loose[textOption] `json:"options"`
	Fields      loose[struct {
		Defaults  loose[defaults] `json:"defaults"`
		Overrides raw             `json:"overrides"`
	}] `json:"fieldConfig"`
	Transformations raw   `json:"transformations"`
	Library         raw   `json:"libraryPanel"`
	Alert           raw   `json:"alert"`
	TimeFrom        words `json:"timeFrom"`
	TimeShift       words `json:"timeShift"`

	// Of old panels: text, graph, singlestat.
	Content    words `json:"content"`
	Mode       words `json:"mode"`
	Stack      flag  `json:"stack"`
	Format     words `json:"format"`
	Decimals   raw   `json:"decimals"`
	Steps      words `json:"thresholds"` // of singlestat, such as "80,90"
	Axes       raw   `json:"yaxes"`
	GaugeShown loose[struct {
		Show flag `json:"show"`
	}] `json:"gauge"`
}

type textOption struct {
	Content words `json:"content"`
	Mode    words `json:"mode"`
}

type grid struct {
	X loose[float64] `json:"x"`
	Y loose[float64] `json:"y"`
	W loose[float64] `json:"w"`
	H loose[float64] `json:"h"`
}

type defaults struct {
	Unit       words `json:"unit"`
	Min        raw   `json:"min"`
	Max        raw   `json:"max"`
	Decimals   raw   `json:"decimals"`
	Thresholds loose[struct {
		Mode  words `json:"mode"`
		Steps raw   `json:"steps"`
	}] `json:"thresholds"`
	Mappings raw `json:"mappings"`
	Custom   loose[struct {
		Stacking loose[struct {
			Mode words `json:"mode"`
		}] `json:"stacking"`
		ThresholdsStyle loose[struct {
			Mode words `json:"mode"`
		}] `json:"thresholdsStyle"`
	}] `json:"custom"`
}

// kinds are those of Grafana that have a counterpart.
var kinds = map[string]string{
	"timeseries": dashboard.TimeSeries, "graph": dashboard.TimeSeries, "stat": dashboard.Stat, "singlestat": dashboard.Stat, "bargauge": dashboard.Stat, "gauge": dashboard.Gauge,
	"heatmap": dashboard.Heatmap, "table": dashboard.Table, "table-old": dashboard.Table, "text": dashboard.Text,
}

// number returns a number that may be written as a text.
func number(text raw) *float64 {
	var n float64
	if json.Unmarshal(text, &n) == nil && string(text) != "null" && len(text) > 0 {
		return &n
	}
	if n, err := strconv.ParseFloat(asText(text), 64); err == nil && !math.IsNaN(n) && !math.IsInf(n, 0) {
		return &n
	}
	return nil
}

// is reports whether an optional list or object is there and not empty.
func is(text raw) bool {
	return len(text) > 0 && !slices.Contains([]string{"null", "[]", "{}", "false", `""`}, string(text))
}

// panel converts one panel, without its place. ok is false if nothing of it can be shown.
func (c *converter) panel(from *panel) (p dashboard.Panel, ok bool) {
	title := c.line("the title of a panel", from.Title.V, dashboard.MaxTitle)
	where := "panel " + excerpt.Quoted(title)
	p = dashboard.Panel{Title: title, Description: c.clip(where+": the description", from.Description.V, dashboard.MaxText)}
	kind := from.Kind.V
	p.Kind = kinds[kind]
	switch {
	case is(from.Library):
		c.note("%s: it is a library panel, whose content is not in the file; left out", where)
		return p, false
	case p.Kind == "":
		c.note("%s: kind %s is not supported, left out", where, excerpt.Of(kind))
		return p, false
	case p.Kind == dashboard.Text:
		c.text(where, from, &p)
		return p, true
	case kind == "bargauge":
		c.note("%s: kind bargauge became stat", where)
	case kind == "singlestat" && from.GaugeShown.V.Show.V:
		p.Kind = dashboard.Gauge
	}
	for _, left := range []struct {
		there bool
		what  string
	}{
		{from.Repeat.V != "", "it is repeated for the values of $" + excerpt.Of(from.Repeat.V) + ", shown once"},
		{is(from.Transformations), "transformations are left out"},
		{is(from.Fields.V.Overrides), "overrides for single series are left out"},
		{is(from.Fields.V.Defaults.V.Mappings), "value mappings are left out"},
		{is(from.Alert), "its alert is left out"},
		{from.TimeFrom.V != "" || from.TimeShift.V != "", "its own time range is left out"},
	} {
		if left.there {
			c.note("%s: %s", where, left.what)
		}
	}
	c.queries(where, from.Targets, &p)
	if len(p.Queries) == 0 {
		c.note("%s: no query is left, left out", where)
		return p, false
	}
	c.look(where, from, &p)
	return p, true
}

func (c *converter) text(where string, from *panel, p *dashboard.Panel) {
	content, mode := from.Options.V.Content.V, from.Options.V.Mode.V
	if content == "" {
		content, mode = from.Content.V, from.Mode.V
	}
	if mode == "html" {
		c.note("%s: its HTML is shown as text", where)
	}
	p.Text = c.clip(where+": the text", content, dashboard.MaxText)
}

// target is a query of Grafana.
type target struct {
	Ref    words `json:"refId"`
	Expr   words `json:"expr"`
	Legend words `json:"legendFormat"`
	Hide   flag  `json:"hide"`
	Source raw   `json:"datasource"`
}

func (c *converter) queries(where string, targets raw, p *dashboard.Panel) {
	all, more := list(targets, dashboard.MaxQueries)
	if more {
		c.note("%s: only the first %d queries are kept", where, dashboard.MaxQueries)
	}
	for i, one := range all {
		var from target
		_ = json.Unmarshal(one, &from)
		which := fmt.Sprintf("%s, query %s", where, excerpt.Of(from.Ref.V))
		if from.Ref.V == "" {
			which = fmt.Sprintf("%s, query %d", where, i+1)
		}
		expr := strings.TrimSpace(from.Expr.V)
		switch {
		case from.Hide.V:
			c.note("%s: it is hidden, left out", which)
			continue
		case expr == "":
			c.note("%s: it has no PromQL expression, left out", which)
			continue
		case len(expr) > dashboard.MaxExpr:
			c.note("%s: it has %d bytes, at most %d are allowed; left out", which, len(expr), dashboard.MaxExpr)
			continue
		}
		legend := from.Legend.V
		if legend == "__auto" {
			legend = ""
		}
		p.Queries = append(p.Queries, dashboard.Query{Expr: c.expression(which, expr), Legend: c.line(which+": the legend", legend, dashboard.MaxTitle)})
	}
}

// look converts unit, scale and thresholds.
func (c *converter) look(where string, from *panel, p *dashboard.Panel) {
	set := &from.Fields.V.Defaults.V
	unit, minimum, maximum, decimals := set.Unit.V, set.Min, set.Max, set.Decimals
	if from.Kind.V == "graph" || from.Kind.V == "singlestat" {
		if unit == "" {
			unit = from.Format.V
		}
		if decimals == nil {
			decimals = from.Decimals
		}
		if axes, _ := list(from.Axes, 1); len(axes) == 1 {
			var left struct {
				Format words `json:"format"`
				Min    raw   `json:"min"`
				Max    raw   `json:"max"`
			}
			_ = json.Unmarshal(axes[0], &left)
			unit, minimum, maximum = left.Format.V, left.Min, left.Max
		}
	}
	p.Unit = c.unit(where, unit)
	p.Min, p.Max = number(minimum), number(maximum)
	if p.Min != nil && p.Max != nil && *p.Min >= *p.Max {
		c.note("%s: min is not below max, both are left out", where)
		p.Min, p.Max = nil, nil
	}
	if n := number(decimals); n != nil && *n == math.Trunc(*n) && *n >= 0 && *n <= dashboard.MaxDecimals {
		whole := int(*n)
		p.Decimals = &whole
	}
	p.Stack = from.Stack.V || slices.Contains([]string{"normal", "percent"}, set.Custom.V.Stacking.V.Mode.V)
	if set.Custom.V.Stacking.V.Mode.V == "percent" {
		c.note("%s: its curves are stacked by their values, not in percent", where)
	}
	if from.Kind.V == "singlestat" && from.Steps.V != "" {
		c.oldThresholds(from.Steps.V, p)
		return
	}
	c.thresholds(where, from, p)
}

// oldThresholds are those of singlestat: green, orange from the first number, red from the second.
func (c *converter) oldThresholds(text string, p *dashboard.Panel) {
	for i, one := range strings.SplitN(text, ",", 3) {
		if n, err := strconv.ParseFloat(strings.TrimSpace(one), 64); err == nil && i < 2 && !math.IsNaN(n) && !math.IsInf(n, 0) &&
			(len(p.Thresholds) == 0 || n > p.Thresholds[0].From) {
			p.Thresholds = append(p.Thresholds, dashboard.Threshold{From: n, Level: [...]string{dashboard.Warn, dashboard.Bad}[i]})
		}
	}
}

// thresholds converts steps of colours. A curve shows them only if it says so.
func (c *converter) thresholds(where string, from *panel, p *dashboard.Panel) {
	set := &from.Fields.V.Defaults.V
	if style := set.Custom.V.ThresholdsStyle.V.Mode.V; p.Kind == dashboard.TimeSeries && (style == "" || style == "off") || p.Kind == dashboard.Heatmap {
		return
	}
	steps, more := list(set.Thresholds.V.Steps, dashboard.MaxThresholds)
	if more {
		c.note("%s: only the first %d thresholds are kept", where, dashboard.MaxThresholds)
	}
	if set.Thresholds.V.Mode.V == "percentage" && len(steps) > 1 {
		c.note("%s: thresholds in percent of the scale are left out", where)
		return
	}
	last := dashboard.OK
	for i, one := range steps {
		var step struct {
			Colour words `json:"color"`
			Value  raw   `json:"value"`
		}
		_ = json.Unmarshal(one, &step)
		level, known := levelOf(step.Colour.V)
		if !known {
			c.note("%s: the colour %s of a threshold means no level, taken as normal", where, excerpt.Quoted(step.Colour.V))
		}
		at := number(step.Value)
		if at == nil { // the first step, from the lowest value on
			if level == dashboard.OK || i > 0 {
				continue
			}
			at = p.Min
			if at == nil {
				at = new(float64)
				c.note("%s: its lowest level begins at 0", where)
			}
		}
		if level == last || len(p.Thresholds) > 0 && *at <= p.Thresholds[len(p.Thresholds)-1].From {
			continue
		}
		last = level
		p.Thresholds = append(p.Thresholds, dashboard.Threshold{From: *at, Level: level})
	}
}

// levelOf returns the level that a colour of Grafana stands for.
func levelOf(colour string) (level string, known bool) {
	name := strings.ToLower(colour)
	for _, shade := range []string{"super-light-", "light-", "semi-dark-", "dark-"} {
		name = strings.TrimPrefix(name, shade)
	}
	switch name {
	case "green", "transparent", "text", "rgba(50, 172, 45, 0.97)", "#299c46", "#73bf69":
		return dashboard.OK, true
	case "yellow", "orange", "rgba(237, 129, 40, 0.89)", "#eab839", "#ff9830", "#fade2a":
		return dashboard.Warn, true
	case "red", "rgba(245, 54, 54, 0.9)", "#d44a3a", "#f2495c", "#c4162a":
		return dashboard.Bad, true
	}
	return dashboard.OK, false
}

// units of Grafana, and Quern's. Those that are equal are left out.
var unitsOf = map[string]string{
	"none": "", "short": "", "sishort": "", "locale": "", "string": "", "percentunit": "ratio", "percent": "percent",
	"bytes": "bytes", "decbytes": "bytes", "Bps": "bytes/s", "binBps": "bytes/s",
	"s": "seconds", "dtdurations": "seconds", "clocks": "seconds", "ms": "ms", "hertz": "hertz", "rothz": "hertz",
	"celsius": "celsius", "volt": "volts", "amp": "amperes", "joule": "joules", "watt": "watts", "lengthm": "meters", "massg": "grams",
	"bits": "bits", "decbits": "bits", "bps": "bits/s", "binbps": "bits/s", "m": "minutes", "h": "hours", "d": "days", "µs": "µs", "ns": "ns",
	"kbytes": "KiB", "mbytes": "MiB", "gbytes": "GiB", "deckbytes": "kB", "decmbytes": "MB", "decgbytes": "GB",
	"cps": "/s", "ops": "ops/s", "reqps": "requests/s", "rps": "reads/s", "wps": "writes/s", "iops": "io/s", "pps": "packets/s",
	"cpm": "/min", "opm": "ops/min", "reqpm": "requests/min", "rpm": "reads/min", "wpm": "writes/min",
	"farenheit": "°F", "fahrenheit": "°F", "kelvin": "K", "humidity": "%H", "dB": "dB", "degree": "°", "currencyUSD": "$", "currencyEUR": "€",
}

func (c *converter) unit(where, unit string) string {
	if ours, ok := unitsOf[unit]; ok || unit == "" {
		return ours
	}
	if suffix, ok := strings.CutPrefix(unit, "suffix:"); ok {
		return c.line(where+": the unit", suffix, dashboard.MaxUnit)
	}
	c.note("%s: the unit %s is left out", where, excerpt.Quoted(unit))
	return ""
}
