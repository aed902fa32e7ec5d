package dashboard

import (
	"cmp"
	"encoding/json"
	"math"
	"slices"

	"github.com/quern/quern/internal/excerpt"
)

const (
	// headingHeight is the height of the panel that stands for the title of a row of Grafana.
	headingHeight = 2
	// panelHeight is that of a panel that says none.
	panelHeight = 8
	// maxTheirPanels bounds the panels that are looked at: some have no counterpart.
	maxTheirPanels = 2 * MaxPanels
)

// section is what lies below the title of a row.
type section struct {
	title  string
	panels []placed
}

// placed is a panel of Grafana at a place, which may reach over the edges.
type placed struct {
	panel
	at Rectangle
}

// sections converts all panels. A row with a title becomes a heading. What a collapsed row holds comes below it.
func (c *converter) sections(panels, rows raw) {
	all := []section{{}}
	list, more, _ := elements(panels, maxTheirPanels)
	parsed := make([]placed, len(list))
	for i, one := range list {
		parsed[i] = place(one)
	}
	slices.SortStableFunc(parsed, func(a, b placed) int { return cmp.Or(a.at.Y-b.at.Y, a.at.X-b.at.X) })
	for _, p := range parsed {
		if p.Kind.V != "row" {
			last := &all[len(all)-1]
			last.panels = append(last.panels, p)
			continue
		}
		c.repeated(&p.panel)
		next := section{title: p.Title.V}
		within, too, _ := elements(p.Panels, maxTheirPanels)
		more = more || too
		for _, one := range within {
			next.panels = append(next.panels, place(one))
		}
		all = append(all, next)
		if len(within) > 0 {
			all = append(all, section{}) // what follows a collapsed row has places of its own
		}
	}
	old, too, _ := elements(rows, maxTheirPanels) // of versions before 5
	for _, one := range old {
		all = append(all, oldRow(one))
	}
	if more || too {
		c.note("the dashboard has too many panels, not all are looked at")
	}
	top := 0
	for _, s := range all {
		top = c.section(s, top)
	}
}

func (c *converter) repeated(row *panel) {
	if row.Repeat.V != "" {
		c.note("row %s: it is repeated for the values of $%s, shown once", excerpt.Quoted(row.Title.V), excerpt.Of(row.Repeat.V))
	}
}

// place reads a panel and its place.
func place(text raw) placed {
	var p placed
	_ = json.Unmarshal(text, &p.panel)
	g := p.Grid.V
	whole := func(v float64, absent, most int) int {
		if !(v >= 1) {
			return absent
		}
		return int(math.Min(v, float64(most)))
	}
	p.at.W = whole(g.W.V, Columns/2, Columns)
	p.at.X = min(whole(g.X.V, 0, Columns), Columns-p.at.W)
	p.at.H = whole(g.H.V, panelHeight, MaxHeight)
	p.at.Y = whole(g.Y.V, 0, MaxRow)
	return p
}

// oldRow reads a row of the time before there was a grid: its panels stand side by side, in twelfths of the width.
func oldRow(text raw) section {
	var from struct {
		Title     words `json:"title"`
		ShowTitle flag  `json:"showTitle"`
		Panels    raw   `json:"panels"`
	}
	_ = json.Unmarshal(text, &from)
	var s section
	if from.ShowTitle.V {
		s.title = from.Title.V
	}
	list, _, _ := elements(from.Panels, maxTheirPanels)
	x, y := 0, 0
	for _, one := range list {
		p := place(one)
		width := Columns / 2
		if span := p.Span.V; span >= 1 && span <= 12 {
			width = 2 * int(span)
		}
		if x+width > Columns {
			x, y = 0, y+panelHeight
		}
		p.at = Rectangle{x, y, width, panelHeight}
		x += width
		s.panels = append(s.panels, p)
	}
	return s
}

// section converts the panels of a section, which begins at a row. It returns the row below it.
func (c *converter) section(s section, top int) int {
	if title := c.line("the title of a row", s.title, MaxTitle); title != "" {
		c.add(Panel{Kind: Text, Text: "# " + title}, Rectangle{0, top, Columns, headingHeight})
		top += headingHeight
	}
	var good []Panel
	for i := range s.panels {
		if c.full {
			return top
		}
		if p, ok := c.panel(&s.panels[i].panel); ok {
			p.At = s.panels[i].at
			good = append(good, p)
		}
	}
	first := MaxRow
	for i := range good {
		first = min(first, good[i].At.Y)
	}
	bottom := top
	for _, p := range good {
		at := p.At
		at.Y = min(at.Y-first+top, MaxRow)
		c.add(p, at)
		bottom = max(bottom, at.Y+at.H)
	}
	return min(bottom, MaxRow)
}

// add appends a panel, unless there are too many.
func (c *converter) add(p Panel, at Rectangle) {
	if len(c.panels) == MaxPanels {
		if !c.full {
			c.note("only the first %d panels are kept", MaxPanels)
		}
		c.full = true
		return
	}
	p.ID, p.At = len(c.panels)+1, at
	c.panels = append(c.panels, p)
}
