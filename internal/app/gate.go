package app

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
)

// gate passes requests to a handler, which may be replaced. close waits for the requests inside, and
// lets no later ones in.
type gate struct {
	handler atomic.Pointer[http.Handler]

	mu     sync.RWMutex
	closed bool
}

// lead routes later requests to h.
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

// close returns whether all requests have left before ctx is done. Otherwise it goes on waiting for them.
func (g *gate) close(ctx context.Context) bool {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.closed = true
	}()
	select {
	case <-closed:
		return true
	case <-ctx.Done():
		return false
	}
}

// condition holds why the process cannot serve now, or nil.
type condition struct{ err atomic.Pointer[error] }

func (c *condition) set(err error) { c.err.Store(&err) }

func (c *condition) get() error {
	if err := c.err.Load(); err != nil {
		return *err
	}
	return nil
}

var errOpening = errors.New("the store is being opened")
