package api_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/client/pipes"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/protocol/collectd"
	"github.com/quern/quern/internal/protocol/remotewrite"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
)

// reply reads the reply to a request.
func reply(t *testing.T, conn net.Conn) (code int, body string) {
	t.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, string(text)
}

func takesAll(o *api.Options) {
	b := &apitest.BackFiller{}
	o.Appender, o.BackFiller = b, b
	o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
		to.HandleFunc(access.Read, route.Filtered, "POST /form", func(w http.ResponseWriter, r *http.Request) { respond.Text(w, 200, r.FormValue("x")) })
	})}
}

// TestSilentBodies: if a client stops sending an announced body, it gets a reply, and the
// connection ends.
func TestSilentBodies(t *testing.T) {
	apitest.InBubble(t, takesAll, func(t *testing.T, dial func() net.Conn) {
		for _, c := range []struct {
			path, header string
			body         []byte
			code         int
		}{
			{wire.ReportsPath, "Content-Length: 1000", []byte(apitest.OneReport), 408},
			{wire.ReportsPath, "Content-Length: 1000", nil, 408},
			{wire.ReportsPath, "Transfer-Encoding: chunked", []byte("4\r\n[   \r\n"), 408},
			{wire.ReportsPath, "Content-Encoding: gzip\r\nContent-Length: 1000", apitest.Compressed(t, "gzip", []byte(apitest.OneReport))[:20], 408},
			{remotewrite.Path, "Content-Length: 1000", []byte("x"), 408},
			{"/write", "Content-Length: 1000", []byte("m v=1\n"), 503},
			{"/api/v2/write", "Content-Length: 1000", []byte("m v=1\n"), 408},
			{"/v1/metrics", "Content-Type: application/json\r\nContent-Length: 1000", []byte("{"), 408},
			{collectd.Path, "Content-Length: 1000", []byte("["), 408},
			{wire.ImportPath, "Content-Length: 1000", []byte("{"), 408},
			{wire.ImportPath, "Content-Encoding: gzip\r\nContent-Length: 1000", apitest.Compressed(t, "gzip", apitest.PlainBody(100))[:20], 408},
			{wire.ImportPath, "Content-Encoding: zstd\r\nContent-Length: 1000", apitest.Compressed(t, "zstd", apitest.PlainBody(100))[:20], 408},
			{"/form", "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000", []byte("x="), 408},
			// No handler reads these bodies; the HTTP server reads them before it answers.
			{wire.ReportsPath, "Content-Encoding: lzma\r\nContent-Length: 1000", []byte("x"), 415},
			{"/nothing", "Content-Length: 1000", []byte("x"), 404},
		} {
			conn := dial()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n%s", c.path, c.header, c.body)
			code, body := reply(t, conn)
			require.Equal(t, c.code, code, "%s %s: %s", c.path, c.header, body)
			_, err := conn.Read(make([]byte, 1))
			require.Error(t, err, "%s: the connection goes on", c.path)
		}
	})
}

// TestSlowBodies: a body may take any time, as long as it progresses.
func TestSlowBodies(t *testing.T) {
	apitest.InBubble(t, takesAll, func(t *testing.T, dial func() net.Conn) {
		send := func(piece int, pause time.Duration) int {
			body := append([]byte(apitest.OneReport), bytes.Repeat([]byte("\n"), 1<<20)...)
			conn := dial()
			answered := make(chan int, 1)
			go func() {
				defer close(answered)
				resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				answered <- resp.StatusCode
			}()
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", wire.ReportsPath, len(body))
			for len(body) > 0 {
				n := min(piece, len(body))
				if _, err := conn.Write(body[:n]); err != nil {
					break // the server gave it up
				}
				body = body[n:]
				time.Sleep(pause)
			}
			return <-answered
		}
		require.Equal(t, 200, send(api.ProgressBytes, 29*time.Second))
		require.Equal(t, 200, send(api.ProgressBytes/16, time.Second))
		require.Equal(t, 408, send(api.ProgressBytes/32, time.Second))
	})
}

// TestContinue: a client that waits for "100 Continue" gets it, even after the connection was idle
// for long.
func TestContinue(t *testing.T) {
	apitest.InBubble(t, takesAll, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		in := bufio.NewReader(conn)
		for range 2 {
			fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", wire.ReportsPath, len(apitest.OneReport))
			line, err := in.ReadString('\n')
			require.NoError(t, err)
			require.Contains(t, line, "100 Continue")
			_, err = in.ReadString('\n')
			require.NoError(t, err)
			_, err = io.WriteString(conn, apitest.OneReport)
			require.NoError(t, err)
			resp, err := http.ReadResponse(in, nil)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, 200, resp.StatusCode)
			time.Sleep(time.Minute)
		}
	})
}

