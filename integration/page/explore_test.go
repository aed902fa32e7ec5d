package page

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// explore returns an address of Explore: names and values in turn.
func explore(params ...string) string {
	form := url.Values{}
	for i := 0; i < len(params); i += 2 {
		form.Add(params[i], params[i+1])
	}
	return "/explore?" + form.Encode()
}

// Drawn waits until the chart shows an answer with so many series.
func (p *Page) Drawn(series string) {
	p.t.Helper()
	p.See(".legend th", series)
	p.Wait(`document.querySelector(".chart canvas") && document.querySelector(".card[aria-busy=false]")`)
}

// Offered waits until the editor offers a completion first.
func (p *Page) Offered(text string) {
	p.t.Helper()
	p.See(".cm-tooltip-autocomplete:not(.cm-tooltip-autocomplete-disabled) li[aria-selected]", text)
}

// Plot returns the corners of the plot, in px of the window.
func (p *Page) Plot() (left, top, right, bottom float64) {
	p.t.Helper()
	r := eval[[]float64](p, `(() => { const r = document.querySelector(".u-over").getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom] })()`)
	return r[0], r[1], r[2], r[3]
}

// TestExplore walks as a person does who looks for something.
func TestExplore(t *testing.T) {
	server := serve(t, "--demo")

	t.Run("an expression with completion", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go("/")
		p.See(".start", "cpu_usage_ratio")
		p.Wait(`document.querySelector(".cm-content")`)
		p.Shot("start")
		p.Accessible("start")
		p.Click(".cm-content")
		p.Keys("cpu_us")
		p.Offered("cpu_usage_ratio")
		p.Shot("completion")
		p.Enter()
		p.Wait(`document.querySelector(".cm-content").textContent === "cpu_usage_ratio"`)
		p.Keys(`{ro`)
		p.Offered("role")
		p.Enter()
		p.Keys(`="d`)
		p.Offered("db")
		p.Enter()
		p.Wait(`document.querySelector(".cm-content").textContent === 'cpu_usage_ratio{role="db"}'`)
		p.Enter()
		p.Drawn("series")
		assert.Equal(t, `cpu_usage_ratio{role="db"}`, p.Parameter("q"))
		p.BothThemes("explore")
	})

	t.Run("errors are marked in place", func(t *testing.T) {
		p := open(t, server.URL)
		p.Expect("400 (Bad Request)")
		p.Go(explore("q", `sum(cpu_usage_ratio) bu (role)`))
		p.See(".query .under", "parse error")
		p.Wait(`[...document.querySelectorAll(".cm-lintRange-error")].some((e) => e.innerText === "bu")`)
		p.Shot("error")
		p.Accessible("error")
		p.Click(".cm-content")
		// A correction takes the mark away, and runs.
		p.Do(chromedp.KeyEvent("a", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
		p.Keys("sum(cpu_usage_ratio)")
		p.Enter()
		p.Drawn("1 series")
		p.Wait(`!document.querySelector(".query .bad-text")`)
	})

	t.Run("zoom and step back", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go(explore("q", `avg by (role) (cpu_usage_ratio)`, "range", "6h"))
		p.Drawn("series")
		before := eval[string](p, "location.href")
		left, top, right, bottom := p.Plot()
		p.Do(chromedp.DragAndDropXY(left+(right-left)/4, (top+bottom)/2, left+(right-left)/2, (top+bottom)/2, 8))
		p.Wait(`new URLSearchParams(location.search).get("start")`)
		p.Drawn("series")
		span := eval[float64](p, `(Date.parse(new URLSearchParams(location.search).get("end")) - Date.parse(new URLSearchParams(location.search).get("start"))) / 3600000`)
		assert.InDelta(t, 1.5, span, 0.05, "a quarter of six hours")
		zoomed := eval[string](p, "location.href")

		// The same address shows the same in another tab.
		other := open(t, server.URL)
		other.Do(chromedp.Navigate(zoomed))
		other.Drawn("series")
		assert.Equal(t, p.Text(".legend"), other.Text(".legend"))

		p.Click(`button[aria-label="Step back"]`)
		p.Wait(fmt.Sprintf(`location.href === %q`, before))
		p.Do(chromedp.NavigateForward())
		p.Wait(fmt.Sprintf(`location.href === %q`, zoomed))
		p.Click(`button[aria-label="Zoom out"]`)
		p.Wait(fmt.Sprintf(`location.href !== %q`, zoomed))
		p.Drawn("series")
	})

	t.Run("several expressions, and the legend", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go(explore("q", `avg by (role) (cpu_usage_ratio)`, "q", `sum by (region) (memory_used_bytes)`, "range", "12h"))
		p.Drawn("series")
		p.BothThemes("several")
		names := eval[[]string](p, `[...document.querySelectorAll(".legend button.series")].map((b) => b.title)`)
		require.Greater(t, len(names), 2)
		p.Click(".legend tbody tr:nth-child(2) button")
		p.Wait(`document.querySelectorAll(".legend tr.dim").length === ` + fmt.Sprint(len(names)-1))
		assert.Equal(t, names[1], p.Parameter("only"))
		p.Click(".legend tbody tr:nth-child(2) button")
		p.Wait(`document.querySelectorAll(".legend tr.dim").length === 0`)
		p.Click(`.query:nth-child(1) button[aria-label="Hide expression a"]`)
		p.Wait(`document.querySelectorAll(".legend tbody tr").length < ` + fmt.Sprint(len(names)))
		p.Drawn("series")
	})

	t.Run("keys on the chart", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go(explore("q", `cpu_usage_ratio{source="web-001"}`))
		p.Drawn("1 series")
		p.Do(chromedp.Focus(chromedp.CSS(".chart-box")))
		p.Keys(kb.ArrowLeft + kb.ArrowLeft)
		p.See(".tip", "%")
		before := p.Text(".tip")
		p.Keys(kb.ArrowLeft)
		p.Wait(fmt.Sprintf(`document.querySelector(".tip").innerText !== %q`, before))
		p.Enter()
		p.See(".panel", "1h")
		p.Keys(kb.Escape)
		p.Wait(`!document.querySelector(".panel")`)
	})

	t.Run("a point is explained", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go(explore("q", `cpu_usage_ratio{source="web-001"}`, "range", "6h"))
		p.Drawn("1 series")
		left, top, right, bottom := p.Plot()
		p.Do(chromedp.MouseClickXY(left+(right-left)/3, (top+bottom)/2))
		p.See(".panel", "Row of")
		p.See(".panel", "complete")
		assert.NotEmpty(t, p.Parameter("at"))
		p.BothThemes("explained")
		p.Do(chromedp.Reload())
		p.See(".panel", "complete")
	})

	t.Run("table", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go(explore("q", `topk(5, cpu_usage_ratio)`, "q", "vector(1)", "view", "table"))
		p.Wait(`document.querySelectorAll("table.values tbody tr").length === 6`)
		p.BothThemes("table")
		p.Click(`table.values th:last-child button`)
		p.Wait(`document.querySelector("table.values th:last-child").ariaSort === "ascending"`)
		p.Click(`button[aria-pressed=false]:is([aria-label=View] button)`)
		p.Drawn("series")
	})

	t.Run("taken away", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go(explore("q", `sum by (role) (rate(http_requests_total{role=~"we.*"}[5m]))`))
		p.Drawn("series")
		p.Press("curl")
		p.Wait(`document.querySelector("dialog textarea").value.includes("curl '" + location.origin + "/api/v1/query_range'")`)
		p.Accessible("curl")
		p.Keys(kb.Escape)
		// What is saved is a blob; the test reads it instead of a file.
		eval[bool](p, `(() => { window.saved = []; const make = URL.createObjectURL; URL.createObjectURL = (b) => { saved.push(b); return make(b) }; return true })()`)
		p.Press("CSV")
		p.Wait("saved.length === 1")
		csv := eval[string](p, "saved[0].text()")
		lines := strings.Split(strings.TrimSpace(csv), "\r\n")
		assert.Regexp(t, `^time,"?\{role=`, lines[0])
		assert.Greater(t, len(lines), 100)
		p.Press("PNG")
		p.Wait("saved.length === 2")
		assert.Equal(t, "\u0089PNG", eval[string](p, `saved[1].arrayBuffer().then((b) => String.fromCharCode(...new Uint8Array(b.slice(0, 4))))`))
	})
}

