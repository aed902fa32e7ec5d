package grafana

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire/excerpt"
)

// panel is one of Grafana, or a row, which holds panels when it is collapsed.
type panel struct {
	Type, Title, Description string
	GridPos                  struct{ X, Y, W, H int }
	Panels                   []panel
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Hide                      bool
	}
	Options     text
	FieldConfig struct {
		Defaults struct {
			scale
			Unit     string
			Decimals *int
			Custom   struct{ Stacking, ThresholdsStyle struct{ Mode string } }
			Mappings []any
			// Thresholds begin with one without a value, for all that is below the next.
			Thresholds struct {
				Mode  string
				Steps []struct {
					Color string
					Value *float64
				}
			}
		}
		Overrides []any
	}
	text // before Grafana 7
	// These are of the kinds graph and singlestat.
	Format string
	Stack  bool
	YAxes  []struct {
		scale
		Format string
	}
	// These have no counterpart.
	Transformations     []any
	Alert, LibraryPanel any
	Thresholds          any // of the kind singlestat a text
	Repeat              string
	TimeFrom, TimeShift string
}

type text struct{ Content, Mode string }

// scale may have its numbers as texts.
type scale struct{ Min, Max any }

// headingHeight is the height of the panel that stands for a row, which has the height 1 in Grafana.
const headingHeight = 2

// layOut converts all panels. A row becomes a heading. What a collapsed row holds comes below it, and moves what follows down.
func (c *converter) layOut(panels []panel) {
	shift := 0
	for _, p := range sorted(panels) {
		at := p.place(shift)
		if p.Type != "row" {
			c.panel(&p, at)
			continue
		}
		if p.Repeat != "" {
			c.note("row %q: it is repeated for the values of $%s, shown once", p.Title, p.Repeat)
		}
		c.add(dashboard.Panel{Kind: dashboard.Text, Text: "# " + p.Title, At: dashboard.Rectangle{Y: at.Y, W: dashboard.Columns, H: headingHeight}})
		shift += headingHeight - 1
		within, bottom := sorted(p.Panels), 0
		for i := range within {
			at := within[i].place(p.GridPos.Y + 1 + shift - within[0].GridPos.Y)
			c.panel(&within[i], at)
			bottom = max(bottom, at.Y+at.H)
		}
		shift += max(0, bottom-(p.GridPos.Y+1+shift))
	}
}

// sorted returns panels from the top to the bottom.
func sorted(panels []panel) []panel {
	return slices.SortedStableFunc(slices.Values(panels), func(a, b panel) int {
		return cmp.Or(cmp.Compare(a.GridPos.Y, b.GridPos.Y), cmp.Compare(a.GridPos.X, b.GridPos.X))
	})
}

// place returns the place of a panel that moves down by some rows.
func (p *panel) place(down int) dashboard.Rectangle {
	g := p.GridPos
	at := dashboard.Rectangle{W: min(cmp.Or(g.W, dashboard.Columns/2), dashboard.Columns), H: min(cmp.Or(g.H, 8), dashboard.MaxHeight), Y: g.Y + down}
	at.X = min(g.X, dashboard.Columns-at.W)
	return at
}

func (c *converter) add(p dashboard.Panel) {
	p.ID = len(c.panels) + 1
	c.panels = append(c.panels, p)
}

// kinds of panels of Grafana, and Quern's. The others have no counterpart.
var kinds = map[string]string{
	"timeseries": dashboard.TimeSeries, "graph": dashboard.TimeSeries, "stat": dashboard.Stat, "singlestat": dashboard.Stat, "bargauge": dashboard.Stat, "gauge": dashboard.Gauge,
	"heatmap": dashboard.Heatmap, "table": dashboard.Table, "table-old": dashboard.Table, "text": dashboard.Text,
}

