package app

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/shards"
)

// offset is the machine's clock with an offset. Each heartbeat waits for the test.
type offset struct {
	clock.System
	by   atomic.Int64
	beat chan struct{}
}

func (o *offset) Now() time.Time { return o.System.Now().Add(time.Duration(o.by.Load())) }

func (o *offset) Sleep(ctx context.Context, d time.Duration) error {
	if d != shards.DefaultTimeout/4 {
		return o.System.Sleep(ctx, d)
	}
	select {
	case <-o.beat:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TestClockRefused: a server that starts with its clock far ahead says so in its log, its metric, its status and
// to whoever writes, and answers reads, until the clock is right or the server is started with --accept-clock.
func TestClockRefused(t *testing.T) {
	clk, log := &offset{beat: make(chan struct{})}, &lockedBuffer{}
	cfg := testConfig(t)
	start := func() (addr string, end func()) {
		s := newServer(setup{cfg: cfg, roles: roles{ingest: true, aggregate: true}, clk: clk, log: slog.New(slog.NewTextHandler(log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		addr, ended := serving(ctx, t, s)
		return addr, func() {
			cancel()
			require.NoError(t, <-ended)
		}
	}
	const why = "ahead of the newest time that the store has seen"
	var addr string
	beat := func() {
		clk.beat <- struct{}{}
		clk.beat <- struct{}{} // the previous one has ended
	}
	shows := func(path string) string {
		code, _, body := get(t, addr+path)
		require.Equal(t, 200, code, body)
		return body
	}
	status := func() string {
		var out strings.Builder
		require.NoError(t, commands.Status(t.Context(), config.Status{Connection: config.Connection{URL: addr}}, &out, io.Discard))
		return out.String()
	}
	posts := func(path, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, addr+path, strings.NewReader(body))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(r)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode, string(text)
	}
	const reports, annotations = "/api/v1/reports", "/api/v1/annotations"
	report, annotation := `{"source":"a","measurements":[{"metric":"m","value":1}]}`, `{"text":"released"}`
	refused := func() {
		t.Helper()
		require.Contains(t, shows("/metrics"), "\nquern_pebble_clock_doubted 1\n")
		require.Contains(t, status(), "THE CLOCK IS REFUSED: the clock says ")
		require.Contains(t, shows("/api/v1/query?query=m"), "success")
		for path, body := range map[string]string{reports: report, annotations: annotation} {
			code, text := posts(path, body)
			require.Equal(t, 503, code, text)
			require.Contains(t, text, why)
		}
	}
	right := func() {
		t.Helper()
		require.Contains(t, shows("/metrics"), "\nquern_pebble_clock_doubted 0\n")
		require.NotContains(t, status(), "REFUSED")
		for path, body := range map[string]string{reports: report, annotations: annotation} {
			code, text := posts(path, body)
			require.Less(t, code, 300, text)
		}
	}
	addr, end := start()
	right()
	clk.by.Store(int64(9 * 24 * time.Hour))
	refused() // at once, and not at the next heartbeat
	beat()
	refused()
	clk.by.Store(0)
	beat()
	right()
	end()

	log.buf.Reset()
	clk.by.Store(int64(9 * 24 * time.Hour))
	addr, end = start()
	beat()
	require.Contains(t, log.String(), why)
	refused()
	end()

	cfg.AcceptClock = true
	addr, end = start()
	require.Contains(t, log.String(), `level=WARN msg="clock accepted: leave --accept-clock out of the next start"`)
	right()
	end()
	cfg.AcceptClock = false
	addr, end = start()
	right()
	end()
}
