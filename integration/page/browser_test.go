// Package page tests the page in a real browser, Chromium, against real servers. A test fails if the browser reports an
// error, if the page asks another server for anything, or if it breaks the policy that the server sends.
//
// Chromium is the program chromium, or that of QUERN_CHROMIUM.
//
// With -shots DIR the tests write pictures of what they see.
package page

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

var (
	shots = flag.String("shots", "", "the directory for pictures")
	limit = flag.Duration("limit", process.Limit, "how long to wait for what the page is to show")
)

var (
	programs *process.Programs
	chromium context.Context // the browser that all tests share
)

func TestMain(m *testing.M) {
	flag.Parse()
	path := os.Getenv("QUERN_CHROMIUM")
	if path == "" {
		path = "chromium"
	}
	path, err := exec.LookPath(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "the tests of the page need Chromium: install Debian's package chromium, or name the program in QUERN_CHROMIUM:", err)
		os.Exit(1)
	}
	os.Exit(func() int {
		options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path),
			chromedp.Flag("disable-dev-shm-usage", true), // containers have little of it
			chromedp.Flag("disable-component-update", true),
			chromedp.Flag("force-color-profile", "srgb"),
			chromedp.Env("TZ=UTC"))
		if os.Geteuid() == 0 {
			options = append(options, chromedp.NoSandbox) // Chromium's own sandbox refuses root
		}
		allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
		defer stop()
		var end context.CancelFunc
		chromium, end = chromedp.NewContext(allocator)
		defer end()
		if err := chromedp.Do(chromium); err != nil {
			fmt.Fprintln(os.Stderr, "Chromium does not start:", err)
			return 1
		}
		return process.Tests{M: m, Use: func(p *process.Programs) { programs = p }}.Run()
	}())
}

// serve starts a server, which ends with the test.
func serve(t testing.TB, flags ...string) *process.Process {
	t.Helper()
	p := process.Start(t, exec.CommandContext(t.Context(), programs.Quern, append([]string{
		"serve", "--listen", "127.0.0.1:0", "--data-dir", filepath.Join(t.TempDir(), "data"), "--host-metrics=false",
	}, flags...)...))
	p.Ready()
	return p
}

// Page is a tab with its own storage. It sees what the page does.
type Page struct {
	t   testing.TB
	ctx context.Context
	url string // of the server

	mu       sync.Mutex
	problems []string
	expected []string // parts of the problems that the test causes on purpose
	requests map[network.RequestID]string
	asked    []string // the paths with parameters, in order
	received map[string]int64
	leaving  int // how often the browser has asked whether to leave
}

// open makes a tab of a desktop's size.
func open(t testing.TB, server string) *Page {
	t.Helper()
	p := &Page{t: t, url: server, requests: map[network.RequestID]string{}, received: map[string]int64{}}
	ctx, cancel := chromedp.NewContext(chromium, chromedp.WithNewBrowserContext(), chromedp.WithListener(p.see))
	t.Cleanup(cancel)
	p.ctx = ctx
	// The tab lives as long as the context of the first action, so that has no limit.
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(1360, 900)))
	call(p, network.Enable, network.EnableParams{})
	call(p, log.Enable, cdp.Empty{})
	t.Cleanup(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, problem := range p.problems {
			if !p.expects(problem) {
				t.Errorf("the browser reports: %s", problem)
			}
		}
	})
	return p
}

func (p *Page) expects(problem string) bool {
	for _, part := range p.expected {
		if strings.Contains(problem, part) {
			return true
		}
	}
	return false
}

// Expect says that the test causes a problem on purpose.
func (p *Page) Expect(part string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expected = append(p.expected, part)
}

