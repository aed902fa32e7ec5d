package graphite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is the longest wait for anything that is expected to happen.
const limit = time.Minute

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	require.Eventually(t, holds, limit, time.Millisecond, what)
}

// kept is an appender that counts how often each line came.
type kept struct {
	mu    sync.Mutex
	err   error
	calls int
	lines map[string]int
	// doomed counts the attempts on lines of the metric "doomed"; hanging counts those attempts
	// that hang.
	doomed, hanging int
}

// doom fails reports of the metric "doomed": the first attempts at once, later ones only when ctx
// ends.
func (k *kept) doom(ctx context.Context, reports []ingest.Report) error {
	const soon = 10
	if reports[0].Measurements[0].Metric != "doomed" {
		return nil
	}
	k.mu.Lock()
	k.doomed++
	hang := k.doomed > soon
	if hang {
		k.hanging++
	}
	k.mu.Unlock()
	if !hang {
		return ingest.ErrBusy
	}
	<-ctx.Done()
	return context.Cause(ctx)
}

func (k *kept) Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	if err := k.doom(ctx, reports); err != nil {
		return ingest.Result{}, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.calls++
	if ctx.Err() != nil {
		return ingest.Result{}, context.Cause(ctx)
	}
	if k.err != nil {
		return ingest.Result{}, k.err
	}
	var res ingest.Result
	index := 0
	for _, r := range reports {
		for _, m := range r.Measurements {
			if m.Metric == "refused" {
				res.Rejected = append(res.Rejected, ingest.Rejection{Index: index, Reason: ingest.ReasonTooOld, Message: "too old"})
			} else {
				k.lines[fmt.Sprintf("%s|%s%v %v %d", r.Source, m.Metric, m.Labels, m.Value, m.TimeMs)]++
				res.Accepted++
			}
			index++
		}
	}
	return res, nil
}

func (k *kept) fail(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.err = err
}

func (k *kept) called() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls
}

func (k *kept) len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.lines)
}

func (k *kept) has(line string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lines[line] == 1
}

// listening is a server on its own port with a kept as appender.
type listening struct {
	*Server
	*kept
	addr string
	log  *bytes.Buffer
}

// quick is the machine's clock with short waits between attempts.
type quick struct{ clock.System }

func (q quick) Sleep(ctx context.Context, _ time.Duration) error {
	return q.System.Sleep(ctx, time.Millisecond)
}

func listen(t *testing.T, opts Options) *listening {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	out := &listening{kept: &kept{lines: map[string]int{}}, addr: l.Addr().String(), log: new(bytes.Buffer)}
	opts.Logger = slog.New(slog.NewTextHandler(out.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	opts.Metrics = prometheus.NewRegistry()
	out.Server = New(context.WithoutCancel(t.Context()), out.kept, quick{}, opts)
	served := make(chan error, 1)
	go func() { served <- out.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = out.Shutdown(ctx)
		assert.NoError(t, <-served)
	})
	return out
}

func (l *listening) dial(t *testing.T) net.Conn {
	t.Helper()
	var d net.Dialer
	c, err := d.DialContext(t.Context(), "tcp", l.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(limit)))
	return c
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	_, err := io.WriteString(c, text)
	require.NoError(t, err)
}

