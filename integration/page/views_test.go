package page

import (
	"encoding/json"
	"fmt"
	"net/http"
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

// aged starts a server whose samples before the last eight hours have expired, so that older values come from roll-ups.
func aged(t testing.TB) *process.Process {
	t.Helper()
	return serve(t, "--demo", "--retention", "raw=8h", "--age-cap", "2h")
}

// TestLevels: what only Quern can show of a curve.
func TestLevels(t *testing.T) {
	server := aged(t)
	p := open(t, server.URL)
	p.Go(explore("q", `cpu_usage_ratio{source="web-001"}`, "range", "1d"))
	p.Drawn("1 series")
	// The hours that are ground are rows, the last one is samples.
	p.See(".strip .level-1", "1h")
	p.Wait(`document.querySelector(".strip .level-0")`)
	p.See(".level-key", "1h rows")
	p.See(".banner", "1h roll-ups are read")
	// The chart may be laid out once more when its axes are there, and the strip follows it.
	p.Wait(`(() => { const w = (s) => document.querySelector(s).getBoundingClientRect(); return Math.abs(w(".u-over").right - w(".strip .level-0").right) <= 7 })()`)
	widths := eval[[]float64](p, `(() => { const w = (s) => document.querySelector(s).getBoundingClientRect(); const rows = w(".strip .level-1"), raw = w(".strip .level-0"), plot = w(".u-over"); return [rows.left - plot.left, plot.right - raw.right, raw.width / plot.width] })()`)
	assert.InDelta(t, 0, widths[0], 2, "the strip begins where the plot does")
	assert.InDelta(t, 0, widths[1], 7, "and ends at the last step, which are five minutes")
	assert.Less(t, widths[2], 0.15, "two hours of a day at most")

	// The band lies around the average, and a percentile between its ends.
	p.Do(chromedp.Focus(chromedp.CSS(".chart-box")))
	p.Keys(strings.Repeat(kb.ArrowLeft, 60))
	p.See(".tip", "average")
	value := func(label string) float64 {
		return eval[float64](p, fmt.Sprintf(`Number(new RegExp(%q + " ([0-9.]+)").exec(document.querySelector(".tip").innerText)[1])`, label))
	}
	assert.LessOrEqual(t, value("min"), value("average"))
	assert.LessOrEqual(t, value("average"), value("max"))
	assert.Less(t, value("min"), value("max"))
	p.Do(chromedp.SetValue(chromedp.CSS(".card header select"), "90"))
	eval[bool](p, `document.querySelector(".card header select").dispatchEvent(new Event("change", { bubbles: true }))`)
	p.Wait(`new URLSearchParams(location.search).get("p") === "90"`)
	p.Drawn("1 series")
	p.Do(chromedp.Focus(chromedp.CSS(".chart-box")))
	p.Keys(strings.Repeat(kb.ArrowLeft, 60))
	p.See(".tip", "90th percentile")
	assert.LessOrEqual(t, value("percentile"), value("max")*1.01, "percentiles are within 1 %")
	assert.GreaterOrEqual(t, value("percentile"), value("min")*0.99)
	p.BothThemes("levels")

	// Why: by a click on the strip, and on the chart.
	p.Click(".strip .level-1")
	p.See(".panel", "Row of")
	p.See(".panel", "Schedule")
	p.Click(`button[aria-label="Close the explanation"]`)
	p.Wait(`!document.querySelector(".panel") && !new URLSearchParams(location.search).get("at")`)

	// An expression of several selectors has a strip for each.
	p.Go(explore("q", `sum(rate(http_requests_total[1h])) / sum(cpu_usage_ratio)`, "range", "20h"))
	p.Drawn("1 series")
	p.Wait(`document.querySelectorAll(".strip-name").length === 2`)
	p.Click(".strip .level-1")
	p.See(".panel", "http_requests_total")
	p.Wait(`document.querySelector(".panel select").options.length === 2`)
	p.Accessible("strips")
}

// TestLateAndPartial: what the rows of a part lack is marked, and said.
func TestLateAndPartial(t *testing.T) {
	server := serve(t, "--demo")
	end := time.Now().Unix()
	levels, err := json.Marshal([]map[string]any{{"selector": "cpu_usage_ratio", "parts": []map[string]any{
		{"level": "6h", "start": end - 86400, "end": end - 43200, "series": 200, "late": true, "partial": false},
		{"level": "1h", "start": end - 43200, "end": end - 7200, "series": 200, "late": false, "partial": true},
		{"level": "raw", "start": end - 10800, "end": end, "series": 3, "late": false, "partial": false},
	}}})
	require.NoError(t, err)
	// The answer is the server's but for its levels: late rows without anything finer take weeks.
	p := open(t, altered(t, server, "/api/v1/query_range", func(body []byte) []byte {
		front, _, _ := strings.Cut(string(body), `,"levels":`)
		return []byte(front + `,"levels":` + string(levels) + `}`)
	}))
	p.Go(explore("q", "cpu_usage_ratio", "range", "1d"))
	p.Drawn("200 series")
	p.See(".strip .level-2.hatched", "6h")
	p.See(".strip .level-1.dotted", "1h")
	p.See(".level-key", "late data outstanding")
	p.See(".level-key", "partial")
	assert.Contains(t, eval[string](p, `document.querySelector(".hatched").title`), "late data is not in these rows yet")
	assert.Contains(t, eval[string](p, `document.querySelector(".dotted").title`), "samples or rows are missing")
	assert.Equal(t, 2, eval[int](p, `document.querySelectorAll(".strip").length`), "parts that overlap lie below each other")
	p.BothThemes("late")
}

// TestGap: a gap is explained, too.
func TestGap(t *testing.T) {
	server := serve(t)
	now := time.Now().UnixMilli()
	for _, back := range []int64{50, 45, 40, 5} {
		_, err := server.Report(t.Context(), []process.Sample{{Source: "kitchen", Metric: "tea_celsius", Ms: now - back*60_000, Value: 60}})
		require.NoError(t, err)
	}
	p := open(t, server.URL)
	p.Go(explore("q", "tea_celsius", "range", "1h"))
	p.Drawn("1 series")
	left, top, right, bottom := p.Plot()
	p.Do(chromedp.MouseEvent("mouseMoved", left+(right-left)*0.65, (top+bottom)/2))
	p.See(".tip", "No point here")
	p.Do(chromedp.MouseClickXY(left+(right-left)*0.65, (top+bottom)/2))
	p.See(".panel", `tea_celsius{source="kitchen"}`)
	p.See(".panel", "waiting")
	p.Shot("gap")
}

// TestGrinding: the state of aggregation, and computing rows again from there.
func TestGrinding(t *testing.T) {
	server := aged(t)
	p := open(t, server.URL)
	p.Go("/grinding?range=1d")
	p.See(".tiles", "Grinding of raw")
	p.See(".tiles", "Up to date")
	p.See(".tiles", "times as many")
	p.See(".tiles", "Packing of raw samples")
	p.Wait(`document.querySelectorAll(".lane").length === 3`)
	p.BothThemes("grinding")

	var slices wire.Slices
	r, err := server.Get("/api/v1/status/slices", nil)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(r.Body, &slices))
	for i, b := range slices.Buckets {
		assert.Equal(t, len(b.Slices), eval[int](p, fmt.Sprintf(`document.querySelectorAll(".lane")[%d].querySelectorAll("button").length`, i)), b.Bucket)
	}
	complete := ".lane:first-child .slot-complete"
	p.Click(complete)
	p.See(".slice", "instead of")
	assert.NotEmpty(t, p.Parameter("slice"))
	p.Do(chromedp.Reload())
	p.See(".slice", "instead of")

	// A mistake is told before anything is asked, and so is what the server refuses.
	p.Press("Compute rows again…")
	p.See("dialog", "Compute rows again")
	p.Accessible("reaggregate")
	p.Click("dialog button[type=submit]")
	p.See("dialog [role=alert]", "selector")
	p.Do(chromedp.Focus(chromedp.CSS("dialog input[name=match]")))
	p.Keys(`cpu_usage_ratio{source="web-001"}`)
	p.Enter()
	p.See("dialog", "Have all rows of")
	assert.NotContains(t, strings.Join(p.asked, " "), "/api/v1/reaggregate", "nothing before it is confirmed")
	p.Shot("reaggregate")
	p.Click("dialog .primary")
	p.See("dialog .banner", "1 series; slices: ")
	p.Click("dialog .primary")
	p.Wait(`!document.querySelector("dialog")`)
	p.See(".lane:first-child", "")
	p.Wait(`document.querySelector(".slot-late")`)
	p.Shot("grinding-late")
}

