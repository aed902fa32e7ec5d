package page

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
	"github.com/quern/quern/internal/wire"
)

// TestBuilt: what is checked in is what the sources give. It needs npm, since only npm has the packages.
func TestBuilt(t *testing.T) {
	npm, err := exec.LookPath("npm")
	if err != nil {
		t.Skip("no npm here, so nothing can be built from web/")
	}
	// A copy, so that the packages of whoever develops stay.
	web, dist := filepath.Join(t.TempDir(), "web"), filepath.Join(t.TempDir(), "dist")
	require.NoError(t, os.MkdirAll(web, 0o755))
	for _, name := range []string{"package.json", "package-lock.json", ".npmrc", "tsconfig.json", "build.mjs", "src"} {
		out, err := exec.CommandContext(t.Context(), "cp", "-R", filepath.Join("../../web", name), web).CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for _, args := range [][]string{{"ci"}, {"run", "check"}, {"run", "build", "--", dist}} {
		cmd := exec.CommandContext(t.Context(), npm, args...)
		cmd.Dir = web
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "npm %q: %s", args, out)
	}
	want, got := files(t, dist), files(t, "../../internal/api/page/dist")
	assert.NotEmpty(t, want)
	for name := range want {
		assert.Truef(t, bytes.Equal(want[name], got[name]), "%s is not what web/ gives: run make page, and commit what it writes", name)
	}
	for name := range got {
		assert.Contains(t, want, name, "a file that web/ does not give: run make page")
	}
}

func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		out[name], err = os.ReadFile(path)
		return err
	}))
	return out
}

// TestLockFile: whoever installs chooses where the packages come from.
func TestLockFile(t *testing.T) {
	lock, err := os.ReadFile("../../web/package-lock.json")
	require.NoError(t, err)
	assert.NotContains(t, string(lock), `"resolved"`)
	assert.NotContains(t, string(lock), "registry")
	manifest, err := os.ReadFile("../../web/package.json")
	require.NoError(t, err)
	assert.NotRegexp(t, `"[\^~><*]|latest`, string(manifest), "versions are exact")
}

// TestFrame: what surrounds the views.
func TestFrame(t *testing.T) {
	server := serve(t)

	t.Run("the first address", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go("/")
		p.See("footer", "Connected")
		p.See("nav a[aria-current=page]", "Explore")
		assert.Equal(t, "Explore · Quern", eval[string](p, "document.title"))
		assert.NotContains(t, p.Text("body"), "version", "the version is not for strangers")
	})

	t.Run("views and steps back", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go("/explore")
		for _, view := range []string{"Dashboards", "Grinding", "Metrics", "Send"} {
			p.Do(chromedp.Click(`//nav/a[text()="` + view + `"]`))
			p.See("h1", view)
			p.Wait(`document.title.startsWith("` + view + `")`)
		}
		p.Do(chromedp.NavigateBack())
		p.See("h1", "Metrics")
		p.Go("/explore/none")
		p.See("h1", "There is nothing here")
		assert.Equal(t, 1, strings.Count(strings.Join(p.asked, "\n"), "/explore/none"))
	})

	t.Run("keyboard", func(t *testing.T) {
		p := open(t, server.URL)
		p.Go("/grinding")
		p.See("h1", "Grinding")
		p.Keys(kb.Tab)
		p.Wait(`document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0`)
		assert.NotEqual(t, "none", eval[string](p, `getComputedStyle(document.activeElement).outlineStyle`), "the focus is visible")
		p.Enter()
		p.Wait(`document.activeElement.id === "content"`)
		p.Keys("gm")
		p.See("h1", "Metrics")
		p.Keys("?")
		p.See("dialog", "Go to Grinding")
		p.Accessible("shortcuts")
		p.Shot("shortcuts")
		p.Keys("ge")
		p.Wait(`document.querySelector("dialog[open]") && location.pathname === "/metrics-explorer"`) // a dialog takes all keys
		p.Keys(kb.Escape)
		p.Wait(`!document.querySelector("dialog")`)
		p.Keys("gg")
		p.Wait(`location.pathname === "/grinding"`)

		// Who speaks to the machine may switch them off.
		p.Keys("?")
		p.Click(`dialog input[type=checkbox]`)
		p.Keys(kb.Escape)
		p.Wait(`!document.querySelector("dialog")`)
		p.Keys("ge?")
		assert.Equal(t, "/grinding", eval[string](p, "location.pathname"))
		p.Do(chromedp.Reload())
		p.See("h1", "Grinding")
		p.Keys("ge")
		assert.Equal(t, "/grinding", eval[string](p, "location.pathname"), "that is kept")
	})

	t.Run("themes", func(t *testing.T) {
		p := open(t, server.URL)
		paper := func() string { return eval[string](p, `getComputedStyle(document.documentElement).backgroundColor`) }
		const light, dark = "rgb(251, 250, 247)", "rgb(20, 24, 27)"
		p.Dark(true)
		p.Go("/grinding")
		p.See("h1", "Grinding")
		assert.Equal(t, dark, paper())
		p.Dark(false)
		p.Wait(`getComputedStyle(document.documentElement).backgroundColor === "` + light + `"`)
		p.Keys("T") // light
		p.Keys("T") // dark
		p.Wait(`getComputedStyle(document.documentElement).backgroundColor === "` + dark + `"`)
		p.Do(chromedp.Reload())
		p.See("h1", "Grinding")
		assert.Equal(t, dark, paper(), "the choice is kept")
		p.Keys("T") // as the system
		p.Wait(`getComputedStyle(document.documentElement).backgroundColor === "` + light + `"`)
	})

	t.Run("a phone's width", func(t *testing.T) {
		p := open(t, server.URL)
		p.Do(chromedp.EmulateViewport(360, 740))
		for _, path := range []string{"/explore", "/dashboards", "/grinding", "/metrics-explorer", "/send"} {
			p.Go(path)
			p.Wait(`document.querySelector("h1")`)
			p.See("footer", "Connected")
			p.Shot("phone" + strings.ReplaceAll(path, "/", "-"))
			assert.LessOrEqual(t, eval[int](p, `document.documentElement.scrollWidth`), 360, "%s scrolls sideways", path)
			p.Accessible("phone " + path)
		}
	})

	t.Run("the server goes away", func(t *testing.T) {
		server := serve(t)
		p := open(t, server.URL)
		p.Expect("ERR_CONNECTION_REFUSED")
		p.Expect("503 (Service Unavailable)") // to what the page asks while the server drains
		p.Go("/metrics-explorer")
		p.See("footer", "Connected")
		p.See("main", "Nothing is stored yet")
		server.Stop()
		p.Keys("ge")
		p.See("footer", "does not answer")
	})
}

