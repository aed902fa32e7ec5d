package api_test

import (
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
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
		metrics, clients := prometheus.NewRegistry(), limits.NewClients(limits.Loopback())
		var lc net.ListenConfig
		l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
		require.NoError(t, err)
		var web *http.Server
		s := newReadServerWith(t, nil, reading.Turns{
			Queries: limits.NewTurns(limits.TurnOptions{N: turns, Name: "queries", Wait: time.Minute, Clients: clients, Metrics: metrics}),
			Exports: limits.NewTurns(limits.TurnOptions{N: turns, Name: "exports", Wait: time.Minute, Clients: clients, Metrics: metrics}),
		}, func(s *api.Server) string {
			web = api.NewHTTPServer(s, api.Serving{
				Clock: clock.System{}, Logger: s.Opts().Logger, Stall: stall, Clients: clients, Requests: 1000,
			})
			go func() { _ = web.Serve(limits.Limit(l, 1000, clients, api.RefuseConnection)) }()
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

// TestTooManyWait: requests beyond the queue do not wait.
func TestTooManyWait(t *testing.T) {
	clients := limits.NewClients(limits.Loopback())
	exports := limits.NewTurns(limits.TurnOptions{N: 1, Name: "exports", Wait: time.Millisecond, Clients: clients})
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

	code, after := respond.Failure(t.Context(), limits.ErrQueueFull)
	require.Equal(t, http.StatusTooManyRequests, code)
	require.NotEmpty(t, after)
}
