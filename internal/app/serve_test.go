package app

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/agent"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testConfig(t testing.TB) config.Config {
	t.Helper()
	return config.Config{
		Store: config.Pebble, DataDir: t.TempDir(), Listen: "127.0.0.1:0",
		MaxBodyBytes: 1 << 20, Query: config.Query{Timeout: time.Minute, Concurrency: 4},
		Log: config.Log{LogFormat: "text"},
	}
}

func testServer(t testing.TB) *server {
	t.Helper()
	return newServer(setup{
		cfg: testConfig(t), roles: roles{ingest: true, aggregate: true},
		clk: clock.System{}, log: slog.New(slog.DiscardHandler),
	})
}

// serving runs s. It returns the address when s has started, and a channel for its end.
func serving(ctx context.Context, t testing.TB, s *server) (addr string, end <-chan error) {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.Listen)
	require.NoError(t, err)
	ended := make(chan error, 1)
	started := make(chan struct{})
	go func() { ended <- s.run(ctx, l, func(string) { close(started) }) }()
	select {
	case <-started:
	case err := <-ended:
		require.NoError(t, err, "ended before it had started")
	}
	return "http://" + l.Addr().String(), ended
}

// running runs s until stop is called or the test ends, and returns the address.
func running(t testing.TB, s *server) (addr string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	addr, end := serving(ctx, t, s)
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(t, <-end)
	})
	t.Cleanup(stop)
	return addr, stop
}

// TestFatal: when the store cannot go on, the process ends with the store's error, so that a
// supervisor restarts it.
func TestFatal(t *testing.T) {
	s := testServer(t)
	var fail func(error)
	s.open = func(ctx context.Context, onFatal func(error)) (store, error) {
		fail = onFatal
		return s.openStore(ctx, onFatal)
	}
	_, end := serving(t.Context(), t, s)
	broken := errors.New("the log cannot be written")
	fail(broken)
	assert.ErrorIs(t, <-end, broken)
}

// TestDrainServes: the port stays open while a request is under way, and reports that the process
// is ending.
func TestDrainServes(t *testing.T) {
	s := testServer(t)
	draining := make(chan struct{})
	s.log = slog.New(onMessage{slog.DiscardHandler, "draining", func() { close(draining) }})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	addr, end := serving(ctx, t, s)

	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(addr, "http://"))
	require.NoError(t, err)
	defer conn.Close()
	const line = `{"metric":{"__name__":"m"},"values":[],"timestamps":[]}`
	_, err = fmt.Fprintf(conn, "POST /api/v1/import HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n", len(line))
	require.NoError(t, err)
	in := bufio.NewReader(conn)
	proceed, err := in.ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, proceed, "100")
	_, err = in.ReadString('\n')
	require.NoError(t, err)

	cancel()
	<-draining
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	send := func(method, path string, body io.Reader) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), method, addr+path, body)
		require.NoError(t, err)
		return client.Do(req)
	}
	for path, want := range map[string]int{"/-/ready": 503, "/-/healthy": 200, "/metrics": 200, "/api/v1/query?query=1": 503, "/api/v1/export": 503} {
		resp, err := send(http.MethodGet, path, http.NoBody)
		require.NoError(t, err, path)
		assert.Equal(t, want, resp.StatusCode, path)
		require.NoError(t, resp.Body.Close())
	}
	resp, err := send(http.MethodPost, "/api/v1/reports", strings.NewReader("[]"))
	require.NoError(t, err)
	assert.Equal(t, 503, resp.StatusCode)
	assert.NotEmpty(t, resp.Header.Get("Retry-After"))
	require.NoError(t, resp.Body.Close())

	_, err = io.WriteString(conn, line)
	require.NoError(t, err)
	resp, err = http.ReadResponse(in, nil)
	require.NoError(t, err)
	assert.Equal(t, 200, resp.StatusCode)
	require.NoError(t, resp.Body.Close())
	require.NoError(t, <-end)
	_, err = send(http.MethodGet, "/-/ready", http.NoBody) //nolint:bodyclose // there is no answer
	require.Error(t, err)
}