// TestHiddenTabs: a tab that nobody sees asks nothing, but for the first look at what arrives: the later ones are compared
// with it.
func TestHiddenTabs(t *testing.T) {
	server := serve(t)
	p := open(t, server.URL)
	// The tab believes that it is hidden until show() is called. It waits little between its looks, and counts them.
	call(p, page.AddScriptToEvaluateOnNewDocument, page.AddScriptToEvaluateOnNewDocumentParams{Source: `(() => {
		let hidden = true;
		Object.defineProperty(Document.prototype, "hidden", { get: () => hidden });
		window.show = () => { hidden = false };
		window.looks = 0;
		const later = window.setTimeout.bind(window);
		window.setTimeout = (f, ms, ...more) => ms < 2000 ? later(f, ms, ...more) : later(() => { window.looks++; f() }, 20);
	})()`})
	asked := func(path string) (n int) {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, a := range p.asked {
			if strings.HasPrefix(a, path) {
				n++
			}
		}
		return n
	}
	p.Go("/send")
	p.See(".arrivals", "Waiting for the first report")
	p.Wait("window.looks > 20")
	assert.Equal(t, 1, asked("/api/v1/sources"))
	assert.Zero(t, asked("/-/ready"))
	eval[bool](p, "window.show(), true")
	p.Wait(`performance.getEntriesByType("resource").filter((e) => e.name.includes("/api/v1/sources")).length > 2`)
	p.Wait(`performance.getEntriesByType("resource").some((e) => e.name.endsWith("/-/ready"))`)

	p.Go("/grinding")
	p.See("main", "Asking")
	p.Wait("window.looks > 20")
	assert.Zero(t, asked("/api/v1/status/slices"))
	eval[bool](p, "window.show(), true")
	p.See(".tiles", "Workers")
}

