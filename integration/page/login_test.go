package page

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogin: the page of a locked server asks who somebody is, and shows everything after that. The address stays.
func TestLogin(t *testing.T) {
	server := serve(t, "--demo", "--web.config.file", locked(t))
	p := open(t, server.URL)
	p.Expect("401")

	at := explore("q", "cpu_usage_ratio")
	p.Go(at)
	p.See("dialog h2", "Log in")
	p.BothThemes("login")
	p.Click("#login-user")
	p.Keys("ali")
	p.Click("dialog input[type=password]")
	p.Keys("open barley")
	p.Enter()
	p.See("dialog [role=alert]", "wrong user or password")
	p.Click("dialog input[type=password]")
	p.Keys("open sesame")
	p.Enter()
	p.Drawn("series")
	require.False(t, eval[bool](p, `document.cookie.includes("quern") || document.querySelector("dialog") !== null`), "no script can read the cookie")

	p.Click(`button[title="Logged in as user ali"]`)
	p.See("dialog h2", "Log in")
}