func (p *Page) see(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		text := e.ExceptionDetails.Text
		if e.ExceptionDetails.Exception != nil {
			text += " " + e.ExceptionDetails.Exception.Description
		}
		p.problems = append(p.problems, "an exception: "+text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning || e.Type == runtime.ConsoleAPICalledTypeAssert {
			args, _ := json.Marshal(e.Args)
			p.problems = append(p.problems, fmt.Sprintf("console.%s: %s", e.Type, args))
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			problem := fmt.Sprintf("%s: %s (%s)", e.Entry.Source, e.Entry.Text, e.Entry.URL)
			if e.Entry.StackTrace != nil {
				for _, f := range e.Entry.StackTrace.CallFrames {
					problem += fmt.Sprintf("\n\tat %s %s:%d:%d", f.FunctionName, f.URL, f.LineNumber, f.ColumnNumber)
				}
			}
			p.problems = append(p.problems, problem)
		}
	case *network.EventRequestWillBeSent:
		p.requests[e.RequestID] = e.Request.URL
		to, err := url.Parse(e.Request.URL)
		switch {
		case err != nil || (to.Scheme != "data" && to.Scheme != "blob" && "http://"+to.Host != p.url && e.Request.URL != "about:blank"):
			p.problems = append(p.problems, "a request to elsewhere: "+e.Request.URL)
		case to.Host != "":
			p.asked = append(p.asked, to.RequestURI())
		}
	case *page.EventJavascriptDialogOpening:
		p.leaving++
		// The browser waits for the answer, and so would the one who listens.
		go func() {
			_, _ = chromedp.Call(p.ctx, page.HandleJavaScriptDialog, page.HandleJavaScriptDialogParams{Accept: true})
		}()
	case *network.EventLoadingFinished:
		p.received[p.requests[e.RequestID]] += int64(e.EncodedDataLength)
	}
}

// call sends a command of the browser's protocol.
func call[P, R any](p *Page, cmd cdp.Command[P, R], params P) R {
	p.t.Helper()
	out, err := chromedp.Call(p.ctx, cmd, params)
	require.NoError(p.t, err)
	return out
}

// Do runs actions.
func (p *Page) Do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, *limit)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		p.fail(err)
	}
}

func (p *Page) fail(err error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, 5*time.Second)
	defer cancel()
	shown, _ := chromedp.Run(ctx, chromedp.Evaluate[string](`location.href + "\n" + document.body.innerText`))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NoError(p.t, err, "the page shows:\n%s\nproblems: %q", shown, p.problems)
}

// Go shows an address of the server.
func (p *Page) Go(path string) {
	p.t.Helper()
	p.Do(chromedp.Navigate(p.url + path))
}

// Wait waits until an expression in JavaScript is true. The page may be loaded anew meanwhile.
func (p *Page) Wait(condition string) {
	p.t.Helper()
	// The page may not evaluate texts, so this is a promise and no function that is sent as a text.
	ctx, cancel := context.WithTimeout(p.ctx, *limit)
	defer cancel()
	look := chromedp.Evaluate[bool](`new Promise((done, failed) => {
		const look = () => { try { (`+condition+`) ? done(true) : setTimeout(look, 15) } catch (err) { failed(err) } };
		look();
	})`, chromedp.EvalAwaitPromise)
	_, err := chromedp.Run(ctx, look)
	for err != nil && strings.Contains(err.Error(), "Inspected target navigated") {
		_, err = chromedp.Run(ctx, look)
	}
	if err != nil {
		p.fail(fmt.Errorf("waiting for %s: %w", condition, err))
	}
}

// See waits until the text of the first element that matches contains a text.
func (p *Page) See(selector, text string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf(`document.querySelector(%q)?.innerText.includes(%q)`, selector, text))
}

// Click clicks the middle of the first element that matches, once nothing covers it.
func (p *Page) Click(selector string) {
	p.t.Helper()
	p.click(fmt.Sprintf(`document.querySelector(%q)`, selector))
}

// Press clicks the first button, link or labelled box with a name, within the dialog if there is one.
func (p *Page) Press(name string) {
	p.t.Helper()
	p.click(fmt.Sprintf(`[...(document.querySelector("dialog[open]") ?? document).querySelectorAll("button, a, label.check")]
		.find((e) => (e.getAttribute("aria-label") ?? e.innerText.trim().replace(/\s+/g, " ")) === %q && !e.disabled && e.getBoundingClientRect().width > 0)`, name))
}

// Fill types a text instead of the one in a field.
func (p *Page) Fill(selector, text string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf(`document.querySelector(%q)`, selector))
	p.Do(chromedp.Focus(chromedp.CSS(selector)), chromedp.KeyEvent("a", chromedp.KeyModifiers(chromedp.ModifierCtrl)))
	p.Keys(text)
}

// Select chooses a value of a list.
func (p *Page) Select(selector, value string) {
	p.t.Helper()
	p.Wait(fmt.Sprintf(`[...document.querySelector(%q)?.options ?? []].some((o) => o.value === %q)`, selector, value))
	eval[bool](p, fmt.Sprintf(`(() => { const s = document.querySelector(%q); s.value = %q; return s.dispatchEvent(new Event("change", { bubbles: true })) })()`, selector, value))
}

