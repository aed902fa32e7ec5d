package limits

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClients(t *testing.T) {
	c := NewClients(Loopback())
	require.Equal(t, c.ByAddress("192.0.2.1:1"), c.ByAddress("192.0.2.1:2"))
	require.Equal(t, c.ByAddress("192.0.2.1:1"), c.ByAddress("[::ffff:192.0.2.1]:2"))
	require.NotEqual(t, c.ByAddress("192.0.2.1:1"), c.ByAddress("192.0.2.2:1"))
	require.Equal(t, c.ByAddress("[2001:db8::1]:1"), c.ByAddress("[2001:db8::2]:1"), "they are one network")
	require.NotEqual(t, c.ByAddress("[2001:db8::1]:1"), c.ByAddress("[2001:db8:0:1::1]:1"))
	require.NotEqual(t, Client{}, c.ByAddress("[fe80::1%eth0]:1"))
	for _, shared := range []string{"127.0.0.1:1", "127.1.2.3:1", "[::1]:1", "[::ffff:127.0.0.1]:1", "pipe", ""} {
		require.Equal(t, Client{}, c.ByAddress(shared), shared)
	}
	require.NotEqual(t, Client{}, NewClients(nil).ByAddress("127.0.0.1:1"))
}

func TestBudget(t *testing.T) {
	all := NewClients(nil)
	a, b := all.ByAddress("192.0.2.1:1"), all.ByAddress("192.0.2.2:1")
	budget := NewBudget(100, 10)
	first, second, other := budget.Claim(a), budget.Claim(a), budget.Claim(b)
	require.True(t, first.Grow(30))
	require.True(t, second.Grow(20))
	require.False(t, second.Grow(1), "one client holds half")
	require.True(t, other.Grow(50))
	require.False(t, other.Grow(1))
	anybody := budget.Claim(Client{})
	require.False(t, anybody.Grow(1), "nothing is left")

	first.Release()
	first.Release()
	require.True(t, second.Grow(30))
	require.False(t, second.Grow(1))
	second.Release()
	require.True(t, anybody.Grow(50), "no share binds what stands for many")
	anybody.Release()
	other.Release()
	require.True(t, budget.all.TryAcquire(100))
	require.Empty(t, budget.clients)

	large := NewBudget(100, 50)
	c := large.Claim(a)
	require.True(t, c.Grow(50), "the largest request finds room")
	require.Panics(t, func() { NewBudget(100, 51) }, "the largest request would need more than half")
}

func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a, b = "192.0.2.1:1", "192.0.2.2:1"
		turns := NewTurns(TurnOptions{N: 2, Name: "queries", Wait: time.Minute, Clients: NewClients(nil), Metrics: prometheus.NewRegistry()})
		first, err := turns.Take(t.Context(), a)
		require.NoError(t, err)

		// The client's second request waits, and a request of another client goes ahead.
		second := make(chan func())
		go func() {
			give, err := turns.Take(t.Context(), a)
			if err != nil {
				t.Error(err)
			}
			second <- give
		}()
		synctest.Wait()
		require.InDelta(t, 1, testutil.ToFloat64(turns.inQueue), 0)
		others, err := turns.Take(t.Context(), b)
		require.NoError(t, err)

		// A request that gives up leaves the queue.
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = turns.Take(ctx, b)
		require.ErrorIs(t, err, context.Canceled)
		require.InDelta(t, 1, testutil.ToFloat64(turns.inQueue), 0)

		others()
		others()
		synctest.Wait()
		require.InDelta(t, 1, testutil.ToFloat64(turns.inUse), 0, "it has its share already")
		first()
		(<-second)()
		require.InDelta(t, 0, testutil.ToFloat64(turns.inUse), 0)
		require.InDelta(t, 0, testutil.ToFloat64(turns.inQueue), 0)
	})
}

func TestQueueIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(TurnOptions{N: 1, Name: "queries", Clients: NewClients(nil)})
		give, err := turns.Take(t.Context(), "pipe")
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		for range waitingPerTurn {
			go func() { _, _ = turns.Take(ctx, "pipe") }()
		}
		synctest.Wait()
		_, err = turns.Take(t.Context(), "pipe")
		require.ErrorIs(t, err, ErrQueueFull)
		cancel()
		synctest.Wait()
		give()
		give, err = turns.Take(t.Context(), "pipe")
		require.NoError(t, err)
		give()
	})
}

// TestWaitIsBounded covers a turn that does not come in time: the request stops waiting.
func TestWaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(TurnOptions{N: 1, Name: "queries", Wait: time.Minute, Clients: NewClients(nil)})
		give, err := turns.Take(t.Context(), "pipe")
		require.NoError(t, err)
		_, err = turns.Take(t.Context(), "pipe")
		require.ErrorIs(t, err, ErrWaited)
		give()
		give, err = turns.Take(t.Context(), "pipe")
		require.NoError(t, err)
		give()
	})
	give, err := (*Turns)(nil).Take(t.Context(), "")
	require.NoError(t, err)
	give()
}

func TestListener(t *testing.T) {
	var lc net.ListenConfig
	inner, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := Limit(inner, 4, NewClients([]netip.Prefix{}), func(c net.Conn) { _, _ = io.WriteString(c, "full") })
	defer l.Close()
	dial := func() net.Conn {
		conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
		require.NoError(t, err)
		return conn
	}
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	first, second := dial(), dial()
	defer first.Close()
	defer second.Close()
	one, two := <-accepted, <-accepted

	third := dial()
	reply, err := io.ReadAll(third)
	require.NoError(t, err)
	require.Equal(t, "full", string(reply), "two of four are the share of one client")
	require.NoError(t, third.Close())

	require.NoError(t, one.Close())
	_ = one.Close() // gives back nothing more
	fourth := dial()
	defer fourth.Close()
	again := <-accepted
	fifth := dial()
	reply, err = io.ReadAll(fifth)
	require.NoError(t, err)
	require.Equal(t, "full", string(reply))
	require.NoError(t, fifth.Close())

	require.NoError(t, again.(*counted).CloseWrite())
	require.NoError(t, again.Close())
	require.NoError(t, two.Close())
	require.NoError(t, l.Close())
	for range accepted {
		t.Error("nobody else was there")
	}
}

// TestRequests: a request counts until its reply is out. Beyond the limit as many are refused with an answer.
func TestRequests(t *testing.T) {
	var nested func(n int)
	codes := make(map[int]int)
	var h http.Handler
	ask := func(n int) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		r.RemoteAddr = "192.0.2.1:1"
		r.Header.Set("Left", strconv.Itoa(n))
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		codes[w.Code]++
	}
	nested = func(n int) {
		if n > 0 {
			ask(n - 1)
		}
	}
	answer := func(code int) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			n, err := strconv.Atoi(r.Header.Get("Left"))
			assert.NoError(t, err)
			nested(n)
			w.WriteHeader(code)
		})
	}
	q := NewRequests(4, NewClients(nil), answer(503))
	h = q.Limit(answer(200))
	ask(3)
	require.Equal(t, map[int]int{200: 2, 503: 2}, codes)
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { ask(4) })
	for _, b := range []*Budget{q.served, q.refused} {
		require.True(t, b.all.TryAcquire(4))
		require.Empty(t, b.clients)
	}
}