// TestSlowAppender: the server's own time does not count against the client, and the request does
// not end.
func TestSlowAppender(t *testing.T) {
	slow := func(ctx context.Context) error {
		select {
		case <-time.After(10 * time.Minute):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	apitest.InBubble(t, func(o *api.Options) {
		takesAll(o)
		o.Appender = &slowAppender{wait: slow}
	}, func(t *testing.T, dial func() net.Conn) {
		conn := dial()
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", wire.ReportsPath, len(apitest.OneReport), apitest.OneReport)
		code, body := reply(t, conn)
		require.Equal(t, 200, code, body)
	})
}

type slowAppender struct {
	apitest.AcceptAll
	wait func(context.Context) error
}

func (a *slowAppender) Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	if err := a.wait(ctx); err != nil {
		return ingest.Result{}, err
	}
	return a.AcceptAll.Append(ctx, reports)
}

// deaf is a client's connection that reads nothing once it is deaf.
type deaf struct {
	net.Conn
	deaf, closed chan struct{}
	end          func()
}

func newDeaf(conn net.Conn) *deaf {
	d := &deaf{Conn: conn, deaf: make(chan struct{}), closed: make(chan struct{})}
	d.end = sync.OnceFunc(func() { close(d.closed) })
	return d
}

// Read implements net.Conn.
func (d *deaf) Read(p []byte) (int, error) {
	select {
	case <-d.deaf:
		<-d.closed
		return 0, net.ErrClosed
	default:
		return d.Conn.Read(p)
	}
}

// Close implements net.Conn.
func (d *deaf) Close() error {
	d.end()
	return d.Conn.Close()
}

// TestUnreadRepliesHTTP2: all replies on a connection of HTTP/2 end when its client reads nothing any more.
func TestUnreadRepliesHTTP2(t *testing.T) {
	const streams = 3
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan error, streams)
		s := apitest.Server(t, func(o *api.Options) {
			o.Clock = clock.System{}
			o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
				to.HandleFunc(access.Read, route.NoData, "GET /long", func(w http.ResponseWriter, _ *http.Request) {
					_, err := io.WriteString(w, strings.Repeat("x", 8<<20))
					ended <- err
				})
			})}
		})
		l, served := pipes.Listen(), make(chan struct{})
		srv := s.HTTPServer()
		srv.Protocols = new(http.Protocols)
		srv.Protocols.SetUnencryptedHTTP2(true)
		go func() {
			defer close(served)
			_ = srv.Serve(l)
		}()
		var conn *deaf
		client := &http.Transport{Protocols: srv.Protocols, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			c, err := l.Dial(ctx, "", "")
			conn = newDeaf(c)
			return conn, err
		}}
		ask := func(path string) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, nil)
			require.NoError(t, err)
			if resp, err := client.RoundTrip(r); err == nil {
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
			}
		}
		ask("/-/healthy") // the connection is there
		synctest.Wait()
		close(conn.deaf)
		var asked sync.WaitGroup
		defer func() {
			assert.NoError(t, conn.Close())
			asked.Wait()
			client.CloseIdleConnections()
			assert.NoError(t, srv.Close())
			<-served
		}()
		for range streams {
			asked.Go(func() { ask("/long") })
		}
		for range streams {
			require.Error(t, <-ended)
		}
	})
}

// TestUnreadReplies: a reply that the client does not read ends, and so does a reply that it reads
// too slowly.
func TestUnreadReplies(t *testing.T) {
	const size = 4 << 20
	var ended chan error
	set := func(o *api.Options) {
		ended = make(chan error, 1)
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			to.HandleFunc(access.Read, route.Filtered, "GET /long", func(w http.ResponseWriter, _ *http.Request) {
				_, err := io.WriteString(w, strings.Repeat("x", size))
				ended <- err
			})
			to.HandleFunc(access.Read, route.Filtered, "GET /flushed", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "x")
				w.(http.Flusher).Flush()
				_, err := io.WriteString(w, strings.Repeat("x", 64<<10))
				ended <- err
			})
		})}
	}
	read := func(t *testing.T, dial func() net.Conn, piece int, pause time.Duration) {
		t.Helper()
		conn := dial()
		fmt.Fprintf(conn, "GET /long HTTP/1.1\r\nHost: localhost\r\n\r\n")
		buf := make([]byte, piece)
		for {
			time.Sleep(pause)
			if _, err := io.ReadFull(conn, buf); err != nil {
				return
			}
			if len(ended) > 0 {
				return
			}
		}
	}
	apitest.InBubble(t, set, func(t *testing.T, dial func() net.Conn) {
		for _, path := range []string{"/long", "/flushed"} {
			fmt.Fprintf(dial(), "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", path)
			require.Error(t, <-ended)
		}
		// A client sends request after request and reads no reply. Small replies wait in a buffer
		// until their handler has ended.
		conn := dial()
		var err error
		for range 1000 {
			if _, err = io.WriteString(conn, "GET /-/healthy HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				break
			}
		}
		require.Error(t, err, "it has been given up")

		read(t, dial, api.ProgressBytes/32, time.Second)
		require.Error(t, <-ended)
		read(t, dial, api.ProgressBytes, 10*time.Second)
		require.NoError(t, <-ended)
	})
}
