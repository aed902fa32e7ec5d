package page

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"
)

// TestAnnotations: a person writes a remark at the cursor of a chart, finds it again, changes it and deletes it.
func TestAnnotations(t *testing.T) {
	server := serve(t, "--demo")
	p := open(t, server.URL)
	p.Go(explore("q", `cpu_usage_ratio{source="web-001"}`))
	p.Drawn("1 series")
	p.See(".annotations", "Nobody has written anything about this time")

	// By the keys: the cursor, then a.
	p.Do(chromedp.Focus(chromedp.CSS(".chart-box")))
	p.Keys(kb.ArrowLeft + kb.ArrowLeft + kb.ArrowLeft + kb.ArrowLeft + kb.ArrowLeft + kb.ArrowLeft)
	p.See(".tip", "%")
	p.press("a", "KeyA", "a", 65)
	p.See("dialog h2", "Annotate")
	p.Wait(`document.activeElement.name === "text"`)
	p.Keys(`Release <b onclick="x">1.4</b>`)
	p.Do(chromedp.Focus(chromedp.CSS("dialog textarea[name=tags]")))
	p.Keys("release")
	p.BothThemes("annotate")
	p.Click("dialog button[type=submit]")
	p.Wait(`!document.querySelector("dialog") && document.querySelectorAll(".flag").length === 1`)
	require.Equal(t, `Release <b onclick="x">1.4</b>`, p.Text(".notes .said"), "all of it, and nothing of the key that opened the dialog")
	require.False(t, eval[bool](p, `!!document.querySelector(".said b")`), "a text is text")

	// It is there after a reload, and says what it says to the keyboard.
	p.Do(chromedp.Reload())
	p.Drawn("1 series")
	p.Wait(`document.querySelectorAll(".flag").length === 1`)
	p.Do(chromedp.Focus(chromedp.CSS(".flag")))
	p.See("[role=tooltip]", `Release <b onclick="x">1.4</b>`)
	p.BothThemes("annotations")
	p.Enter()
	p.Wait(`document.querySelector(".notes li.picked")?.contains(document.activeElement)`)

	// It is found by tag and by text, and the address says so.
	p.Click(".annotations .card-body > .tags button")
	p.Wait(`new URLSearchParams(location.search).get("tag") === "release" && document.querySelectorAll(".notes li").length === 1`)
	p.Do(chromedp.Focus(chromedp.CSS(".annotations input[type=search]")))
	p.Keys("nothing of that kind")
	p.Enter()
	p.See(".annotations", "None of this time has all of that")
	p.Do(chromedp.KeyEvent("a", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.Keys("RELEASE")
	p.Enter()
	p.Wait(`document.querySelectorAll(".notes li").length === 1 && new URLSearchParams(location.search).get("text") === "RELEASE"`)

	// Off and on.
	p.Click(".annotations header input[type=checkbox]")
	p.Wait(`!document.querySelector(".flag") && new URLSearchParams(location.search).get("annotations") === "off"`)
	p.Click(".annotations header input[type=checkbox]")
	p.Wait(`document.querySelectorAll(".flag").length === 1`)

	// It becomes a span about other series: it stays in the list, and leaves the chart.
	p.Click(".notes li > button")
	p.See("dialog h2", "Annotation")
	fill := func(name, text string) {
		p.Do(chromedp.Focus(chromedp.CSS("dialog [name=" + name + "]")))
		p.Do(chromedp.KeyEvent("a", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
		p.Keys(text)
	}
	fill("to", "1999-01-01 00:00")
	p.Click("dialog button[type=submit]")
	p.See("dialog [role=alert]", "The end is before the start")
	fill("to", eval[string](p, `document.querySelector("dialog [name=from]").value`))
	fill("selector", `{source="web-002"`)
	p.Expect("400 (Bad Request)")
	p.Click("dialog button[type=submit]")
	p.See("dialog [role=alert]", "the selector: ")
	fill("selector", `{source="web-002"}`)
	p.Click("dialog button[type=submit]")
	p.Wait(`!document.querySelector("dialog") && document.querySelector(".notes li.dim") && !document.querySelector(".flag")`)

	// It is deleted, after a question.
	p.Click(".notes li > button")
	p.Click("dialog .first")
	p.See("dialog .first", "Delete it for good")
	p.Click("dialog .first")
	p.Wait(`!document.querySelector("dialog") && !document.querySelector(".notes li")`)

	// Many at one time are one flag with their number. A phone shows them, too.
	for i := range 30 {
		require.True(t, eval[bool](p, fmt.Sprintf(`fetch("/api/v1/annotations", {method: "POST", headers: {"Content-Type": "application/json"}, body: JSON.stringify({text: "n%d", start: "-10m", end: "-%dm", tags: ["alert"]})}).then((r) => r.ok)`, i, i%9)))
	}
	p.Go(explore("q", `cpu_usage_ratio{source="web-001"}`))
	p.Drawn("1 series")
	p.See(".flag", "30")
	p.BothThemes("annotations-many")
	p.Do(chromedp.EmulateViewport(390, 800))
	p.Wait(`document.querySelector(".flag") && document.documentElement.scrollWidth <= innerWidth`)
	p.Shot("annotations-phone")
}
