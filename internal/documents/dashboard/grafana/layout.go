package grafana

import (
	"cmp"
	"slices"

	"github.com/quern/quern/internal/documents/dashboard"
	"github.com/quern/quern/internal/wire/excerpt"
)

const (
	// headingHeight is the height of the panel that stands for the title of a row of Grafana.
	headingHeight = 2
	// panelHeight is that of a panel that says none.
	panelHeight = 8
)

// section is what lies below the title of a row.
type section struct {
	title  string
	panels []placed
}

// placed is a panel of Grafana at a place.
type placed struct {
	value
	at dashboard.Rectangle
}

// sections converts all panels. A row with a title becomes a heading. What a collapsed row holds comes below it.
func (c *converter) sections(from value) {
	all := []section{{}}
	panels := places(from)
	slices.SortStableFunc(panels, func(a, b placed) int { return cmp.Or(a.at.Y-b.at.Y, a.at.X-b.at.X) })
	for _, p := range panels {
		if p.text("type") != "row" {
			last := &all[len(all)-1]
			last.panels = append(last.panels, p)
			continue
		}
		if repeat := p.text("repeat"); repeat != "" {
			c.note("row %s: it is repeated for the values of $%s, shown once", excerpt.Quoted(p.text("title")), excerpt.Of(repeat))
		}
		within := places(p.value)
		all = append(all, section{p.text("title"), within})
		if len(within) > 0 {
			all = append(all, section{}) // what follows a collapsed row has places of its own
		}
	}
	for _, row := range from.list("rows") { // of versions before 5
		all = append(all, oldRow(row))
	}
	top := 0
	for _, s := range all {
		top = c.section(s, top)
	}
}

// places returns the panels of a dashboard or a row, with their places in the grid.
func places(from value) (all []placed) {
	for _, p := range from.list("panels") {
		g, at := p.at("gridPos"), dashboard.Rectangle{}
		at.W = g.whole("w", dashboard.Columns/2, dashboard.Columns)
		at.X = min(g.whole("x", 0, dashboard.Columns), dashboard.Columns-at.W)
		at.H = g.whole("h", panelHeight, dashboard.MaxHeight)
		at.Y = g.whole("y", 0, dashboard.MaxRow)
		all = append(all, placed{p, at})
	}
	return all
}

// oldRow reads a row of the time before there was a grid: its panels stand side by side, in twelfths of the width.
func oldRow(row value) (s section) {
	if row.flag("showTitle") {
		s.title = row.text("title")
	}
	x, y := 0, 0
	for _, p := range row.list("panels") {
		width := 2 * p.whole("span", 6, 12)
		if x+width > dashboard.Columns {
			x, y = 0, y+panelHeight
		}
		s.panels = append(s.panels, placed{p, dashboard.Rectangle{X: x, Y: y, W: width, H: panelHeight}})
		x += width
	}
	return s
}

// section converts the panels of a section, which begins at a row. It returns the row below it.
func (c *converter) section(s section, top int) int {
	if title := c.line("the title of a row", s.title, dashboard.MaxTitle); title != "" {
		c.add(dashboard.Panel{Kind: dashboard.Text, Text: "# " + title, At: dashboard.Rectangle{Y: top, W: dashboard.Columns, H: headingHeight}})
		top += headingHeight
	}
	var good []dashboard.Panel
	first := dashboard.MaxRow
	for _, one := range s.panels {
		if c.full || len(c.panels)+len(good) > dashboard.MaxPanels {
			break
		}
		if p, ok := c.panel(one.value); ok {
			p.At = one.at
			first = min(first, p.At.Y)
			good = append(good, p)
		}
	}
	bottom := top
	for _, p := range good {
		p.At.Y = min(p.At.Y-first+top, dashboard.MaxRow)
		c.add(p)
		bottom = max(bottom, p.At.Y+p.At.H)
	}
	return min(bottom, dashboard.MaxRow)
}

// add appends a panel, unless there are too many.
func (c *converter) add(p dashboard.Panel) {
	if len(c.panels) == dashboard.MaxPanels {
		if !c.full {
			c.note("only the first %d panels are kept", dashboard.MaxPanels)
		}
		c.full = true
		return
	}
	p.ID = len(c.panels) + 1
	c.panels = append(c.panels, p)
}