// TestMetrics: what is stored, and who sends it.
func TestMetrics(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go("/metrics-explorer")
	p.See("table", "cpu_usage_ratio")
	p.Wait(`[...document.querySelectorAll("tbody tr")].some((r) => r.innerText.includes("cpu_usage_ratio") && r.innerText.includes("200"))`)
	p.BothThemes("metrics")
	p.Click("input[type=search]")
	p.Keys("cpu")
	p.Wait(`document.querySelectorAll("tbody tr").length === 1`)
	assert.Equal(t, "cpu", p.Parameter("find"))
	p.Click("tbody a")
	p.Drawn("200 series")
	assert.Equal(t, "cpu_usage_ratio", p.Parameter("q"))

	p.Go("/metrics-explorer?tab=sources")
	p.See("table", "web-")
	p.BothThemes("sources")
	p.Click("tbody button.link")
	p.See(".panel", "cpu_usage_ratio")
	p.Click(".panel tbody a")
	p.Drawn("series")

	p.Go("/metrics-explorer?tab=cardinality")
	p.See(".two", "Series by label")
	p.See(".tiles", "in all")
	p.BothThemes("cardinality")
}

// TestGroups: a group of metrics shows less at once, to all who come.
func TestGroups(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go("/metrics-explorer?find=cpu")
	p.Wait(`document.querySelectorAll("tbody tr").length === 1`)
	p.Press("New group")
	p.Fill("dialog input[name=name]", "Web: CPU")
	assert.Equal(t, "cpu_usage_ratio", eval[string](p, `document.querySelector("dialog textarea[name=metrics]").value`), "it begins with what is listed")
	p.Fill("dialog textarea[name=sources]", "web-001")
	p.Press("Save")
	p.Wait(`!document.querySelector("dialog") && new URLSearchParams(location.search).get("group") === "web-cpu"`)

	// Another browser has it, too: its metrics, its sources, and what is shared by a link.
	other := open(t, server.URL)
	other.Go("/metrics-explorer")
	other.Wait(`document.querySelectorAll("tbody tr").length > 1`)
	other.Select("select[name=group]", "web-cpu")
	other.Wait(`document.querySelectorAll("tbody tr").length === 1`)
	other.BothThemes("group")
	other.Press("Sources")
	other.See("tbody", "web-001")
	assert.Equal(t, 1, eval[int](other, `document.querySelectorAll("tbody tr").length`))
	other.Press("web-001")
	other.See(".panel", "cpu_usage_ratio")
	assert.Equal(t, 1, eval[int](other, `document.querySelectorAll(".panel tbody tr").length`))
	other.Press("Change group…")
	other.Fill("dialog textarea[name=sources]", "web-002")
	other.Accessible("group editor")
	other.Press("Save")
	other.See("tbody", "web-002")

	// Who has an older version changes nothing, and is told.
	p.Expect("409 (Conflict)")
	p.Press("Change group…")
	p.Fill("dialog input[name=name]", "Mine")
	p.Press("Save")
	p.See("dialog [role=alert]", "Somebody else has changed this group")
	p.Do(chromedp.Reload())
	p.Press("Change group…")
	assert.Equal(t, "web-002", eval[string](p, `document.querySelector("dialog textarea[name=sources]").value`))
	p.Press("Delete the group")
	p.Wait(`!document.querySelector("dialog") && !new URLSearchParams(location.search).get("group")`)
	p.Wait(`document.querySelector("select[name=group]").options.length === 1`)

	// The id of a deleted group can be used again.
	p.Expect("404 (Not Found)")
	p.Press("New group")
	p.Fill("dialog input[name=name]", "Web: CPU")
	p.Press("Save")
	p.Wait(`!document.querySelector("dialog") && new URLSearchParams(location.search).get("group") === "web-cpu"`)
	p.See("main", "Change group…")
}

