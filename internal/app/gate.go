package app

import (
	"net/http"
	"sync"
	"sync/atomic"
)

// gate lets requests through to a handler that may be replaced, until it is closed,
// which waits for those within.
type gate struct {
	handler atomic.Pointer[http.Handler]

	mu     sync.RWMutex
	closed bool
}

// lead has the requests that come from now on answered by h.
func (g *gate) lead(h http.Handler) { g.handler.Store(&h) }

// ServeHTTP implements http.Handler.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		panic(http.ErrAbortHandler)
	}
	(*g.handler.Load()).ServeHTTP(w, r)
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}
