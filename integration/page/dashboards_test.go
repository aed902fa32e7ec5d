package page

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

// board is a dashboard, as the tests write and read it.
type board struct {
	Format      int        `json:"format"`
	Title       string     `json:"title"`
	Description string     `json:"description"`
	Range       string     `json:"range"`
	Variables   []variable `json:"variables"`
	Panels      []panel    `json:"panels"`
}

type variable struct {
	Name     string   `json:"name"`
	Kind     string   `json:"kind"`
	Label    string   `json:"of"`
	Selector string   `json:"selector"`
	Multi    bool     `json:"multi"`
	Values   []string `json:"values"`
	Value    []string `json:"value"`
}

type panel struct {
	ID      int     `json:"id"`
	Title   string  `json:"title"`
	Kind    string  `json:"kind"`
	At      place   `json:"at"`
	Queries []query `json:"queries"`
	Text    string  `json:"text"`
}

type place struct{ X, Y, W, H int }

// MarshalJSON writes the names as the format has them.
func (p place) MarshalJSON() ([]byte, error) {
	return json.Marshal(map[string]int{"x": p.X, "y": p.Y, "w": p.W, "h": p.H})
}

type query struct {
	Expr   string `json:"expr"`
	Legend string `json:"legend"`
}

// curves returns a panel with a chart.
func curves(id int, title string, at place, expr, legend string) panel {
	return panel{ID: id, Title: title, Kind: "timeseries", At: at, Queries: []query{{expr, legend}}}
}

// store stores a dashboard that was made from version base.
func store(t testing.TB, server *process.Process, id string, base int, b board) {
	t.Helper()
	b.Format = 1
	body, err := json.Marshal(b)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, fmt.Sprintf("%s%s/%s?base=%d", server.URL, wire.DashboardsPath, id, base), strings.NewReader(string(body)))
	require.NoError(t, err)
	resp, err := process.Client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

// stored returns a version of a dashboard, the newest for 0, and its number.
func stored(t testing.TB, server *process.Process, id string, version int) (board, int64) {
	t.Helper()
	params := url.Values{}
	if version > 0 {
		params.Set("version", fmt.Sprint(version))
	}
	r, err := server.Get(wire.DashboardsPath+"/"+id, params)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.Code, "%s", r.Body)
	var d wire.Data[wire.Dashboard]
	require.NoError(t, json.Unmarshal(r.Body, &d))
	var b board
	require.NoError(t, json.Unmarshal(d.Data.Dashboard, &b))
	return b, d.Data.Version
}

// Shown waits until all panels in view have what they asked for.
func (p *Page) Shown() {
	p.t.Helper()
	p.Wait(`(() => {
		const all = [...document.querySelectorAll(".panel-body")].filter((e) => { const r = e.getBoundingClientRect(); return r.bottom > 0 && r.top < innerHeight });
		return all.length > 0 && all.every((e) => e.childElementCount > 0 && e.ariaBusy === "false");
	})()`)
}

// Place returns where a panel lies on the grid.
func (p *Page) Place(id int) place {
	p.t.Helper()
	v := eval[[]int](p, fmt.Sprintf(`["x", "y", "w", "h"].map((n) => Number(document.getElementById("panel-%d").style.getPropertyValue("--" + n)))`, id))
	return place{v[0] - 1, v[1] - 1, v[2], v[3]}
}

// Saves saves, and waits until that is done.
func (p *Page) Saves() {
	p.t.Helper()
	p.Press("Save")
	p.See(".dashboard [role=status]", "Saved.")
}

