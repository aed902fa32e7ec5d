package limits

import (
	"net"
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

	mu   sync.Mutex
	open holdings
}

// Limit bounds the connections of l to most. refuse may tell a client the reason, without waiting
// for it; nil tells nothing.
func Limit(l net.Listener, most int, clients *Clients, refuse func(net.Conn)) *Listener {
	return &Listener{Listener: l, clients: clients, refuse: refuse, open: newHoldings(int64(most), half(int64(most)))}
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
		client := l.clients.Of(conn.RemoteAddr().String())
		l.mu.Lock()
		ok := l.open.take(client, 1)
		l.mu.Unlock()
		if ok {
			return &counted{Conn: conn, give: sync.OnceFunc(func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				l.open.give(client, 1)
			})}, nil
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
