package apitest

import (
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/clock"
)

// InBubble runs a test with a server on connections that have no buffers: a write returns when the
// data has been read. Time advances only when everything is blocked; deadlines use it too.
func InBubble(t *testing.T, set func(*api.Options), test func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := Server(t, func(o *api.Options) {
			o.Clock = clock.System{}
			set(o)
		})
		l := newPipes()
		srv := s.HTTPServer()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = srv.Serve(l)
		}()
		defer func() {
			require.NoError(t, srv.Close())
			<-ended
		}()
		test(t, func() net.Conn {
			c := l.dial()
			t.Cleanup(func() { _ = c.Close() })
			return c
		})
	})
}

// pipes is a listener of connections within the process.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  func()
}

func newPipes() *pipes {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	p.close = sync.OnceFunc(func() { close(p.closed) })
	return p
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error { p.close(); return nil }

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9095} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}
