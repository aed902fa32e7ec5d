package page

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var pictures = flag.String("pictures", "", "the directory for the pictures of the README, as `make pictures` has it")

// most is the size of the largest picture, in bytes: whoever clones the repository gets all of them.
const most = 150 << 10

// TestPictures walks to the views that the README shows. With -pictures it takes their pictures; without, it checks that
// each of them is there and in the README.
func TestPictures(t *testing.T) {
	server := serve(t, "--demo", "--retention", "raw=8h", "--age-cap", "2h")
	p := open(t, server.URL)
	p.Do(chromedp.EmulateViewport(1280, 720))
	p.Dark(false)
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	var shown []string
	for _, m := range regexp.MustCompile(`\]\(docs/pictures/([^)]+)\)`).FindAllSubmatch(text, -1) {
		shown = append(shown, string(m[1]))
	}
	var taken []string
	take := func(name string) {
		t.Helper()
		p.Wait(`!document.getAnimations().some((a) => a instanceof CSSTransition) && document.fonts.status === "loaded"`)
		taken = append(taken, name)
		dir := "../../docs/pictures"
		if *pictures != "" {
			dir = *pictures
			png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), png, 0o644))
		}
		png, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err, "make pictures takes it")
		assert.LessOrEqual(t, len(png), most, name)
		// The width is in the header of a PNG.
		require.Greater(t, len(png), 24, name)
		assert.Equal(t, "\x89PNG", string(png[:4]), name)
		assert.Equal(t, 1280, int(png[18])<<8|int(png[19]), name)
	}

	p.Go(explore("q", `cpu_usage_ratio{source="web-001"}`, "range", "1d", "p", "90"))
	p.Drawn("1 series")
	p.Wait(`document.querySelector(".strip .level-1") && document.querySelector(".strip .level-0")`)
	p.Do(chromedp.Focus(chromedp.CSS(".chart-box")))
	p.Keys(strings.Repeat(kb.ArrowLeft, 60))
	p.See(".tip", "90th percentile")
	take("explore.png")

	p.Go("/dashboards/demo?range=6h")
	p.Shown()
	p.Wait(`document.querySelector(".dash-panel canvas")`)
	take("dashboard.png")

	p.Go("/grinding?range=1d")
	p.See(".tiles", "Up to date")
	p.Wait(`document.querySelectorAll(".lane").length === 3`)
	// The picture does not have the name of the machine.
	p.Wait(`[...document.querySelectorAll(".runs td:last-child")].every((cell) => cell.textContent = "grinder-1")`)
	take("grinding.png")

	assert.ElementsMatch(t, taken, shown, "the README shows what is taken")
}
