package api_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits/admission"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
)

// long stores an hour of samples of a series, some MB of an export.
func (s *readServer) long(id metric.ScheduleID) {
	sliceMs := apitest.Now.Add(-time.Hour).UnixMilli()
	samples := make([]metric.Sample, 200_000)
	for i := range samples {
		samples[i] = metric.Sample{Schedule: id, TimeMs: sliceMs + int64(i), Value: float64(i)}
	}
	require.NoError(s.t, s.store.Write(s.t.Context(), &storage.Batch{
		Open: []storage.SliceKey{{StartMs: sliceMs}},
		Raw: []storage.RawChunk{{
			Group: id - id%8, SliceMs: sliceMs,
			Chunk: storage.Chunk{ID: s.ids.Next(apitest.Now.UnixMilli()), Data: blocks.AppendSamples(nil, samples)},
		}},
	}))
}

// gauge returns the value of a gauge for one kind of turns.
func gauge(t *testing.T, g prometheus.Gatherer, name, kind string) int {
	families, err := g.Gather()
	require.NoError(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == kind {
				return int(m.GetGauge().GetValue())
			}
		}
	}
	return 0
}

// TestStalledExports: exports that nobody reads hold only what their turns allow, however many they
// are, and in the end release it.
func TestStalledExports(t *testing.T) {
	const turns = 2
	held := func(stalled int, stall time.Duration, do func(s *readServer, metrics *prometheus.Registry)) (heap uint64) {
		metrics, clients := prometheus.NewRegistry(), admission.NewClients(admission.Loopback())
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var web *http.Server
		s := newReadServerWith(t, nil, reading.Turns{
			Queries: admission.NewTurns(admission.TurnOptions{N: turns, Name: "queries", Wait: time.Minute, Clients: clients, Metrics: metrics}),
			Exports: admission.NewTurns(admission.TurnOptions{N: turns, Name: "exports", Wait: time.Minute, Clients: clients, Metrics: metrics}),
		}, func(s *api.Server) string {
			web = api.NewHTTPServer(s, api.Serving{
				Clock: clock.System{}, Logger: s.Opts().Logger, Stall: stall, Clients: clients, Requests: 1000,
			})
			go func() { _ = web.Serve(admission.Limit(l, 1000, clients, api.RefuseConnection)) }()
			return "http://" + l.Addr().String()
		})
		defer web.Close()
		s.series(1, "__name__", "cpu")
		s.long(1)
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for range stalled {
			conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
			fmt.Fprintf(conn, "GET /api/v1/export?match[]=cpu&start=%d HTTP/1.1\r\nHost: localhost\r\n\r\n", apitest.Now.Add(-2*time.Hour).UnixMilli())
		}
		do(s, metrics)
		runtime.GC()
		runtime.ReadMemStats(&after)
		return max(after.HeapAlloc, before.HeapAlloc) - before.HeapAlloc
	}
	allStalled := func(n int) func(*readServer, *prometheus.Registry) {
		return func(s *readServer, metrics *prometheus.Registry) {
			require.Eventually(t, func() bool {
				return gauge(t, metrics, "quern_turns", "exports") == turns && gauge(t, metrics, "quern_turns_waiting", "exports") == n-turns
			}, time.Minute, time.Millisecond)
			// Other reads have turns of their own.
			code, body, _ := s.get("/api/v1/latest", "match[]", "cpu")
			require.Equal(t, 200, code, body)
		}
	}
	few := held(10, time.Hour, allStalled(10))
	many := held(80, time.Hour, allStalled(80))
	t.Logf("the heap holds %d bytes for 10 exports and %d for 80", few, many)
	// Each export reads about 10 MB; connections and waiting requests are small.
	require.Less(t, many, 2*few+80*100<<10)

	held(turns, 5*time.Second, func(s *readServer, metrics *prometheus.Registry) {
		require.Eventually(t, func() bool { return gauge(t, metrics, "quern_turns", "exports") == turns }, time.Minute, time.Millisecond)
		code, body, _ := s.get("/api/v1/export", "match[]", "cpu", "start", apitest.Now.Add(-2*time.Hour).Format(time.RFC3339))
		require.Equal(t, 200, code, body)
		require.Equal(t, 20, strings.Count(body, "\n"), "it has all lines")
		require.Eventually(t, func() bool { return gauge(t, metrics, "quern_turns", "exports") == 0 }, time.Minute, time.Millisecond)
	})
}

// from is a listener whose clients have an address.
type from struct {
	net.Listener
	addr net.Addr
}

// Accept implements net.Listener.
func (l from) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	return fromConn{conn, l.addr}, err
}

type fromConn struct {
	net.Conn
	addr net.Addr
}

// RemoteAddr implements net.Conn.
func (c fromConn) RemoteAddr() net.Addr { return c.addr }

