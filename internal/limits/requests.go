package limits

import (
	"net/http"
	"sync"
)

// Requests bounds the requests in progress, of which one connection of HTTP/2 has many.
type Requests struct {
	clients *Clients
	refuse  http.Handler

	mu              sync.Mutex
	served, refused holdings
}

// NewRequests bounds requests to most. refuse answers those beyond it, of which as many may wait for their clients;
// the rest is broken off.
func NewRequests(most int, clients *Clients, refuse http.Handler) *Requests {
	n := int64(most)
	return &Requests{clients: clients, refuse: refuse, served: newHoldings(n, half(n)), refused: newHoldings(n, half(n))}
}

// Limit returns a handler that passes requests to next.
func (q *Requests) Limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, h := q.clients.Of(r.RemoteAddr), next
		give, ok := q.take(&q.served, client)
		if !ok {
			h = q.refuse
			if give, ok = q.take(&q.refused, client); !ok {
				panic(http.ErrAbortHandler)
			}
		}
		defer give()
		h.ServeHTTP(w, r)
		if r.ProtoMajor > 1 {
			// What has arrived of a body that nobody will read is let go first.
			_ = r.Body.Close() // it never fails
			// What is left would wait for the client after the handler, where nobody counts it.
			_ = http.NewResponseController(w).Flush()
		}
	})
}

func (q *Requests) take(of *holdings, c Client) (give func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !of.take(c, 1) {
		return nil, false
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		of.give(c, 1)
	}, true
}