// TestDashboard makes a dashboard from nothing, with a panel of each kind, and finds all of it again.
func TestDashboard(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go("/dashboards")
	p.See("h1", "Dashboards")
	p.BothThemes("dashboards")
	p.Press("New")
	p.Wait(`document.activeElement?.id === "new-title"`)
	p.Keys("My hosts: all")
	p.Enter()
	p.Wait(`location.pathname === "/dashboards/my-hosts-all" && location.search === "?edit=1"`)
	p.See("h1", "My hosts: all")

	for i, k := range []struct{ name, kind, expr, legend, shows string }{
		{"Time series", "timeseries", "avg(cpu_usage_ratio) by (role)", "{{role}}!", ".legend td"},
		{"Number", "stat", "max(cpu_usage_ratio)", "", ".stat b"},
		{"Gauge", "gauge", "avg(cpu_usage_ratio)", "", ".gauge text"},
		{"Heat map", "heatmap", "avg(cpu_usage_ratio) by (role)", "", ".heatmap-key"},
		{"Table", "table", "topk(3, cpu_usage_ratio)", "", "table.values td"},
	} {
		p.Press(map[bool]string{true: k.name, false: "Panel"}[i == 0])
		if i > 0 {
			p.Press(k.name)
		}
		p.Wait(`document.activeElement?.id === "panel-title" && document.querySelector(".panel-editor .cm-content")`)
		p.Keys("My " + k.name)
		p.Click(".panel-editor .cm-content")
		p.Keys(k.expr)
		// What is left is asked.
		p.Fill(".panel-query input", k.legend+" ")
		p.Wait(fmt.Sprintf(`document.querySelector(".preview %s")?.textContent`, k.shows))
		if i == 0 {
			p.See(".preview .legend", "db!")
			p.BothThemes("panel-editor")
		}
		p.Press("Done")
		// Below the window it would wait.
		p.Wait(fmt.Sprintf(`(() => { const e = document.querySelector(".dash-grid .kind-%s"); e?.scrollIntoView(); return e?.querySelector(%q)?.textContent })()`, k.kind, k.shows))
	}
	p.Press("Panel")
	p.Press("Text")
	p.Fill(".panel-editor textarea", "# Notes\n\nThe **load** of `web`: see [Explore](/explore)\n- one\n- two")
	p.See(".preview h3", "Notes")
	p.Press("Done")
	p.See(".kind-text ul", "two")

	// Until it is saved, it is this tab's, and outlives a reload.
	assert.Empty(t, must(stored(t, server, "my-hosts-all", 0)).Panels)
	p.Do(chromedp.Reload())
	p.See("h1 + .tag", "not saved")
	p.Wait(`document.querySelectorAll(".dash-grid .dash-panel").length === 6`)
	assert.Positive(t, p.asksToLeave())
	p.Saves()
	p.Press("Done")
	p.Wait(`!document.querySelector(".grip")`)
	before := eval[[]string](p, `[...document.querySelectorAll(".dash-panel h2")].map((e) => e.innerText)`)

	other := open(t, server.URL)
	other.Do(chromedp.EmulateViewport(1360, 1400))
	other.Go("/dashboards")
	other.Press("My hosts: all")
	other.Shown()
	assert.Equal(t, before, eval[[]string](other, `[...document.querySelectorAll(".dash-panel h2")].map((e) => e.innerText)`))
	for _, shows := range []string{".kind-timeseries canvas", ".kind-stat .spark path", ".kind-gauge .arc", ".kind-heatmap canvas", ".kind-table td", `.kind-text a[href="/explore"]`} {
		other.Wait(fmt.Sprintf(`document.querySelector(%q)`, shows))
	}
	other.BothThemes("dashboard")

	// On a phone the panels lie below each other.
	other.Do(chromedp.EmulateViewport(360, 740))
	other.Wait(`new Set([...document.querySelectorAll(".dash-panel")].map((e) => e.getBoundingClientRect().left)).size === 1`)
	other.Shown()
	other.Shot("dashboard-phone")
	assert.LessOrEqual(t, eval[int](other, `document.documentElement.scrollWidth`), 360)
	other.Accessible("dashboard on a phone")
	other.Go("/dashboards/my-hosts-all?edit=1&panel=1")
	other.Wait(`document.querySelector(".panel-editor .cm-content") && document.querySelector(".preview canvas")`)
	other.Shot("panel-editor-phone")
	assert.LessOrEqual(t, eval[int](other, `document.documentElement.scrollWidth`), 360)
}

func must(b board, _ int64) board { return b }

func (p *Page) asksToLeave() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.leaving
}

