package page

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// token makes a token with a role, on a server that is locked with locked.
func token(t testing.TB, server *process.Process, role string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), programs.Quern, "token", "create",
		"--url", strings.Replace(server.URL, "http://", "http://ali:open%20sesame@", 1), "--name", role, "--role", role).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// rooms reports 30 samples of each of two sources, over half an hour.
func rooms(t testing.TB, server *process.Process) {
	t.Helper()
	now := time.Now().UnixMilli()
	for _, source := range []string{"kitchen", "hall"} {
		var all []process.Sample
		for i := range int64(30) {
			all = append(all, process.Sample{Source: source, Metric: "it_celsius", Ms: now - i*60_000, Value: 20 + float64(i)})
		}
		_, err := server.Report(t.Context(), all)
		require.NoError(t, err)
	}
}

// TestDelete deletes from the list of metrics, after the page has said what that is.
func TestDelete(t *testing.T) {
	server := serve(t, "--enable-admin-api")
	rooms(t, server)
	p := open(t, server.URL)
	p.Go("/metrics-explorer")
	p.Click(`button[aria-label="Delete samples of it_celsius…"]`)
	p.See("dialog h2", "Delete samples of it_celsius")
	p.Click("dialog input[name=where]")
	p.Keys(`source="hall"`)
	p.Click("dialog input[name=from]")
	p.Keys("yesterday")
	p.Enter()
	p.See("dialog [role=alert]", "Write times as")
	p.Click("dialog input[name=from]")
	p.Keys(strings.Repeat(kb.End+kb.Backspace, len("yesterday")))
	p.Click("dialog button[type=submit]")
	p.See("dialog .banner", "1 series, about 30 samples from ")
	p.See("dialog p", "all that is stored")
	assert.True(t, eval[bool](p, `document.querySelector("dialog .danger").disabled`), "nothing before the name is written")
	p.BothThemes("delete")
	assert.NotContains(t, strings.Join(p.asked, " "), "delete_series")
	p.Click("dialog input[name=typed]")
	p.Keys("it_celsius")
	p.Click("dialog .danger")
	p.See("dialog .banner", "30 samples of 1 series are deleted")
	p.Shot("deleted")
	left, err := server.Export(`{__name__="it_celsius"}`, time.Hour)
	require.NoError(t, err)
	assert.Len(t, left, 30, "the other source stays")
	for _, s := range left {
		assert.Equal(t, "kitchen", s.Source)
	}
	p.Click("dialog .primary")
	p.Wait(`!document.querySelector("dialog")`)
	p.See("table", "it_celsius")

	t.Run("turned off", func(t *testing.T) {
		server := serve(t)
		rooms(t, server)
		p := open(t, server.URL)
		p.Expect("403 (Forbidden)")
		p.Go("/metrics-explorer")
		p.Click(`button[aria-label="Delete samples of it_celsius…"]`)
		p.Click("dialog button[type=submit]")
		p.Click("dialog input[name=typed]")
		p.Keys("it_celsius")
		p.Enter()
		p.See("dialog [role=alert]", "start the server with --enable-admin-api")
	})
	t.Run("a reader", func(t *testing.T) {
		server := serve(t, "--enable-admin-api", "--web.config.file", locked(t), "--demo")
		p := open(t, server.URL)
		p.Expect("401")
		p.Go("/metrics-explorer?find=cpu")
		p.LogIn(token(t, server, "read"))
		p.Click(`tbody button.icon`)
		p.See("dialog [role=alert]", "Deleting needs the role admin, and token read")
		p.Wait(`!document.querySelector("dialog form")`)
	})
}
