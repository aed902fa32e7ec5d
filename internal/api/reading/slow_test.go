package reading_test

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/clock"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// progressBytes is what a client must read in each window.
const progressBytes = 64 << 10

// readNow is the time of the tests: 12:00 UTC.
var readNow = time.Date(2025, 11, 21, 12, 0, 0, 0, time.UTC)

type registrar func(mux *http.ServeMux)

func (r registrar) Register(mux *http.ServeMux) { r(mux) }

// pipes is a listener whose connections have no buffers: a write returns when the data has been
// read. Deadlines use the clock of a synctest bubble.
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

// inBubble runs a test with a server on pipes. Time advances only when everything is blocked.
func inBubble(t *testing.T, set func(*api.Options), test func(t *testing.T, dial func() net.Conn)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := api.Options{Clock: clock.System{}, Logger: slog.New(slog.DiscardHandler)}
		set(&opts)
		s, err := api.New(opts)
		require.NoError(t, err)
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

// TestSlowReadersOfQueries: the turn of a query is not held for as long as a client cares to read: the reply ends soon after the
// query's time, unless it is read well.
func TestSlowReadersOfQueries(t *testing.T) {
	const timeout = 10 * time.Second
	turns := reading.Turns{Queries: admission.NewTurns(1, "queries", 0, admission.NewClients(nil), nil), QueryTimeout: timeout}
	const count = 40
	line := strings.Repeat("x", 1<<20)
	var ended chan error
	set := func(o *api.Options) {
		ended = make(chan error, 1)
		answer := func(writeLine func(string) error) (err error) {
			defer func() { ended <- err }()
			for range count {
				if err := writeLine(line); err != nil {
					return err
				}
			}
			return nil
		}
		o.Extra = []api.Registrar{registrar(func(mux *http.ServeMux) { mux.Handle("GET /query", turns.Query(answer)) })}
	}
	inBubble(t, set, func(t *testing.T, dial func() net.Conn) {
		receive := func(piece int, pause time.Duration) (took time.Duration, err error) {
			began := time.Now()
			conn := dial()
			fmt.Fprintf(conn, "GET /query HTTP/1.1\r\nHost: localhost\r\n\r\n")
			go func() {
				buf := make([]byte, piece)
				for {
					if _, err := io.ReadFull(conn, buf); err != nil {
						return
					}
					time.Sleep(pause)
				}
			}()
			err = <-ended
			took = time.Since(began)
			give, turned := turns.Queries.Take(t.Context(), "")
			require.NoError(t, turned)
			give()
			_ = conn.Close()
			return took, err
		}
		for _, pause := range []time.Duration{25 * time.Second, time.Second} {
			took, err := receive(progressBytes, pause)
			require.Error(t, err)
			require.Less(t, took, 2*(timeout+30*time.Second), pause)
		}
		took, err := receive(progressBytes, 100*time.Millisecond)
		require.NoError(t, err)
		require.Greater(t, took, timeout+30*time.Second, "it has longer than that as long as it is read")
	})
}