// click clicks the middle of what a script finds, once nothing covers it.
func (p *Page) click(find string) {
	p.t.Helper()
	p.Wait(`(() => {
		const e = ` + find + `;
		if (!e || e.disabled) return false;
		e.scrollIntoView({block: "nearest"});
		const r = e.getBoundingClientRect();
		return r.width > 0 && e.contains(document.elementFromPoint(r.left + r.width / 2, r.top + r.height / 2));
	})()`)
	at := eval[[]float64](p, `(() => { const r = `+find+`.getBoundingClientRect(); return [r.left + r.width / 2, r.top + r.height / 2] })()`)
	p.Do(chromedp.MouseClickXY(at[0], at[1]))
}

// Keys types into whatever has the focus.
func (p *Page) Keys(keys string) {
	p.t.Helper()
	p.Do(chromedp.KeyEvent(keys))
}

// Enter presses the key.
func (p *Page) Enter() {
	p.t.Helper()
	p.press("Enter", "Enter", "\r", 13)
}

// press presses a key as a keyboard does: what handles the key keeps its text out of the field.
func (p *Page) press(key, code, text string, n int64) {
	p.t.Helper()
	for _, e := range []input.DispatchKeyEventParams{{Type: input.DispatchKeyEventTypeKeyDown, Text: text}, {Type: input.DispatchKeyEventTypeKeyUp}} {
		e.Key, e.Code, e.WindowsVirtualKeyCode, e.NativeVirtualKeyCode = key, code, n, n
		call(p, input.DispatchKeyEvent, e)
	}
}

// Text returns the text of the first element that matches.
func (p *Page) Text(selector string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`document.querySelector(%q)?.innerText ?? ""`, selector))
}

// Parameter returns a parameter of the address.
func (p *Page) Parameter(name string) string {
	p.t.Helper()
	return eval[string](p, fmt.Sprintf(`new URLSearchParams(location.search).get(%q) ?? ""`, name))
}

func eval[T any](p *Page, script string) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, *limit)
	defer cancel()
	out, err := chromedp.Run(ctx, chromedp.Evaluate[T](script, chromedp.EvalAwaitPromise))
	if err != nil {
		p.fail(fmt.Errorf("%s: %w", script, err))
	}
	return out
}

// Dark makes the system's theme dark or light.
func (p *Page) Dark(dark bool) {
	p.t.Helper()
	value := "light"
	if dark {
		value = "dark"
	}
	call(p, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: value}}})
}

// Shot takes a picture, if the flag -shots is set.
func (p *Page) Shot(name string) {
	p.t.Helper()
	if *shots == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.CaptureScreenshot())
	require.NoError(p.t, err)
	require.NoError(p.t, os.WriteFile(filepath.Join(*shots, name+".png"), png, 0o644))
}

// axe is the checker for accessibility, which is injected past the page's policy. It is one of the packages in web/, which
// are installed if they are not there.
var axe = sync.OnceValues(func() (string, error) {
	const name = "../../web/node_modules/axe-core/axe.min.js"
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		install := exec.Command("npm", "ci")
		install.Dir = "../../web"
		if out, err := install.CombinedOutput(); err != nil {
			return "", fmt.Errorf("npm ci: %w: %s", err, out)
		}
		text, err = os.ReadFile(name)
	}
	return string(text), err
})

// Accessible fails the test if axe finds something serious.
func (p *Page) Accessible(view string) {
	p.t.Helper()
	script, err := axe()
	require.NoError(p.t, err)
	eval[int](p, script+"\n;0")
	type violation struct {
		ID     string `json:"id"`
		Impact string `json:"impact"`
		Help   string `json:"help"`
		Nodes  []struct {
			HTML           string `json:"html"`
			FailureSummary string `json:"failureSummary"`
		} `json:"nodes"`
	}
	for _, v := range eval[[]violation](p, `axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations)`) {
		if v.Impact == "serious" || v.Impact == "critical" {
			assert.Fail(p.t, view+": "+v.Help, "%s (%s): %+v", v.ID, v.Impact, v.Nodes)
		} else {
			p.t.Logf("%s: %s (%s, %s): %+v", view, v.Help, v.ID, v.Impact, v.Nodes)
		}
	}
}

// BothThemes checks the accessibility of what is shown in both themes, and takes pictures.
func (p *Page) BothThemes(view string) {
	p.t.Helper()
	for _, dark := range []bool{false, true} {
		p.Dark(dark)
		name := view + map[bool]string{false: "-light", true: "-dark"}[dark]
		p.Wait(fmt.Sprintf(`matchMedia("(prefers-color-scheme: dark)").matches === %t && !document.getAnimations().some((a) => a instanceof CSSTransition)`, dark))
		p.Shot(name)
		p.Accessible(name)
	}
	p.Dark(false)
}