// TestPolicy: the document lets the browser run only what is built in.
func TestPolicy(t *testing.T) {
	server := serve(t)
	get := func(path string, header ...string) (http.Header, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		require.NoError(t, err)
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		resp, err := process.Client.Do(req)
		require.NoError(t, err)
		defer resp.Body.Close()
		var body bytes.Buffer
		_, err = body.ReadFrom(resp.Body)
		require.NoError(t, err)
		require.Equal(t, http.StatusOK, resp.StatusCode, path)
		return resp.Header, body.String()
	}
	const browser = "text/html,application/xhtml+xml;q=0.9,*/*;q=0.8"

	_, text := get("/", "Accept", "*/*")
	assert.True(t, strings.HasPrefix(text, "Quern, a time-series store."), "programs get the list: %s", text)

	nonces := map[string]bool{}
	for _, path := range []string{"/", "/explore", "/grinding/below", "/dashboards/a/b"} {
		headers, html := get(path, "Accept", browser)
		policy := headers.Get("Content-Security-Policy")
		nonce := regexp.MustCompile(`'nonce-([A-Z2-7]{20,})'`).FindStringSubmatch(policy)
		require.NotNil(t, nonce, policy)
		assert.False(t, nonces[nonce[1]], "a nonce is used once")
		nonces[nonce[1]] = true
		assert.Contains(t, html, `nonce="`+nonce[1]+`"`)
		for _, want := range []string{"default-src 'none'", "script-src 'self';", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "require-trusted-types-for 'script'"} {
			assert.Contains(t, policy, want)
		}
		assert.NotContains(t, policy, "unsafe")
		assert.Equal(t, "nosniff", headers.Get("X-Content-Type-Options"))
		assert.NotRegexp(t, `<script(?: type="module")?>|<style| style=| on\w+=`, html, "nothing inline")
	}

	// The policy holds in the browser, too.
	p := open(t, server.URL)
	p.Expect("Content Security Policy")
	p.Expect("requires 'TrustedHTML'")
	p.Expect("Refused to")
	p.Go("/grinding")
	p.See("h1", "Grinding")
	assert.Equal(t, "refused", eval[string](p, `(() => { try { document.body.innerHTML = "<b>x</b>"; return "done" } catch { return "refused" } })()`))
	eval[bool](p, `(() => { const s = document.createElement("style"); s.textContent = "h1 { color: rgb(1, 2, 3) }"; document.head.append(s); return true })()`)
	assert.Equal(t, "refused", eval[string](p, `fetch("http://localhost:1/").then(() => "done", () => "refused")`))
	assert.NotEqual(t, "rgb(1, 2, 3)", eval[string](p, `getComputedStyle(document.querySelector("h1")).color`))
}

// altered serves what a server answers, with a path whose answer a test changes.
func altered(t *testing.T, server *process.Process, path string, change func(body []byte) []byte) string {
	t.Helper()
	to, err := url.Parse(server.URL)
	require.NoError(t, err)
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.Out.Header.Del("Accept-Encoding") // change is not given a compressed body
	}}
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Path != path {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		body = change(body)
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return nil
	}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	return front.URL
}

// TestBoundary: a view that fails says so, and the others go on.
func TestBoundary(t *testing.T) {
	p := open(t, altered(t, serve(t), wire.StatusPath, func([]byte) []byte { return []byte(`{"levels":7}`) }))
	p.Go("/grinding")
	p.See("main [role=alert]", "This view has failed")
	p.Accessible("boundary")
	p.Keys("gm")
	p.See("main", "Nothing is stored yet")
	p.Keys("gg")
	p.See("main [role=alert]", "This view has failed")
}

// TestBrokenOff: an answer that ends in the middle is no answer.
func TestBrokenOff(t *testing.T) {
	p := open(t, altered(t, serve(t), "/api/v1/query_range", func(b []byte) []byte { return b[:len(b)-5] }))
	p.Go("/explore?q=vector(1)")
	p.See(".query .under", "broke off")
}

// TestFirstView: what a browser fetches until the first view is complete, the editor included.
func TestFirstView(t *testing.T) {
	server := serve(t)
	p := open(t, server.URL)
	call(p, network.SetCacheDisabled, network.SetCacheDisabledParams{CacheDisabled: true})
	p.Go("/")
	p.See("footer", "Connected")
	p.Wait(`document.querySelector(".cm-content")`)
	process.Eventually(t, "the editor", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		for address := range p.received {
			if strings.Contains(address, "/assets/editor-") {
				return nil
			}
		}
		return errors.New("the browser has not reported how much it fetched of it")
	})
	total := int64(0)
	p.mu.Lock()
	for address, n := range p.received {
		t.Logf("%7d %s", n, strings.TrimPrefix(address, server.URL))
		total += n
	}
	p.mu.Unlock()
	t.Logf("%7d bytes in all", total)
	assert.Positive(t, total)
	assert.LessOrEqual(t, total, int64(300_000))

	for name, contents := range files(t, "../../internal/api/page/dist") {
		if filepath.Ext(name) == ".js" {
			var zipped bytes.Buffer
			w := gzip.NewWriter(&zipped)
			_, err := w.Write(contents)
			require.NoError(t, err)
			require.NoError(t, w.Close())
			t.Logf("%7d of %7d %s", zipped.Len(), len(contents), name)
		}
	}
}