// TestStalledStreams: a client of HTTP/2 that opens streams, of which it neither sends the body nor reads the reply, has
// no more than its half of the requests, over however many connections. Others are served meanwhile. The streams of
// those who stall together end.
func TestStalledStreams(t *testing.T) {
	const requests, connections, opened = 64, 3, 150
	start := apitest.Now.Add(-2 * time.Hour).Format(time.RFC3339)
	dials := func(t *testing.T) *http.Client {
		transport := &http.Transport{Protocols: new(http.Protocols), HTTP2: &http.HTTP2Config{MaxReceiveBufferPerStream: 64 << 10}}
		transport.Protocols.SetUnencryptedHTTP2(true)
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	get := func(t *testing.T, client *http.Client, url string) (code, lines int) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		require.NoError(t, err)
		resp, err := client.Do(r)
		if err != nil {
			return 0, 0
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, strings.Count(string(body), "\n")
	}
	// serve returns the URLs by which three clients reach a server.
	serve := func(t *testing.T, stall time.Duration) (urls []string) {
		known, metrics := admission.NewClients(nil), prometheus.NewRegistry()
		turns := func(name string) *admission.Turns {
			return admission.NewTurns(admission.TurnOptions{N: 2, Name: name, Wait: time.Hour, Clients: known, Metrics: metrics})
		}
		s := newReadServerWith(t, nil, reading.Turns{Queries: turns("queries"), Exports: turns("exports")}, func(s *api.Server) string {
			web := api.NewHTTPServer(s, api.Serving{Clock: clock.System{}, Logger: s.Opts().Logger, Stall: stall, Clients: known, Requests: requests})
			web.Protocols = new(http.Protocols)
			web.Protocols.SetUnencryptedHTTP2(true)
			var serving sync.WaitGroup
			for i := range 3 {
				l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
				require.NoError(t, err)
				serving.Go(func() {
					_ = web.Serve(admission.Limit(from{l, &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(i+1)), Port: 4711}}, requests, known, api.RefuseConnection))
				})
				urls = append(urls, "http://"+l.Addr().String())
			}
			t.Cleanup(func() {
				assert.NoError(t, web.Close())
				serving.Wait()
			})
			return urls[0]
		})
		s.series(1, "__name__", "cpu")
		s.long(1)
		return urls
	}
	// stalls has a client open streams until the test ends. It returns those that are refused.
	stalls := func(t *testing.T, to string) (refused <-chan struct{}) {
		turned := make(chan struct{}, opened)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		var asked sync.WaitGroup
		t.Cleanup(func() {
			cancel()
			asked.Wait()
		})
		var clients []*http.Client // of one connection each, since they open less than what it may have
		for range connections {
			client := dials(t)
			get(t, client, to+"/-/healthy")
			clients = append(clients, client)
		}
		for i := range opened {
			method, body := http.MethodGet, io.Reader(nil)
			if i%2 == 1 {
				silent, _ := io.Pipe() // its own: a client whose stream is reset waits until it could close the body
				method, body = http.MethodPost, silent
			}
			r, err := http.NewRequestWithContext(ctx, method, to+"/api/v1/export?match[]=cpu&start="+start, body)
			require.NoError(t, err)
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			asked.Go(func() {
				resp, err := clients[i%connections].Do(r)
				if err != nil { // broken off, since too many wait to be refused, or the test has ended
					turned <- struct{}{}
					return
				}
				defer resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					turned <- struct{}{}
					return
				}
				<-ctx.Done() // and reads nothing
			})
		}
		return turned
	}
	all := func(t *testing.T, refused <-chan struct{}, n int) {
		require.Eventually(t, func() bool { return len(refused) >= n }, time.Minute, time.Millisecond)
	}

	t.Run("one", func(t *testing.T) {
		urls := serve(t, time.Hour)
		refused := stalls(t, urls[0])
		all(t, refused, opened-requests) // as many as would not be taken without shares
		other := dials(t)
		code, lines := get(t, other, urls[1]+"/api/v1/export?match[]=cpu&start="+start)
		require.Equal(t, 200, code)
		require.Equal(t, 20, lines, "it has all lines")
		code, _ = get(t, other, urls[1]+"/api/v1/latest?match[]=cpu")
		require.Equal(t, 200, code)
	})
	t.Run("many", func(t *testing.T) {
		urls := serve(t, 2*time.Second)
		for i := range 2 {
			all(t, stalls(t, urls[i]), 1) // its share is full; how many follow depends on when the first are given up
		}
		other := dials(t)
		require.Eventually(t, func() bool {
			code, lines := get(t, other, urls[2]+"/api/v1/export?match[]=cpu&start="+start)
			return code == 200 && lines == 20
		}, time.Minute, 10*time.Millisecond)
	})
}

// TestTooManyWait: requests beyond the queue do not wait.
func TestTooManyWait(t *testing.T) {
	clients := admission.NewClients(admission.Loopback())
	exports := admission.NewTurns(admission.TurnOptions{N: 1, Name: "exports", Wait: time.Millisecond, Clients: clients})
	give, err := exports.Take(t.Context(), "")
	require.NoError(t, err)
	s := newReadServerWith(t, nil, reading.Turns{Exports: exports}, nil)
	s.series(1, "__name__", "cpu")
	code, body, header := s.get("/api/v1/export", "match[]", "cpu")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, respond.RetryAway, header.Get("Retry-After"))
	require.Contains(t, body, "try again")
	give()
	code, _, _ = s.get("/api/v1/export", "match[]", "cpu")
	require.Equal(t, http.StatusOK, code)

	code, after := respond.Failure(t.Context(), admission.ErrQueueFull)
	require.Equal(t, http.StatusTooManyRequests, code)
	require.NotEmpty(t, after)
}
