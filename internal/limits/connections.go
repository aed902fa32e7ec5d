package limits

import (
	"net"
	"net/http"
	"sync"
)

// sendBytes is how much the system may hold of data that a client does not read. A client must also
// read this much before the system reports that there is room again.
const sendBytes = 128 << 10

// Listener bounds the connections of a listener. It refuses and closes connections beyond the
// bound.
type Listener struct {
	net.Listener
	clients *Clients
	refuse  func(net.Conn)
	open    *Budget
}

// Limit bounds the connections of l to most. refuse may tell a client the reason, without waiting
// for it; nil tells nothing.
func Limit(l net.Listener, most int, clients *Clients, refuse func(net.Conn)) *Listener {
	return &Listener{Listener: l, clients: clients, refuse: refuse, open: NewBudget(int64(most), 1)}
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBytes) // an error is harmless: the system's default size works too
		}
		client := l.clients.ByAddress(conn.RemoteAddr().String())
		if l.open.try(client, 1) {
			return &counted{Conn: conn, give: sync.OnceFunc(func() { l.open.give(client, 1) })}, nil
		}
		if l.refuse != nil {
			l.refuse(conn)
		}
		_ = conn.Close() // no caller is there to receive the error
	}
}

// counted is a connection that gives back its place when it is closed.
type counted struct {
	net.Conn
	give func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	defer c.give()
	return c.Conn.Close()
}

// CloseWrite lets an HTTP server end its side first, so that a client that still sends reads the reply.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}

// Requests bounds the requests in progress, of which one connection of HTTP/2 has many.
type Requests struct {
	clients         *Clients
	refuse          http.Handler
	served, refused *Budget
}

// NewRequests bounds requests to most. refuse answers those beyond it, of which as many may wait for their clients;
// the rest is broken off.
func NewRequests(most int, clients *Clients, refuse http.Handler) *Requests {
	return &Requests{clients: clients, refuse: refuse, served: NewBudget(int64(most), 1), refused: NewBudget(int64(most), 1)}
}

// Limit returns a handler that passes requests to next.
func (q *Requests) Limit(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, budget, h := q.clients.ByAddress(r.RemoteAddr), q.served, next
		if !budget.try(client, 1) {
			budget, h = q.refused, q.refuse
			if !budget.try(client, 1) {
				panic(http.ErrAbortHandler)
			}
		}
		defer budget.give(client, 1)
		h.ServeHTTP(w, r)
		if r.ProtoMajor > 1 {
			// What has arrived of a body that nobody will read is let go first.
			_ = r.Body.Close() // it never fails
			// What is left would wait for the client after the handler, where nobody counts it.
			_ = http.NewResponseController(w).Flush()
		}
	})
}