// TestOrderOfStop: each part is stopped before those that it needs.
func TestOrderOfStop(t *testing.T) {
	var log lockedBuffer
	s := testServer(t)
	s.log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	_, stop := running(t, s)
	stop()
	var stopped []string
	for line := range strings.Lines(log.String()) {
		if _, name, found := strings.Cut(line, "msg=stopping part="); found {
			stopped = append(stopped, strings.Trim(strings.TrimSpace(name), `"`))
		}
	}
	require.Equal(t, []string{"requests", "background work", "ingest and handlers", "store", "port"}, stopped)
}

// onMessage calls do when a log message begins with prefix.
type onMessage struct {
	slog.Handler
	prefix string
	do     func()
}

func (onMessage) Enabled(context.Context, slog.Level) bool { return true }

func (h onMessage) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h onMessage) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, h.prefix) {
		h.do()
	}
	return nil
}

// TestDrainEnds: a request that does not end, whatever it is told, keeps the process no longer than it promises. The
// store is not closed under it.
func TestDrainEnds(t *testing.T) {
	s := testServer(t)
	s.patience = 0
	var closed atomic.Bool
	var kept store
	s.open = func(ctx context.Context, onFatal func(error)) (store, error) {
		st, err := s.openStore(ctx, onFatal)
		kept = st
		return closingStore{st, &closed}, err
	}
	within, leave := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, end := serving(ctx, t, s)
	s.gate.lead(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(within)
		<-leave
	}))
	var request sync.WaitGroup
	request.Go(func() {
		s.gate.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	})
	<-within
	cancel()
	assert.ErrorContains(t, <-end, "nothing that was acknowledged is lost")
	assert.False(t, closed.Load())
	close(leave)
	request.Wait()
	require.NoError(t, kept.Close())
}

// closingStore tells that it is closed.
type closingStore struct {
	store
	closed *atomic.Bool
}

func (s closingStore) Close() error {
	s.closed.Store(true)
	return s.store.Close()
}

// TestGate: the gate closes only when no request is inside, and no request enters afterwards.
func TestGate(t *testing.T) {
	var g gate
	within, leave := make(chan struct{}), make(chan struct{})
	g.lead(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		within <- struct{}{}
		<-leave
	}))
	ask := func() {
		g.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	}
	var wg sync.WaitGroup
	wg.Go(ask)
	<-within
	closed := make(chan struct{})
	go func() {
		assert.True(t, g.close(t.Context()))
		close(closed)
	}()
	select {
	case <-closed:
		t.Error("closed while a request was within")
	case <-time.After(10 * time.Millisecond): // may be too short to reveal a mistake
	}
	leave <- struct{}{}
	<-closed
	wg.Wait()
	assert.PanicsWithValue(t, http.ErrAbortHandler, ask)
}

// batchOf returns a batch of the agent with a sample.
func batchOf(t *testing.T, name string, timeMs int64) agent.Batch {
	t.Helper()
	body, err := (&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{{
		Labels:  []prompb.Label{{Name: "__name__", Value: name}, {Name: "a", Value: "b"}, {Name: "source", Value: "me"}},
		Samples: []prompb.Sample{{Timestamp: timeMs, Value: 1}},
	}}}).Marshal()
	require.NoError(t, err)
	z, err := zstd.NewWriter(nil)
	require.NoError(t, err)
	return agent.Batch{Samples: 1, Body: z.EncodeAll(body, nil)}
}

// TestLocalSender: the agent in this process gets ingest's rejections.
func TestLocalSender(t *testing.T) {
	s := testServer(t)
	_, stop := running(t, s)
	sender := &localSender{ingest: s.engine.Ingest}
	good := batchOf(t, "good", time.Now().UnixMilli())
	require.NoError(t, sender.Send(t.Context(), good))

	old := agent.Batch{Samples: 2, Body: append(good.Body, batchOf(t, "old", 1).Body...)}
	var rejected *agent.RejectedError
	require.ErrorAs(t, sender.Send(t.Context(), old), &rejected)
	assert.Equal(t, 1, rejected.Total)
	assert.Contains(t, rejected.Message, "more than the age cap")

	stop()
	assert.ErrorContains(t, sender.Send(t.Context(), good), "shutting down")
}
