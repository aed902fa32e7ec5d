package page

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWalk goes through the page once, as somebody does who opens it: logs in, looks at a curve, a dashboard, and how far
// the grinding is. It is what tier one runs in a browser; the other tests look at each view by itself.
func TestWalk(t *testing.T) {
	server := serve(t, "--demo", "--web.config.file", locked(t))
	p := open(t, server.URL)
	p.Expect("401")

	p.Go(explore("q", "sum(cpu_usage_ratio)"))
	p.LogIn("")
	p.Drawn("1 series")
	coloured := eval[int](p, `(() => {
		const [r, g, b] = getComputedStyle(document.querySelector(".legend .swatch")).backgroundColor.match(/\d+/g).map(Number);
		const c = document.querySelector(".chart canvas"), px = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
		let n = 0;
		for (let i = 0; i < px.length; i += 4) if (px[i] === r && px[i + 1] === g && px[i + 2] === b) n++;
		return n;
	})()`)
	require.Greater(t, coloured, 500, "pixels of the curve have the colour that the legend has")
	p.Shot("walk-explore")

	p.Go("/dashboards")
	p.See("table", "built in")
	p.Click(`tbody tr:has(.tag) a`)
	p.Shown()
	p.Shot("walk-dashboard")

	p.Go("/grinding?range=1d")
	p.See(".tiles", "Grinding of raw")
	p.See(".tiles", "Up to date")
	p.Wait(`document.querySelectorAll(".lane").length === 3 && document.querySelector(".lane:first-child .slot-complete")`)
	p.Shot("walk-grinding")
}
