package integration

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

// gate is a proxy in front of a server that can hold a response back. A client that waits for the
// response is then certainly at that point when the test does something to it.
type gate struct {
	URL string

	to   atomic.Pointer[url.URL]
	next atomic.Pointer[hold]
}

// newGate starts a gate. It ends with the test.
func newGate(t *testing.T, to *process.Process) *gate {
	t.Helper()
	g := &gate{}
	g.leadTo(t, to)
	front := httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:        func(r *httputil.ProxyRequest) { r.SetURL(g.to.Load()) },
		Transport:      process.Client.Transport,
		ModifyResponse: func(r *http.Response) error { g.answer(r); return nil },
		// As if the server itself is not there.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	})
	t.Cleanup(front.Close)
	g.URL = front.URL
	return g
}

// leadTo makes the gate lead to another server.
func (g *gate) leadTo(t *testing.T, p *process.Process) {
	t.Helper()
	u, err := url.Parse(p.URL)
	require.NoError(t, err)
	g.to.Store(u)
}

// hold is a held response.
type hold struct {
	when  func() bool
	after int64
	at    chan struct{}
	on    chan struct{}
}

// hold holds the first response for which when returns true, after the given number of bytes.
func (g *gate) hold(after int64, when func() bool) *hold {
	h := &hold{when, after, make(chan struct{}), make(chan struct{})}
	g.next.Store(h)
	return h
}

func (g *gate) answer(r *http.Response) {
	h := g.next.Load()
	if h == nil || !h.when() || !g.next.CompareAndSwap(h, nil) {
		return
	}
	body, ctx := r.Body, r.Request.Context()
	wait := reading(func() (int, error) {
		close(h.at)
		select {
		case <-h.on:
			return 0, io.EOF
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	})
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(io.LimitReader(body, h.after), wait, body), body}
}

// reading is a reader from a function.
type reading func() (int, error)

func (r reading) Read([]byte) (int, error) { return r() }

// await waits until the response to p is held.
func (h *hold) await(t *testing.T, p *process.Process) {
	t.Helper()
	select {
	case <-h.at:
	case <-p.Ended:
		require.Fail(t, "it has ended before", "%s", &p.Stderr)
	case <-time.After(process.Limit):
		require.Fail(t, "no answer to be held")
	}
}

// goOn lets the rest of the response pass.
func (h *hold) goOn() { close(h.on) }
