package grafana

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire/excerpt"
)

// panel converts one panel, without its place. ok is false if nothing of it can be shown.
func (c *converter) panel(from value) (p dashboard.Panel, ok bool) {
	title := c.line("the title of a panel", from.text("title"), dashboard.MaxTitle)
	where := "panel " + excerpt.Quoted(title)
	kind := from.text("type")
	p = dashboard.Panel{Title: title, Description: c.clip(where+": the description", from.text("description"), dashboard.MaxText), Kind: kinds[kind]}
	switch {
	case from.has("libraryPanel"):
		c.note("%s: it is a library panel, whose content is not in the file; left out", where)
		return p, false
	case p.Kind == "":
		c.note("%s: kind %s is not supported, left out", where, excerpt.Of(kind))
		return p, false
	case p.Kind == dashboard.Text:
		text := from
		if from.text("options.content") != "" {
			text = from.at("options")
		}
		if text.text("mode") == "html" {
			c.note("%s: its HTML is shown as text", where)
		}
		p.Text = c.clip(where+": the text", text.text("content"), dashboard.MaxText)
		return p, true
	case kind == "bargauge":
		c.note("%s: kind bargauge became stat", where)
	case kind == "singlestat" && from.flag("gauge.show"):
		p.Kind = dashboard.Gauge
	}
	if repeat := from.text("repeat"); repeat != "" {
		c.note("%s: it is repeated for the values of $%s, shown once", where, excerpt.Of(repeat))
	}
	for _, left := range leftOut {
		if from.has(left.path) {
			c.note("%s: %s", where, left.note)
		}
	}
	c.queries(where, from, &p)
	if len(p.Queries) == 0 {
		c.note("%s: no query is left, left out", where)
		return p, false
	}
	c.look(where, from, &p)
	return p, true
}

func (c *converter) queries(where string, from value, p *dashboard.Panel) {
	for i, q := range c.first(where, "queries", from.list("targets"), dashboard.MaxQueries) {
		which := fmt.Sprintf("%s, query %s", where, excerpt.Of(cmp.Or(q.text("refId"), fmt.Sprint(i+1))))
		expr, legend := strings.TrimSpace(q.text("expr")), q.text("legendFormat")
		switch {
		case q.flag("hide"):
			c.note("%s: it is hidden, left out", which)
			continue
		case expr == "":
			c.note("%s: it has no PromQL expression, left out", which)
			continue
		case len(expr) > dashboard.MaxExpr:
			c.note("%s: it has %d bytes, at most %d are allowed; left out", which, len(expr), dashboard.MaxExpr)
			continue
		case legend == "__auto":
			legend = ""
		}
		p.Queries = append(p.Queries, dashboard.Query{Expr: c.expression(which, expr), Legend: c.line(which+": the legend", legend, dashboard.MaxTitle)})
	}
}

// look converts unit, scale and thresholds.
func (c *converter) look(where string, from value, p *dashboard.Panel) {
	set, old := from.at("fieldConfig.defaults"), from.text("type") == "graph" || from.text("type") == "singlestat"
	unit, scale, decimals := set.text("unit"), set, set.number("decimals")
	if old {
		unit = cmp.Or(unit, from.text("format"))
		decimals = cmp.Or(decimals, from.number("decimals"))
		if axes := from.list("yaxes"); len(axes) > 0 {
			unit, scale = axes[0].text("format"), axes[0]
		}
	}
	p.Unit = c.unit(where, unit)
	p.Min, p.Max = scale.number("min"), scale.number("max")
	if p.Min != nil && p.Max != nil && *p.Min >= *p.Max {
		c.note("%s: min is not below max, both are left out", where)
		p.Min, p.Max = nil, nil
	}
	if n := decimals; n != nil && *n == math.Trunc(*n) && *n >= 0 && *n <= dashboard.MaxDecimals {
		whole := int(*n)
		p.Decimals = &whole
	}
	stacking := set.text("custom.stacking.mode")
	p.Stack = from.flag("stack") || stacking == "normal" || stacking == "percent"
	if stacking == "percent" {
		c.note("%s: its curves are stacked by their values, not in percent", where)
	}
	style := set.text("custom.thresholdsStyle.mode")
	switch {
	case from.text("type") == "singlestat" && from.text("thresholds") != "": // such as "80,90": orange, red
		for i, one := range strings.SplitN(from.text("thresholds"), ",", 3) {
			if n := number(one); i < 2 && n != nil {
				addThreshold(p, *n, [...]string{dashboard.Warn, dashboard.Bad}[i])
			}
		}
	case p.Kind == dashboard.Heatmap, p.Kind == dashboard.TimeSeries && (style == "" || style == "off"): // it shows none
	default:
		c.thresholds(where, set, p)
	}
}

// thresholds converts steps of colours.
func (c *converter) thresholds(where string, set value, p *dashboard.Panel) {
	steps := c.first(where, "thresholds", set.list("thresholds.steps"), dashboard.MaxThresholds)
	if set.text("thresholds.mode") == "percentage" && len(steps) > 1 {
		c.note("%s: thresholds in percent of the scale are left out", where)
		return
	}
	last := dashboard.OK
	for i, step := range steps {
		level, known := levelOf(step.text("color"))
		if !known {
			c.note("%s: the colour %s of a threshold means no level, taken as normal", where, excerpt.Quoted(step.text("color")))
		}
		from := step.number("value")
		if from == nil { // the first step, from the lowest value on
			if level == dashboard.OK || i > 0 {
				continue
			}
			if from = p.Min; from == nil {
				from = new(float64)
				c.note("%s: its lowest level begins at 0", where)
			}
		}
		if level != last && addThreshold(p, *from, level) {
			last = level
		}
	}
}

// addThreshold adds a threshold, unless it is not above the one before it.
func addThreshold(p *dashboard.Panel, from float64, level string) bool {
	if n := len(p.Thresholds); n > 0 && from <= p.Thresholds[n-1].From {
		return false
	}
	p.Thresholds = append(p.Thresholds, dashboard.Threshold{From: from, Level: level})
	return true
}

func (c *converter) unit(where, unit string) string {
	if converted, ok := units[unit]; ok || unit == "" {
		return converted
	}
	if suffix, ok := strings.CutPrefix(unit, "suffix:"); ok {
		return c.line(where+": the unit", suffix, dashboard.MaxUnit)
	}
	c.note("%s: the unit %s is left out", where, excerpt.Quoted(unit))
	return ""
}
