package grafana

import (
	"cmp"
	"encoding/json"
	"math"
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

// placed is a panel of Grafana at a place, which may reach over the edges.
type placed struct {
	text raw
	row  bool
	at   dashboard.Rectangle
}

// elements returns the elements of a list of panels or rows, undecoded. What is no list is empty.
func elements(text raw) (all []raw) {
	_ = json.Unmarshal(text, &all)
	return all
}

// sections converts all panels. A row with a title becomes a heading. What a collapsed row holds comes below it.
func (c *converter) sections(panels, rows raw) {
	all := []section{{}}
	var list []placed
	for _, one := range elements(panels) {
		p, _ := place(one)
		list = append(list, p)
	}
	slices.SortStableFunc(list, func(a, b placed) int { return cmp.Or(a.at.Y-b.at.Y, a.at.X-b.at.X) })
	for _, p := range list {
		if !p.row {
			last := &all[len(all)-1]
			last.panels = append(last.panels, p)
			continue
		}
		next, within := c.row(p.text)
		all = append(all, next)
		if within {
			all = append(all, section{}) // what follows a collapsed row has places of its own
		}
	}
	for _, one := range elements(rows) { // of versions before 5
		all = append(all, c.oldRow(one))
	}
	top := 0
	for _, s := range all {
		top = c.section(s, top)
	}
}

// row reads a row, and the places of what it holds while it is collapsed. within is false if it holds nothing.
func (c *converter) row(text raw) (s section, within bool) {
	var from panel
	_ = json.Unmarshal(text, &from)
	c.repeated(&from)
	s.title = from.Title.V
	for _, one := range elements(from.Panels) {
		p, _ := place(one)
		s.panels = append(s.panels, p)
	}
	return s, len(s.panels) > 0
}

func (c *converter) repeated(row *panel) {
	if row.Repeat.V != "" {
		c.note("row %s: it is repeated for the values of $%s, shown once", excerpt.Quoted(row.Title.V), excerpt.Of(row.Repeat.V))
	}
}

// place reads the place of a panel, and its width in an old row, in twelfths.
func place(text raw) (p placed, span float64) {
	var from struct {
		Kind words          `json:"type"`
		Grid loose[grid]    `json:"gridPos"`
		Span loose[float64] `json:"span"`
	}
	_ = json.Unmarshal(text, &from)
	p.text, p.row = text, from.Kind.V == "row"
	g := from.Grid.V
	whole := func(v float64, absent, most int) int {
		if !(v >= 1) {
			return absent
		}
		return int(math.Min(v, float64(most)))
	}
	p.at.W = whole(g.W.V, dashboard.Columns/2, dashboard.Columns)
	p.at.X = min(whole(g.X.V, 0, dashboard.Columns), dashboard.Columns-p.at.W)
	p.at.H = whole(g.H.V, panelHeight, dashboard.MaxHeight)
	p.at.Y = whole(g.Y.V, 0, dashboard.MaxRow)
	return p, from.Span.V
}

// oldRow reads a row of the time before there was a grid: its panels stand side by side, in twelfths of the width.
func (c *converter) oldRow(text raw) section {
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
	x, y := 0, 0
	for _, one := range elements(from.Panels) {
		p, span := place(one)
		width := dashboard.Columns / 2
		if span >= 1 && span <= 12 {
			width = 2 * int(span)
		}
		if x+width > dashboard.Columns {
			x, y = 0, y+panelHeight
		}
		p.at = dashboard.Rectangle{X: x, Y: y, W: width, H: panelHeight}
		x += width
		s.panels = append(s.panels, p)
	}
	return s
}

// section converts the panels of a section, which begins at a row. It returns the row below it.
func (c *converter) section(s section, top int) int {
	if title := c.line("the title of a row", s.title, dashboard.MaxTitle); title != "" {
		c.add(dashboard.Panel{Kind: dashboard.Text, Text: "# " + title}, dashboard.Rectangle{Y: top, W: dashboard.Columns, H: headingHeight})
		top += headingHeight
	}
	var good []dashboard.Panel
	for _, one := range s.panels {
		if c.full {
			return top
		}
		if len(good) > dashboard.MaxPanels { // more than there is room for
			break
		}
		var from panel
		_ = json.Unmarshal(one.text, &from)
		if p, ok := c.panel(&from); ok {
			p.At = one.at
			good = append(good, p)
		}
	}
	first := dashboard.MaxRow
	for i := range good {
		first = min(first, good[i].At.Y)
	}
	bottom := top
	for _, p := range good {
		at := p.At
		at.Y = min(at.Y-first+top, dashboard.MaxRow)
		c.add(p, at)
		bottom = max(bottom, at.Y+at.H)
	}
	return min(bottom, dashboard.MaxRow)
}

// add appends a panel, unless there are too many.
func (c *converter) add(p dashboard.Panel, at dashboard.Rectangle) {
	if len(c.panels) == dashboard.MaxPanels {
		if !c.full {
			c.note("only the first %d panels are kept", dashboard.MaxPanels)
		}
		c.full = true
		return
	}
	p.ID, p.At = len(c.panels)+1, at
	c.panels = append(c.panels, p)
}