// TestVariables chooses what the panels show. All of it is in the address.
func TestVariables(t *testing.T) {
	server := serve(t, "--demo")
	// Values that mean something in an expression, and in a regular expression.
	const odd, like = `o.d"d\w{1}`, `oxd"d\w{1}`
	now := time.Now().UnixMilli()
	for _, source := range []string{odd, like} {
		_, err := server.Report(t.Context(), []process.Sample{{Source: source, Metric: "odd_total", Ms: now - 60_000, Value: 1}})
		require.NoError(t, err)
	}
	store(t, server, "v", 0, board{Title: "v", Range: "1h", Variables: []variable{
		{Name: "role", Kind: "label", Label: "role", Selector: "cpu_usage_ratio", Multi: true},
		{Name: "host", Kind: "label", Label: "source", Selector: `cpu_usage_ratio{role=~"$role"}`},
		{Name: "q", Kind: "list", Values: []string{"0.5", "0.9"}, Value: []string{"0.9"}},
		{Name: "odd", Kind: "label", Label: "source", Selector: "odd_total", Multi: true},
		{Name: "like", Kind: "text", Value: []string{"d.*"}},
	}, Panels: []panel{
		curves(1, "by $role", place{0, 0, 12, 6}, `avg by (role) (cpu_usage_ratio{role=~"$role"})`, "{{role}}"),
		curves(2, "quantile $q", place{12, 0, 12, 6}, `quantile(${q}, avg_over_time(cpu_usage_ratio[$__rate_interval])) + 0 * vector($q)`, "q"),
		curves(3, "host", place{0, 6, 12, 6}, `cpu_usage_ratio{source="$host"}`, "{{source}}"),
		curves(4, "odd", place{12, 6, 12, 6}, `last_over_time(odd_total{source=~"$odd"}[$__range])`, "{{source}}"),
		curves(5, "like", place{0, 12, 12, 6}, `count by (role) (cpu_usage_ratio{role=~'$like'})`, "{{role}}"),
	}})
	p := open(t, server.URL)
	p.Do(chromedp.EmulateViewport(1360, 1300))
	legend := func(id int) []string {
		return eval[[]string](p, fmt.Sprintf(`[...document.querySelectorAll("#panel-%d .legend button.series")].map((b) => b.title)`, id))
	}
	p.Go("/dashboards/v")
	p.See("#panel-5 .legend", "db")
	p.Shown()
	assert.Equal(t, []string{"cache", "db", "web"}, legend(1))
	assert.Equal(t, []string{"q"}, legend(2))
	assert.Equal(t, []string{"cache-001"}, legend(3), "the first, where one must be chosen")
	assert.ElementsMatch(t, []string{odd, like}, legend(4))
	assert.Equal(t, []string{"db"}, legend(5))
	assert.Equal(t, "by all", p.Text("#panel-1 h2"))
	p.BothThemes("variables")

	p.Press("role all")
	p.Press("db")
	p.Wait(`location.search === "?var-role=db"`)
	p.See("#panel-3 .legend", "db-")
	p.Accessible("variable")
	p.Press("web")
	p.Keys(kb.Escape)
	p.Wait(`document.querySelectorAll("#panel-1 .legend button.series").length === 2`)
	assert.Equal(t, []string{"db", "web"}, legend(1))
	p.Press("odd all")
	p.Press(odd)
	p.Keys(kb.Escape)
	p.Wait(`document.querySelectorAll("#panel-4 .legend button.series").length === 1`)
	assert.Equal(t, []string{odd}, legend(4), "a value is no regular expression")
	p.Select(".variable:nth-child(3) select", "0.5")
	p.Fill(".variables input", "web|cache")
	p.Enter()
	p.Wait(`document.querySelectorAll("#panel-5 .legend button.series").length === 2`)

	// The same address shows the same.
	other := open(t, server.URL)
	other.Do(chromedp.EmulateViewport(1360, 1300))
	other.Do(chromedp.Navigate(eval[string](p, "location.href")))
	other.Wait(`document.querySelectorAll("#panel-5 .legend button.series").length === 2 && document.querySelectorAll("#panel-1 .legend button.series").length === 2`)
	other.See(".variables", "db, web")

	// Zooming in one chart zooms all.
	left, top, right, bottom := p.Plot()
	p.Do(chromedp.DragAndDropXY(left+(right-left)/4, (top+bottom)/2, left+(right-left)/2, (top+bottom)/2, 8))
	p.Wait(`new URLSearchParams(location.search).get("start")`)
	p.Shown()
	p.Press("Menu of by $role")
	p.Press("View alone")
	p.Wait(`document.querySelectorAll(".dash-panel").length === 1 && new URLSearchParams(location.search).get("panel") === "1"`)
	p.Shown()
	p.Press("Menu of by $role")
	p.Press("Open in Explore")
	p.Wait(`location.pathname === "/explore"`)
	p.Drawn("2 series")
	assert.Equal(t, `avg by (role) (cpu_usage_ratio{role=~"(db|web)"})`, p.Parameter("q"))
	assert.NotEmpty(t, p.Parameter("start"))
}

// TestImport stores a file, and what was exported. One of Grafana is refused, with the command that takes it.
func TestImport(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Expect("400 (Bad Request)")
	p.Go("/dashboards")
	p.Press("Import…")
	p.Press("Save")
	p.See("dialog [role=alert]", "Choose a file")
	p.Fill("dialog textarea", `{"title":"Nodes","panels":[]}`)
	p.Press("Save")
	p.See("dialog [role=alert]", "quern dashboard convert")
	p.BothThemes("import")
	ours := `{"format":1,"title":"Nodes","panels":[{"id":1,"kind":"timeseries","title":"CPU","at":{"x":0,"y":0,"w":12,"h":8},` +
		`"queries":[{"expr":"avg(cpu_usage_ratio)","legend":"cpu"}]}]}`
	file := filepath.Join(t.TempDir(), "nodes.json")
	require.NoError(t, os.WriteFile(file, []byte(ours), 0o600))
	p.Do(chromedp.SetUploadFiles(chromedp.CSS("dialog input[type=file]"), []string{file}))
	p.Wait(`document.querySelector("dialog textarea").value.includes("cpu_usage_ratio")`)
	p.Press("Save")
	p.Wait(`location.pathname === "/dashboards/nodes"`)
	p.See(".legend", "cpu")

	// What is exported can be imported: under another id, since that one is taken.
	p.Expect("409 (Conflict)")
	eval[bool](p, `(() => { window.saved = []; const make = URL.createObjectURL; URL.createObjectURL = (b) => { saved.push(b); return make(b) }; return true })()`)
	p.Press("More")
	p.Press("Export as a file")
	p.Wait("saved.length === 1")
	ours = eval[string](p, "saved[0].text()")
	p.Go("/dashboards")
	p.Press("Import…")
	eval[bool](p, fmt.Sprintf(`(() => { const t = document.querySelector("dialog textarea"); t.value = %q; return t.dispatchEvent(new Event("input", { bubbles: true })) })()`, strings.Replace(ours, `"description": ""`, `"description": "again"`, 1)))
	p.Press("Save")
	p.Wait(`location.pathname === "/dashboards/nodes-2"`)
	want := must(stored(t, server, "nodes", 0))
	want.Description = "again"
	assert.Equal(t, want, must(stored(t, server, "nodes-2", 0)))
}