// ends waits until the other side has closed the connection.
func ends(t *testing.T, c net.Conn) {
	t.Helper()
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

func TestLines(t *testing.T) {
	l := listen(t, Options{Sources: metric.SourceLabels{"host"}})
	c := l.dial(t)
	send(t, c, "a.b 1 2\nd;host=web1;x=y 3.5 4\r\n\nbad line here\nrefused 1 1\n")
	eventually(t, "the lines", func() bool { return l.len() == 2 })
	assert.True(t, l.has("|a.b{} 1 2000") || l.has("|a.b[] 1 2000"), "%v", l.lines)
	assert.True(t, l.has(`web1|d[{host web1} {x y}] 3.5 4000`), "%v", l.lines)
	eventually(t, "the counts", func() bool { return testutil.ToFloat64(l.metrics.lines) == 4 })
	assert.InDelta(t, 1, testutil.ToFloat64(l.metrics.invalid), 0)
	assert.InDelta(t, 1, testutil.ToFloat64(l.metrics.connections), 0)
	require.NoError(t, c.Close())
	eventually(t, "the end", func() bool { return testutil.ToFloat64(l.metrics.connections) == 0 })
	require.NoError(t, l.Shutdown(t.Context()))
	assert.Contains(t, l.log.String(), `msg="lines rejected"`)
	assert.Contains(t, l.log.String(), `lines=2 first="\"bad line here\": the value is not a number"`)
}

// A line may arrive slowly in pieces; a partial line at the end is dropped.
func TestPieces(t *testing.T) {
	l := listen(t, Options{})
	c := l.dial(t)
	for _, b := range []byte("slow.metric 17 1000\nnext 1 1\nhalf 1") {
		send(t, c, string(b))
	}
	eventually(t, "two lines", func() bool { return l.len() == 2 })
	require.NoError(t, c.Close())
	eventually(t, "half a line", func() bool { return testutil.ToFloat64(l.metrics.invalid) == 1 })
	require.NoError(t, l.Shutdown(t.Context()))
	assert.Equal(t, 2, l.len())
	assert.Contains(t, l.log.String(), "the connection ended within a line")
}

func TestTooLong(t *testing.T) {
	l := listen(t, Options{LineBytes: 5000, BatchBytes: 6000})
	c := l.dial(t)
	send(t, c, "a 1 1\n"+strings.Repeat("x", 100_000)+" 1 1\nb 1 1\n")
	eventually(t, "what is around it", func() bool { return l.len() == 2 })
	eventually(t, "the count", func() bool { return testutil.ToFloat64(l.metrics.invalid) == 1 })
	send(t, c, strings.Repeat("x", 4990)+" 1 1\n")
	eventually(t, "one that is just short enough", func() bool { return l.len() == 3 })
	assert.InDelta(t, 4, testutil.ToFloat64(l.metrics.lines), 0)
}

func TestIdle(t *testing.T) {
	l := listen(t, Options{Idle: time.Millisecond})
	ends(t, l.dial(t))
}

// While nothing can be stored, senders are held up; in the end every line is stored, once.
func TestFlood(t *testing.T) {
	l := listen(t, Options{Batches: 2})
	l.fail(ingest.ErrBusy)
	const senders, each = 5, 100_000
	var wg sync.WaitGroup
	var sent sync.Map
	for i := range senders {
		c := l.dial(t)
		wg.Go(func() {
			var buf []byte
			for k := range each {
				if buf = fmt.Appendf(buf, "m%d 1 %d\n", i, k); len(buf) > 10_000 || k == each-1 {
					if _, err := c.Write(buf); !assert.NoError(t, err) {
						return
					}
					buf = buf[:0]
				}
			}
			sent.Store(i, true)
			assert.NoError(t, c.Close())
		})
	}
	eventually(t, "attempts", func() bool { return testutil.ToFloat64(l.metrics.retries) > 20 })
	l.fail(errors.New("the store is away"))
	before := l.called()
	eventually(t, "more attempts", func() bool { return l.called() > before+20 })
	assert.Zero(t, l.len())
	l.fail(nil)
	wg.Wait()
	eventually(t, "all lines", func() bool { return l.len() == senders*each })
	require.NoError(t, l.Shutdown(t.Context()))
	for line, n := range l.lines {
		require.Equal(t, 1, n, line)
	}
	assert.InDelta(t, senders*each, testutil.ToFloat64(l.metrics.lines), 0)
	assert.Contains(t, l.log.String(), `msg="append failed; retrying, senders are blocked"`)
}

// Senders that are refused for ever, even more of them than decode at once, hold up nobody else:
// neither while they wait, nor when one of their attempts hangs.
func TestRefusedForEver(t *testing.T) {
	l := listen(t, Options{Batches: 4})
	for range 6 {
		send(t, l.dial(t), "doomed 1 1\n")
	}
	good := l.dial(t)
	for i := range 3 {
		send(t, good, fmt.Sprintf("a %d 1\n", i))
		eventually(t, "a line of another", func() bool { return l.len() == i+1 })
	}
	eventually(t, "attempts that hang", func() bool {
		l.kept.mu.Lock()
		defer l.kept.mu.Unlock()
		return l.hanging == 2
	})
	send(t, good, "b 1 1\n")
	send(t, l.dial(t), "c 1 1\n")
	eventually(t, "lines of others", func() bool { return l.len() == 5 })
}

// TestLinesRefusedForGood: what the store will never take is given up, counted and told of, and its connection goes on.
func TestLinesRefusedForGood(t *testing.T) {
	reg := prometheus.NewRegistry()
	l := listen(t, Options{Metrics: reg})
	l.fail(fmt.Errorf("samples not stored: %w", storage.ErrRefused))
	c := l.dial(t)
	send(t, c, "a 1 1\n")
	eventually(t, "lines given up", func() bool { return testutil.ToFloat64(l.metrics.refused) == 1 })
	l.fail(nil)
	send(t, c, "b 1 1\n")
	eventually(t, "what comes next", func() bool { return l.len() == 1 })
	require.InDelta(t, 0, testutil.ToFloat64(l.metrics.retries), 0)
	require.NoError(t, l.Shutdown(t.Context()))
	assert.Contains(t, l.log.String(), `msg="lines lost: the store permanently refuses some or all of them"`)
}

// What was read when the server is to end is appended first.
func TestShutdown(t *testing.T) {
	l := listen(t, Options{})
	l.fail(ingest.ErrBusy)
	idle, c := l.dial(t), l.dial(t)
	send(t, c, "a 1 1\n")
	eventually(t, "an attempt", func() bool { return l.called() > 0 })
	ended := make(chan error, 1)
	go func() { ended <- l.Shutdown(t.Context()) }()
	ends(t, idle)
	l.fail(nil)
	require.NoError(t, <-ended)
	assert.Equal(t, 1, l.len())
	ends(t, c)
	var d net.Dialer
	_, err := d.DialContext(t.Context(), "tcp", l.addr)
	require.Error(t, err, "nobody listens any more")
}

// Shutdown ends in time and logs the lost lines.
func TestShutdownInVain(t *testing.T) {
	l := listen(t, Options{Batches: 1})
	l.fail(ingest.ErrBusy)
	for range 2 {
		send(t, l.dial(t), "a 1 1\nb 1 1\n")
	}
	eventually(t, "an attempt", func() bool { return l.called() > 0 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, l.Shutdown(ctx), context.Canceled)
	assert.Contains(t, l.log.String(), `msg="lines lost: append failed while the process stops"`)
	assert.Contains(t, l.log.String(), "lines=2")
}

// TestStrangers: a connection that begins as HTTP or TLS is closed at once, however its bytes arrive. A web page can make
// a browser open one, with lines of its choice in the body or in the URL.
func TestStrangers(t *testing.T) {
	const line = "evil 1 2\n"
	for name, c := range map[string]struct{ pieces []string }{
		"HTTP":                   {[]string{"POST / HTTP/1.1\r\nHost: a\r\n\r\n" + line}},
		"HTTP in pieces":         {[]string{"P", "OST", " ", "/x", " HTTP/1.1\r\n\r\n" + line}},
		"a long URL":             {[]string{"GET /" + strings.Repeat("x", 100<<10) + " HTTP/1.1\r\n\r\n" + line}},
		"the start of a TLS":     {[]string{"\x16\x03\x01\x02\x00\n" + line}},
		"a TLS, in single bytes": {[]string{"\x16", "\x03", "\x01\n" + line}},
	} {
		t.Run(name, func(t *testing.T) {
			l := listen(t, Options{})
			conn := l.dial(t)
			for _, piece := range c.pieces {
				if _, err := io.WriteString(conn, piece); err != nil {
					break // the server has closed the connection
				}
			}
			_, err := conn.Read(make([]byte, 1))
			require.Error(t, err, "the server ends the connection")
			require.NoError(t, l.Shutdown(t.Context()))
			require.Zero(t, l.len())
			require.Zero(t, testutil.ToFloat64(l.metrics.lines))
			require.InDelta(t, 1, testutil.ToFloat64(l.metrics.strangers), 0)
			require.Contains(t, l.log.String(), "connection closed")
		})
	}
}

// TestNoStrangers: lines that begin as a method does are lines.
func TestNoStrangers(t *testing.T) {
	l := listen(t, Options{})
	c := l.dial(t)
	send(t, c, "P")
	send(t, c, "OST 1 2\nPOST /x 2\nGET\nGET / HTTP/1.1\nX 3 4\n")
	eventually(t, "the lines", func() bool { return l.len() == 2 })
	require.True(t, l.has("|POST[] 1 2000"))
	require.True(t, l.has("|X[] 3 4000"))
	require.NoError(t, c.Close())
}
