package app

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"strings"
	"sync"
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

// logged is a log that the test reads.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestClockIsConfirmed: a server that starts with its clock far ahead says so in its log, its
// metric and its status, until an operator on the machine confirms the clock.
func TestClockIsConfirmed(t *testing.T) {
	clk, log := &offset{beat: make(chan struct{})}, &logged{}
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
	_, end := start()
	end()
	require.NotContains(t, log.String(), "nothing expires")

	clk.by.Store(int64(9 * 24 * time.Hour))
	addr, end := start()
	defer func() { end() }()
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
	clk.beat <- struct{}{} // so that at least one heartbeat has ended
	require.Contains(t, log.String(), `level=WARN msg="clock not trusted, nothing expires: set the clock, or confirm it with `+"`quern settings confirm-clock`")
	require.Equal(t, 1, strings.Count(log.String(), "nothing expires"))
	require.Contains(t, shows("/metrics"), "\nquern_pebble_clock_doubted 1\n")
	require.Contains(t, status(), "NOTHING EXPIRES: the clock says ")

	var out strings.Builder
	require.NoError(t, commands.ConfirmClock(t.Context(), config.Status{Connection: config.Connection{URL: addr}}, &out, io.Discard))
	require.Equal(t, "The clock is confirmed: rows expire again.\n", out.String())
	require.Contains(t, shows("/metrics"), "\nquern_pebble_clock_doubted 0\n")
	require.NotContains(t, status(), "NOTHING EXPIRES")
	clk.beat <- struct{}{}
	clk.beat <- struct{}{} // the previous one has ended
	require.Contains(t, log.String(), "clock trusted again")

	end()
	addr, end = start()
	require.Contains(t, shows("/metrics"), "\nquern_pebble_clock_doubted 0\n", "for the next process too")
}

// TestNoClockToConfirm: over a cluster rows expire by the clocks of its servers.
func TestNoClockToConfirm(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	addr, end := serving(ctx, t, sharedServer(t, roles{ingest: true}, newSharedStore("1h,6h,24h", clock.System{})))
	require.ErrorContains(t, commands.ConfirmClock(t.Context(), config.Status{Connection: config.Connection{URL: addr}}, io.Discard, io.Discard), "there is nothing to confirm")
	cancel()
	require.NoError(t, <-end)
}