// TestTextIsText: whatever clients call their metrics, labels and sources, the page shows it and never runs it.
func TestTextIsText(t *testing.T) {
	server := serve(t)
	const evil = `<img src=x onerror="window.ran=1"><script>window.ran=1</script>`
	now := time.Now().UnixMilli()
	line, err := json.Marshal(map[string]any{
		"metric": map[string]string{"__name__": "evil " + evil, "source": evil, "say": `javascript:window.ran=1 " ' {{7*7}} ` + evil},
		"values": []float64{1, 2, 3}, "timestamps": []int64{now - 180_000, now - 120_000, now - 60_000},
	})
	require.NoError(t, err)
	r, err := server.Post(wire.ImportPath, line)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, r.Code, "%s", r.Body)
	require.Contains(t, string(r.Body), `"accepted":3`)

	p := open(t, server.URL)
	p.Expect("400 (Bad Request)")
	quiet := func(where string) {
		t.Helper()
		assert.Equal(t, "undefined", eval[string](p, "typeof window.ran"), where)
		assert.Zero(t, eval[int](p, `document.querySelectorAll("img:not(.cm-widgetBuffer), body script").length`), where)
	}
	p.Go("/")
	p.See(".start", evil)
	quiet("start")
	p.Go(explore("q", `{say=~"java.*"}`, "q", `sum(`+evil, "range", "5m"))
	p.See(".legend", "onerror")
	p.See(".query:nth-child(2) .under", "parse error")
	p.Drawn("1 series")
	p.Do(chromedp.Focus(chromedp.CSS(".chart-box")))
	p.Keys(strings.Repeat(kb.ArrowLeft, 14))
	p.See(".tip", "onerror")
	p.Enter()
	p.See(".panel", "onerror")
	quiet("chart")
	p.Shot("evil")
	p.Go(explore("q", `{say=~"java.*"}`, "view", "table"))
	p.See("table", evil)
	quiet("table")
	for _, path := range []string{"/metrics-explorer", "/metrics-explorer?tab=sources", "/metrics-explorer?tab=cardinality", "/grinding", "/dashboards/" + `%3Cscript%3E`} {
		p.Go(path)
		p.See("footer", "Connected")
		if strings.HasPrefix(path, "/metrics") {
			p.See("table", "onerror")
		}
		quiet(path)
	}
	p.Go("/metrics-explorer")
	p.See("table", evil)
	p.Click("tbody a")
	p.Drawn("1 series")
	p.Click(`button[aria-pressed=false]:is([aria-label=View] button)`)
	p.See("table", evil)
	quiet("from the list")
}

// BenchmarkDraw prints how long it takes from an answer of 200 series with 1,000 points each to the drawn chart.
func BenchmarkDraw(b *testing.B) {
	server := serve(b, "--demo")
	p := open(b, server.URL)
	eval[bool](p, `true`)
	for b.Loop() {
		p.Go(explore("q", "cpu_usage_ratio", "range", "1d", "step", "86s"))
		p.Drawn("200 series")
	}
	b.ReportMetric(eval[float64](p, `performance.getEntriesByName("quern.draw").at(-1).duration`), "ms/draw")
	b.ReportMetric(eval[float64](p, `performance.getEntriesByName("first-contentful-paint")[0].startTime`), "ms/first-paint")
}
