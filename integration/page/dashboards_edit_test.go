package page

import (
	"fmt"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/wire"
)

// TestArrange moves and resizes panels by the mouse and by keys. Those below make room.
func TestArrange(t *testing.T) {
	server := serve(t)
	store(t, server, "d", 0, board{Title: "d", Panels: []panel{
		{ID: 1, Title: "one", Kind: "text", Text: "1", At: place{0, 0, 12, 4}},
		{ID: 2, Title: "two", Kind: "text", Text: "2", At: place{12, 0, 12, 4}},
		{ID: 3, Title: "three", Kind: "text", Text: "3", At: place{0, 2, 12, 4}}, // it overlaps the first
	}})
	p := open(t, server.URL)
	p.Go("/dashboards/d")
	p.See("#panel-3", "3")
	assert.Equal(t, place{0, 4, 12, 4}, p.Place(3), "what overlaps moves down")
	p.Press("Edit")
	p.Wait(`document.querySelector("#panel-1 .grip")`)
	middle := func(selector string) (x, y float64) {
		r := eval[[]float64](p, fmt.Sprintf(`(() => { const r = document.querySelector(%q).getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2] })()`, selector))
		return r[0], r[1]
	}
	column := eval[float64](p, `(document.querySelector(".dash-grid").clientWidth + 8) / 24`)

	// By the title to the other column: what is there makes room.
	x, y := middle("#panel-1 h2")
	p.Do(chromedp.DragAndDropXY(x, y, x+12*column, y+3, 12))
	p.Wait(`!document.querySelector(".held")`)
	assert.Equal(t, []place{{12, 0, 12, 4}, {12, 4, 12, 4}, {0, 0, 12, 4}}, []place{p.Place(1), p.Place(2), p.Place(3)})
	// By the corner.
	x, y = middle("#panel-1 .corner")
	p.Do(chromedp.DragAndDropXY(x, y, x-4*column, y+2*38, 12))
	p.Wait(`!document.querySelector(".held")`)
	assert.Equal(t, []place{{12, 0, 8, 6}, {12, 6, 12, 4}}, []place{p.Place(1), p.Place(2)})
	p.BothThemes("arrange")

	// By keys: the handle keeps the focus, and what happens is said.
	p.Do(chromedp.Focus(chromedp.CSS("#panel-1 .grip")))
	p.Keys(kb.ArrowRight)
	p.Wait(`document.querySelector("[data-said]").textContent === "one: column 14, row 1, 8 wide, 6 high"`)
	p.Do(chromedp.KeyEvent(kb.ArrowDown, chromedp.KeyModifiers(chromedp.ModifierShift)))
	p.Wait(`document.querySelector("[data-said]").textContent === "one: column 14, row 1, 8 wide, 7 high"`)
	p.Keys(kb.ArrowDown)
	p.Wait(`document.querySelector("[data-said]").textContent === "one: column 14, row 5, 8 wide, 7 high"`)
	assert.Equal(t, place{12, 0, 12, 4}, p.Place(2), "it has gone past the next")
	assert.Equal(t, "Move one", eval[string](p, `document.activeElement.getAttribute("aria-label")`))

	// All that was done by keys in a row is undone at once, then each drag.
	p.Press("Undo")
	p.Wait(`document.getElementById("panel-1").style.getPropertyValue("--w") === "8"`)
	assert.Equal(t, place{12, 0, 8, 6}, p.Place(1))
	p.Do(chromedp.KeyEvent("z", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.Wait(`document.getElementById("panel-1").style.getPropertyValue("--w") === "12"`)
	p.Press("Redo")
	p.Wait(`document.getElementById("panel-1").style.getPropertyValue("--w") === "8"`)
	p.Saves()
	b := must(stored(t, server, "d", 0))
	assert.Equal(t, []place{{0, 0, 12, 4}, {12, 0, 8, 6}, {12, 6, 12, 4}}, []place{b.Panels[0].At, b.Panels[1].At, b.Panels[2].At})
	p.Do(chromedp.Reload())
	p.See("#panel-1", "1")
	assert.Equal(t, place{12, 0, 8, 6}, p.Place(1))

	// Escape gives a drag up. Duplicates and removals can be undone as well.
	x, y = middle("#panel-2 h2")
	p.Do(chromedp.MouseEvent("mouseMoved", x, y), chromedp.MouseEvent("mousePressed", x, y, chromedp.ButtonType("left")), chromedp.MouseEvent("mouseMoved", x, y-300, chromedp.ButtonType("left")))
	p.Wait(`document.querySelector("#panel-2.held")`)
	p.Keys(kb.Escape)
	p.Wait(`!document.querySelector(".held")`)
	p.Do(chromedp.MouseEvent("mouseReleased", x, y-300, chromedp.ButtonType("left")))
	assert.Equal(t, place{12, 6, 12, 4}, p.Place(2))
	p.Press("Menu of two")
	p.Press("Duplicate")
	p.Wait(`document.getElementById("panel-4")`)
	p.Press("Menu of one")
	p.Press("Remove")
	p.Wait(`!document.getElementById("panel-1")`)
	p.Press("Undo")
	p.Press("Undo")
	p.Wait(`document.getElementById("panel-1") && !document.getElementById("panel-4")`)
}

// TestConflict: two windows edit the same dashboard, and nobody loses anything.
func TestConflict(t *testing.T) {
	server := serve(t)
	text := func(text string) board {
		return board{Title: "both", Panels: []panel{{ID: 1, Title: "notes", Kind: "text", Text: text, At: place{0, 0, 12, 4}}}}
	}
	store(t, server, "both", 0, text("first"))
	write := func(p *Page, what string) {
		p.Go("/dashboards/both?edit=1&panel=1")
		p.Fill(".panel-editor textarea", what)
		p.See(".preview", what)
	}
	a, b := open(t, server.URL), open(t, server.URL)
	b.Expect("409 (Conflict)")
	write(a, "from a")
	write(b, "from b")
	a.Saves()
	b.Press("Save")
	b.See("dialog", "Version 2 was saved")
	b.See("dialog", "You have edited version 1")
	b.BothThemes("conflict")
	assert.Equal(t, "/dashboards/both?version=2", eval[string](b, `document.querySelector("dialog a").getAttribute("href")`))

	// As a copy: both are there.
	b.Press("Save mine as a copy…")
	b.Wait(`document.activeElement?.id === "copy-title"`)
	b.Enter()
	b.Wait(`location.pathname === "/dashboards/both-copy"`)
	b.See(".kind-text", "from b")
	assert.Equal(t, "from a", must(stored(t, server, "both", 0)).Panels[0].Text)

	// Over theirs: theirs is in the history.
	write(b, "b again")
	write(a, "a again")
	b.Saves()
	a.Expect("409 (Conflict)")
	a.Press("Save")
	a.See("dialog", "Version 3 was saved")
	a.Keys(kb.Escape)
	a.Wait(`!document.querySelector("dialog")`)
	a.See("h1 + .tag", "not saved")
	a.Press("Save")
	a.Press("Save mine over theirs. Theirs stays in the history as version 3")
	a.See(".dashboard [role=status]", "Saved.")
	newest, version := stored(t, server, "both", 0)
	assert.Equal(t, "a again", newest.Panels[0].Text)
	assert.EqualValues(t, 4, version)
	assert.Equal(t, "b again", must(stored(t, server, "both", 3)).Panels[0].Text)

	// Looking at an older version, and restoring one.
	a.Press("More")
	a.Press("History")
	a.See("dialog table", "both")
	a.BothThemes("history")
	a.Press("Look at version 2")
	a.See(".dashboard > .banner", "This is version 2")
	a.See(".kind-text", "from a")
	a.Wait(`!document.querySelector(".grip") && ![...document.querySelectorAll("button")].some((b) => b.innerText === "Save")`)
	a.Press("More")
	a.Press("History")
	a.Press("Restore version 1")
	a.See(".kind-text", "first")
	a.Wait(`!location.search.includes("version") && !document.querySelector("dialog")`)
	restored, version := stored(t, server, "both", 0)
	assert.Equal(t, "first", restored.Panels[0].Text)
	assert.EqualValues(t, 5, version)
}

// TestLeaving: changes are not left by mistake, and a deleted dashboard comes back.
func TestLeaving(t *testing.T) {
	server := serve(t)
	store(t, server, "here", 0, board{Title: "here"})
	p := open(t, server.URL)
	p.Go("/dashboards/here?edit=1")
	p.Press("Settings")
	p.Fill("dialog input", "renamed")
	p.Fill("dialog .columns label:nth-child(2) input", "soon")
	p.Wait(`document.querySelector("dialog [aria-invalid=true]")`)
	p.Fill("dialog .columns label:nth-child(2) input", "3h")
	p.Press("Variable")
	p.BothThemes("settings")
	p.Press("Remove")
	p.Press("Done")
	p.See("h1", "renamed")
	p.See(".picker > button", "Last 3h")

	p.Press("Metrics")
	p.See("dialog", "Leave with changes that are not saved?")
	p.Accessible("leaving")
	p.Press("Cancel")
	p.Wait(`!document.querySelector("dialog") && location.pathname === "/dashboards/here"`)
	p.Press("Dashboards")
	p.See("dialog", "Leave with changes")
	p.Press("Save and leave")
	p.See("table", "renamed")
	// The browser's own way back asks, too.
	p.Press("renamed")
	p.See("h1", "renamed")
	p.Press("Edit")
	p.Press("Text")
	p.Press("Done")
	for _, at := range []string{"?edit=1&panel=1", "?edit=1", ""} {
		p.Do(chromedp.NavigateBack())
		p.Wait(fmt.Sprintf("location.search === %q", at))
	}
	p.Do(chromedp.NavigateBack())
	p.See("dialog", "Leave with changes")
	p.Press("Discard and leave")
	p.See("table", "renamed")
	assert.Empty(t, must(stored(t, server, "here", 0)).Panels)

	p.Press("renamed")
	p.See("h1", "renamed")
	p.Press("More")
	p.Press("Delete…")
	p.Press("Delete")
	p.Wait(`location.pathname === "/dashboards"`)
	p.Wait(`document.querySelector("table") && !document.querySelector("main").innerText.includes("renamed")`)
	p.Press("Deleted")
	p.See("table", "renamed")
	p.Press("Restore renamed")
	p.See("main", "Nothing is deleted")
	p.Press("Deleted")
	p.Press("renamed")
	p.See("h1", "renamed")
}

// TestAddToDashboard: a chart of Explore becomes a panel, of a new dashboard or of one that is there, and nothing that
// others save meanwhile is lost.
func TestAddToDashboard(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go(explore("q", "avg(cpu_usage_ratio)", "q", "max(cpu_usage_ratio)", "q", "min(cpu_usage_ratio)", "hide", "2", "range", "3h"))
	p.Drawn("2 series")
	p.Press("Add to dashboard")
	p.Fill("dialog input[name=name]", "CPU of all")
	p.Fill("dialog input[name=title]", "Average and maximum")
	p.BothThemes("add-to-dashboard")
	p.Press("Add")
	p.See("dialog .banner.good", "The panel is on CPU of all")
	b, _ := stored(t, server, "cpu-of-all", 0)
	assert.Equal(t, "CPU of all", b.Title)
	require.Len(t, b.Panels, 1)
	assert.Equal(t, "Average and maximum", b.Panels[0].Title)
	assert.Equal(t, "timeseries", b.Panels[0].Kind)
	require.Len(t, b.Panels[0].Queries, 2, "not what is hidden")
	assert.Equal(t, "max(cpu_usage_ratio)", b.Panels[0].Queries[1].Expr)
	p.Press("Close")

	// The second is a table. While it is added somebody else saves: after the page has read the dashboard.
	b.Title = "CPU of all hosts"
	var saves sync.Once
	p = open(t, altered(t, server, wire.DashboardsPath+"/cpu-of-all", func(body []byte) []byte {
		saves.Do(func() { store(t, server, "cpu-of-all", 1, b) })
		return body
	}))
	p.Expect("409 (Conflict)")
	p.Go(explore("q", "topk(3, cpu_usage_ratio)", "view", "table"))
	p.Wait(`document.querySelector("tbody td")`)
	p.Press("Add to dashboard")
	p.Select("dialog select[name=dashboard]", "cpu-of-all")
	p.Press("Add")
	p.See("dialog .banner.good", "The panel is on")
	b, version := stored(t, server, "cpu-of-all", 0)
	assert.EqualValues(t, 3, version)
	assert.Equal(t, "CPU of all hosts", b.Title, "the other's change stays")
	require.Len(t, b.Panels, 2)
	assert.Equal(t, "table", b.Panels[1].Kind)
	p.Press("CPU of all")
	p.See("h1", "CPU of all hosts")
	p.Wait(`document.querySelector(".kind-table td") && document.querySelector(".kind-timeseries canvas")`)
}