// panel converts one panel, unless nothing of it can be shown.
func (c *converter) panel(from *panel, at dashboard.Rectangle) {
	where := "panel " + excerpt.Quoted(from.Title)
	set := &from.FieldConfig.Defaults
	p := dashboard.Panel{Title: from.Title, Description: from.Description, Kind: kinds[from.Type], At: at}
	switch {
	case from.LibraryPanel != nil:
		c.note("%s: it is a library panel, whose content is not in the file; left out", where)
		return
	case p.Kind == "":
		c.note("%s: kind %s is not supported, left out", where, from.Type)
		return
	case p.Kind == dashboard.Text:
		if cmp.Or(from.Options, from.text).Mode == "html" {
			c.note("%s: its HTML is shown as text", where)
		}
		p.Text = cmp.Or(from.Options, from.text).Content
		c.add(p)
		return
	}
	limits, _ := from.Thresholds.(string)
	for _, lost := range []struct {
		present bool
		note    string
	}{
		{from.Type == "bargauge", "kind bargauge became stat"},
		{from.Repeat != "", "it is repeated for the values of $" + from.Repeat + ", shown once"},
		{len(from.Transformations) > 0, "transformations are left out"},
		{len(from.FieldConfig.Overrides) > 0, "overrides for single series are left out"},
		{len(set.Mappings) > 0, "value mappings are left out"},
		{limits != "", "its thresholds are left out"},
		{from.Alert != nil, "its alert is left out"},
		{from.TimeFrom+from.TimeShift != "", "its own time range is left out"},
		{set.Custom.Stacking.Mode == "percent", "its curves are stacked by their values, not in percent"},
	} {
		if lost.present {
			c.note("%s: %s", where, lost.note)
		}
	}
	for i, q := range from.Targets {
		which, expr := where+", query "+cmp.Or(q.RefID, fmt.Sprint(i+1)), strings.TrimSpace(q.Expr)
		switch {
		case q.Hide:
			c.note("%s: it is hidden, left out", which)
		case expr == "":
			c.note("%s: it has no PromQL expression, left out", which)
		default:
			legend := q.LegendFormat
			if legend == "__auto" {
				legend = ""
			}
			p.Queries = append(p.Queries, dashboard.Query{Expr: c.expression(which, expr), Legend: legend})
		}
	}
	if len(p.Queries) == 0 {
		c.note("%s: no query is left, left out", where)
		return
	}
	unit, scale := cmp.Or(set.Unit, from.Format), set.scale
	if len(from.YAxes) > 0 {
		unit, scale = from.YAxes[0].Format, from.YAxes[0].scale
	}
	p.Unit, p.Min, p.Max, p.Decimals = c.unit(where, unit), number(scale.Min), number(scale.Max), set.Decimals
	p.Stack = from.Stack || set.Custom.Stacking.Mode == "normal" || set.Custom.Stacking.Mode == "percent"
	c.thresholds(where, from, &p)
	c.add(p)
}

func number(v any) *float64 {
	n, err := strconv.ParseFloat(strings.TrimSpace(fmt.Sprint(v)), 64)
	if err != nil || math.IsNaN(n) || math.IsInf(n, 0) {
		return nil
	}
	return &n
}

// thresholds converts steps of colours.
func (c *converter) thresholds(where string, from *panel, p *dashboard.Panel) {
	set := &from.FieldConfig.Defaults
	style := set.Custom.ThresholdsStyle.Mode
	switch {
	case p.Kind == dashboard.Heatmap, p.Kind == dashboard.TimeSeries && (style == "" || style == "off"): // it shows none
		return
	case set.Thresholds.Mode == "percentage" && len(set.Thresholds.Steps) > 1:
		c.note("%s: thresholds in percent of the scale are left out", where)
		return
	}
	last := dashboard.OK
	for i, step := range set.Thresholds.Steps {
		level, known := levels[strings.ToLower(step.Color[strings.LastIndex(step.Color, "-")+1:])]
		if !known {
			level = dashboard.OK
			c.note("%s: the colour %q of a threshold means no level, taken as normal", where, step.Color)
		}
		from := step.Value
		if from == nil && i == 0 && level != dashboard.OK { // from the lowest value on
			if from = p.Min; from == nil {
				from = new(float64)
				c.note("%s: its lowest level begins at 0", where)
			}
		}
		if from != nil && level != last {
			p.Thresholds = append(p.Thresholds, dashboard.Threshold{From: *from, Level: level})
			last = level
		}
	}
}

// levels are what the colours of Grafana stand for, without their shades, such as dark-.
var levels = map[string]string{
	"green": dashboard.OK, "transparent": dashboard.OK, "text": dashboard.OK, "#299c46": dashboard.OK, "#73bf69": dashboard.OK,
	"yellow": dashboard.Warn, "orange": dashboard.Warn, "#eab839": dashboard.Warn, "#ff9830": dashboard.Warn, "#fade2a": dashboard.Warn,
	"red": dashboard.Bad, "#d44a3a": dashboard.Bad, "#f2495c": dashboard.Bad, "#c4162a": dashboard.Bad,
}

func (c *converter) unit(where, unit string) string {
	converted, ok := units[unit]
	if !ok {
		if converted, ok = strings.CutPrefix(unit, "suffix:"); !ok && unit != "" {
			c.note("%s: the unit %q is left out", where, unit)
			return ""
		}
	}
	return converted
}

// units of Grafana, and Quern's. Those that are equal are left out.
var units = map[string]string{
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