// TestPanelsWait: panels that nobody sees ask nothing, and one that fails says so and leaves the others alone.
func TestPanelsWait(t *testing.T) {
	server := serve(t, "--demo")
	const evil = `<img src=x onerror="window.ran=1"><script>window.ran=1</script>`
	b := board{Title: evil, Description: evil, Panels: []panel{
		curves(1, evil, place{0, 0, 12, 8}, `avg by (role) (cpu_usage_ratio)`, evil+" {{role}}"),
		curves(2, "broken", place{12, 0, 12, 8}, `sum(cpu_usage_ratio) bu (role)`, ""),
		{ID: 3, Title: "text", Kind: "text", At: place{0, 8, 24, 6}, Text: evil + "\n# " + evil + "\n- **" + evil + "**\n[a](javascript:window.ran=1) [b](//evil.example/x) [c](https://example.com/) `<b>`"},
	}}
	for i := range 12 {
		b.Panels = append(b.Panels, curves(10+i, fmt.Sprint("below ", i), place{0, 40 + 10*i, 24, 10}, fmt.Sprintf("avg(cpu_usage_ratio) + %d", i), ""))
	}
	store(t, server, "long", 0, b)
	p := open(t, server.URL)
	p.Expect("400 (Bad Request)")
	p.Go("/dashboards/long")
	p.See("#panel-1 .legend", "onerror")
	p.See("#panel-2 [role=alert]", "parse error")
	p.See("h1", evil)
	asked := func() (n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, a := range p.asked {
			if strings.HasPrefix(a, "/api/v1/query_range") {
				n++
			}
		}
		return n
	}
	assert.Less(t, asked(), 8)
	assert.Empty(t, p.Text("#panel-21 .panel-body"))
	eval[bool](p, `(() => { document.getElementById("panel-21").scrollIntoView(); return true })()`)
	p.Wait(`document.querySelector("#panel-21 canvas")`)
	assert.Less(t, asked(), 14, "those that were passed may have been asked, the rest was not")

	assert.Equal(t, "undefined", eval[string](p, "typeof window.ran"))
	assert.Zero(t, eval[int](p, `document.querySelectorAll("main img, main script, main iframe, #panel-3 h3 b").length`))
	assert.Equal(t, []string{"https://example.com/"}, eval[[]string](p, `[...document.querySelectorAll("#panel-3 .panel-body a")].map((a) => a.getAttribute("href"))`))
	assert.Contains(t, p.Text("#panel-3 .panel-body"), "[a](javascript:window.ran=1) [b](//evil.example/x)")
	assert.Equal(t, "<b>", p.Text("#panel-3 code"))
	p.Shot("dashboard-evil")
	p.Go("/dashboards")
	p.See("table", evil)
	assert.Equal(t, "undefined", eval[string](p, "typeof window.ran"))
}

// TestBuiltInDashboard: what is part of the program is shown, and changed as a copy.
func TestBuiltInDashboard(t *testing.T) {
	p := open(t, serve(t, "--demo").URL)
	p.Expect("409 (Conflict)")
	p.Go("/dashboards")
	p.See("table", "built in")
	p.Click(`tbody tr:has(.tag) a`)
	p.Shown()
	title := p.Text("h1")
	p.BothThemes("built-in")
	p.Wait(`![...document.querySelectorAll("button")].some((b) => b.innerText === "Edit" || b.innerText === "Delete…")`)
	p.Press("Save a copy to edit")
	p.Wait(`document.activeElement?.id === "copy-title"`)
	p.Enter()
	p.See("h1", title+" (copy)")
	p.Press("Edit")
	p.Wait(`document.querySelector(".grip")`)
}