// TestRanges: what is shown, and when.
func TestRanges(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go(explore("q", "avg(cpu_usage_ratio)"))
	p.Drawn("1 series")

	p.Click(".picker > button")
	p.See(".popover", "Last 6h")
	p.BothThemes("ranges")
	p.Click(".quick button:nth-child(6)")
	p.Wait(`new URLSearchParams(location.search).get("range") === "6h" && !document.querySelector(".popover")`)
	p.See(".picker > button", "Last 6h")
	p.Drawn("1 series")

	// Times are read in the zone that is shown. The browser of the tests is in UTC, so both are the same here.
	p.Keys("U")
	p.See(".bar-end", "UTC")
	p.Click(".picker > button")
	p.Wait(`document.querySelector(".popover").contains(document.activeElement)`)
	fill := func(name, text string) {
		p.Do(chromedp.Focus(chromedp.CSS(".popover input[name=" + name + "]")))
		p.Do(chromedp.KeyEvent("a", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
		p.Keys(text)
	}
	fill("from", "yesterday")
	p.Click(".popover button[type=submit]")
	p.See(".popover [role=alert]", "is no time")
	fill("from", "2026-01-31 12:00")
	fill("to", "2026-01-31 11:00")
	p.Enter()
	p.See(".popover [role=alert]", "not before the end")
	fill("to", "2026-01-31 13:30")
	p.Enter()
	p.Wait(`new URLSearchParams(location.search).get("start") === "2026-01-31T12:00:00Z" && new URLSearchParams(location.search).get("end") === "2026-01-31T13:30:00Z"`)
	p.See(".card", "No series has a value in this time")
	p.See(".picker > button", "2026-01-31 12:00 – 2026-01-31 13:30")
	p.Click(`button[aria-label="Later"]`)
	p.Wait(`new URLSearchParams(location.search).get("start") === "2026-01-31T12:45:00Z"`)

	// A step, and asking again by itself.
	p.Go(explore("q", "avg(cpu_usage_ratio)", "range", "3h", "refresh", "5s"))
	p.Drawn("1 series")
	asked := len(p.asked)
	p.Do(chromedp.Focus(chromedp.CSS(".toolbar form input")))
	p.Keys("7m")
	p.Enter()
	p.Wait(`new URLSearchParams(location.search).get("step") === "7m"`)
	p.Drawn("1 series")
	queries := func() (n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, a := range p.asked[asked:] {
			if strings.HasPrefix(a, "/api/v1/query_range") {
				n++
			}
		}
		return n
	}
	process.Eventually(t, "the page asks again", func() error {
		if n := queries(); n < 2 {
			return fmt.Errorf("it asked %d times", n)
		}
		return nil
	})
}
