package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// sharedStore stands in for a cluster that other processes use too.
type sharedStore struct {
	*storagetest.Model
	away     atomic.Bool
	clockOff atomic.Bool
}

func newSharedStore(ladder string, clk clock.Clock) *sharedStore {
	l, err := metric.ParseLadder(ladder)
	if err != nil {
		panic(err)
	}
	policy, err := config.Policy{}.New(l)
	if err != nil {
		panic(err)
	}
	return &sharedStore{Model: storagetest.NewModel(storage.Settings{
		Ladder: l, GroupSize: 32, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 64}}, Policy: policy,
	}, policy.Retention, clk)}
}

func (s *sharedStore) Collector() prometheus.Collector {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: "store_of_a_test"})
}

func (s *sharedStore) PutItems(ctx context.Context, es []storage.Item) error {
	if s.away.Load() {
		return errAway
	}
	return s.Model.PutItems(ctx, es)
}

func (s *sharedStore) CheckFit(ctx context.Context) error {
	switch {
	case s.away.Load():
		return errAway
	case s.clockOff.Load():
		return errClock
	}
	return s.Model.CheckFit(ctx)
}

var errClock = fmt.Errorf("it is late: %w", storage.ErrSettings)

var errAway = fmt.Errorf("nobody at home: %w", storage.ErrUnavailable)

// sharedSetup is the setup that the flags give if only the store is named.
func sharedSetup(t *testing.T, does roles) setup {
	t.Helper()
	cfg := testConfig(t)
	cfg.Store, cfg.DataDir, cfg.Made = config.Cassandra, "", config.Made{}
	cfg.Cluster = config.Cluster{Hosts: []string{"db-1", "db-2"}, Keyspace: "quern", Password: "hunter2"}
	return setup{cfg: cfg, roles: does, clk: clock.System{}, log: slog.New(slog.DiscardHandler)}
}

func sharedServer(t *testing.T, does roles, st *sharedStore) *server {
	t.Helper()
	s := newServer(sharedSetup(t, does))
	s.open = func(context.Context, func(error)) (store, error) { return st, nil }
	return s
}

func get(t *testing.T, url string) (code int, header http.Header, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp.StatusCode, resp.Header, string(text)
}

// pausing is a clock whose sleeps end when the test says so.
type pausing struct {
	clock.System
	slept chan time.Duration
	wake  chan struct{}
}

func (p pausing) Sleep(ctx context.Context, d time.Duration) error {
	if d < time.Second || d > 30*time.Second { // the waits of storage.WhileAway
		return p.System.Sleep(ctx, d)
	}
	select {
	case p.slept <- d:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-p.wake:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// TestWaiting: while no node answers, the process says so. It continues when a node answers.
func TestWaiting(t *testing.T) {
	var log lockedBuffer
	clk := pausing{slept: make(chan time.Duration), wake: make(chan struct{})}
	st := newSharedStore("1h,6h,24h", clk)
	s := sharedServer(t, roles{ingest: true, aggregate: true}, st)
	s.clk, s.log = clk, config.Log{}.Logger(&log)
	var reachable atomic.Bool
	s.open = func(context.Context, func(error)) (store, error) {
		if !reachable.Load() {
			return nil, errAway
		}
		return st, nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.run(ctx, l, func(string) { close(started) }) }()
	url := "http://" + l.Addr().String()

	assert.Equal(t, time.Second, <-clk.slept)
	code, _, _ := get(t, url+"/-/healthy")
	assert.Equal(t, 200, code)
	code, _, body := get(t, url+"/-/ready")
	assert.Equal(t, 503, code)
	assert.Equal(t, "Quern is not ready: nobody at home: the store is unavailable.\n", body)
	for _, path := range []string{"/", "/metrics", "/api/v1/reports", "/api/v1/status/aggregation", "/nothing"} {
		code, header, body := get(t, url+path)
		assert.Equal(t, 503, code, path)
		assert.Equal(t, "5", header.Get("Retry-After"), path)
		assert.JSONEq(t, `{"status":"error","error":"the store is not available yet: nobody at home: the store is unavailable"}`, body)
	}
	clk.wake <- struct{}{}
	assert.Equal(t, 2*time.Second, <-clk.slept)
	reachable.Store(true)
	clk.wake <- struct{}{}
	<-started
	code, _, body = get(t, url+"/-/ready")
	assert.Equal(t, 200, code, body)
	code, _, body = get(t, url+"/metrics")
	assert.Equal(t, 200, code)
	assert.Contains(t, body, "\nquern_build_info{goversion=\"go1")
	for _, want := range []string{
		`msg=listening address=127.0.0.1:`,
		`level=WARN msg="no Cassandra node of db-1,db-2 answers; trying again in 1s" err="nobody at home: the store is unavailable"`,
		`answers; trying again in 2s"`,
		`msg=serving address=127.0.0.1:`, `cassandra=db-1,db-2 keyspace=quern rollups=1h,6h,24h`,
	} {
		assert.Contains(t, log.String(), want)
	}
	assert.NotContains(t, log.String(), "hunter2")
	cancel()
	assert.NoError(t, <-ended)
}

// lockedBuffer may be read and written concurrently.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// TestEndsWhileAway: a process can be stopped while the cluster is away.
func TestEndsWhileAway(t *testing.T) {
	clk := pausing{slept: make(chan time.Duration), wake: make(chan struct{})}
	s := sharedServer(t, roles{ingest: true}, nil)
	s.clk = clk
	s.open = func(context.Context, func(error)) (store, error) { return nil, errAway }
	ctx, cancel := context.WithCancel(t.Context())
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, l, func(string) { t.Error("started") }) }()
	<-clk.slept
	cancel()
	assert.NoError(t, <-ended)
}

// TestRefusal: an error that waiting cannot mend ends the process.
func TestRefusal(t *testing.T) {
	s := sharedServer(t, roles{ingest: true}, nil)
	s.open = func(context.Context, func(error)) (store, error) { return nil, storage.ErrSettings }
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	assert.ErrorIs(t, s.run(t.Context(), l, nil), storage.ErrSettings)
}

// TestRoles: a process serves only its roles, on the stored ladder.
func TestRoles(t *testing.T) {
	for _, c := range []struct {
		does    roles
		has     []string
		has404  []string
		runs    bool
		ingests bool
	}{
		{roles{ingest: true}, []string{"/api/v1/latest?match[]=x", "/api/v1/status/aggregation", "/metrics"}, nil, false, true},
		{roles{aggregate: true}, []string{"/api/v1/status/aggregation", "/metrics"}, []string{"/api/v1/latest", "/api/v1/reports"}, true, false},
		{roles{ingest: true, aggregate: true}, []string{"/api/v1/latest?match[]=x", "/api/v1/status/aggregation"}, nil, true, true},
	} {
		t.Run(fmt.Sprintf("%+v", c.does), func(t *testing.T) {
			s := sharedServer(t, c.does, newSharedStore("10s,1m", clock.System{}))
			url, stop := running(t, s)
			for _, path := range c.has {
				code, _, body := get(t, url+path)
				assert.Equal(t, 200, code, "%s: %s", path, body)
			}
			for _, path := range c.has404 {
				code, _, _ := get(t, url+path)
				assert.Equal(t, 404, code, path)
			}
			_, _, body := get(t, url+"/metrics")
			assert.Equal(t, c.runs, strings.Contains(body, "quern_aggregation_"), "metrics of runs")
			assert.Equal(t, c.ingests, strings.Contains(body, "quern_ingest_"), "metrics of ingest")
			_, _, body = get(t, url+"/api/v1/status/aggregation")
			assert.Contains(t, body, `"bucket":"10s"`)
			assert.Len(t, s.engine.policy.Retention, 3)
			stop()
		})
	}
}

// TestReadyFollowsTheCluster: a process whose cluster has gone away is not ready. A process on an
// embedded store stays ready, since that store can still be read.
func TestReadyFollowsTheCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSharedStore("1h,6h,24h", clock.System{})
		s := sharedServer(t, roles{aggregate: true}, st)
		var err error
		s.engine, err = s.newEngine(t.Context(), st)
		require.NoError(t, err)
		s.away.set(nil)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.heartbeats(ctx)
		synctest.Wait()
		require.NoError(t, s.away.get())
		st.away.Store(true)
		time.Sleep(s.engine.Member.Every() + time.Second)
		require.ErrorIs(t, s.away.get(), errAway)
		st.away.Store(false)
		time.Sleep(s.engine.Member.Every())
		require.NoError(t, s.away.get())

		s.cfg.Store = config.Pebble
		st.away.Store(true)
		time.Sleep(s.engine.Member.Every())
		require.NoError(t, s.away.get())
	})
}

// TestClockGoesWrong: with a wrong clock samples would go into slices that are already ground. So
// none are accepted until the clock is right again, and nothing is ground.
func TestClockGoesWrong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSharedStore("1h,6h,24h", clock.System{})
		s := sharedServer(t, roles{ingest: true, aggregate: true}, st)
		var err error
		s.engine, err = s.newEngine(t.Context(), st)
		require.NoError(t, err)
		hard, breakOff := context.WithCancel(t.Context())
		defer breakOff()
		require.NoError(t, s.build(hard))
		ctx, cancel := context.WithCancel(t.Context())
		go s.heartbeats(ctx)
		report := func() *httptest.ResponseRecorder {
			synctest.Wait()
			w := httptest.NewRecorder()
			s.gate.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/reports",
				strings.NewReader(`{"source":"a","measurements":[{"metric":"m","value":1}]}`)))
			return w
		}
		require.Equal(t, http.StatusOK, report().Code)

		st.clockOff.Store(true)
		time.Sleep(s.engine.Member.Every())
		w := report()
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
		require.Contains(t, w.Body.String(), "it is late")
		require.ErrorIs(t, s.ready(), errClock)
		_, err = s.engine.Member.Mine(t.Context())
		require.ErrorIs(t, err, shards.ErrUnfit)

		st.away.Store(true) // a heartbeat without an answer does not mend a clock
		time.Sleep(s.engine.Member.Every())
		require.Equal(t, http.StatusServiceUnavailable, report().Code)
		require.ErrorIs(t, s.unfit.get(), errClock)
		st.away.Store(false)
		time.Sleep(5 * s.engine.Member.Every())
		errs, err := storage.RecentErrors(t.Context(), st)
		require.NoError(t, err)
		require.Len(t, errs, 1, "once, however long it lasts")

		st.clockOff.Store(false)
		time.Sleep(s.engine.Member.Every())
		require.Equal(t, http.StatusOK, report().Code)
		require.NoError(t, s.ready())

		// Nothing is written after a time without heartbeats, as when the process was suspended.
		cancel()
		synctest.Wait()
		time.Sleep(5 * s.engine.Member.Every())
		w = report()
		require.Equal(t, http.StatusServiceUnavailable, w.Code)
		require.Contains(t, w.Body.String(), "no heartbeat")
		require.NoError(t, s.engine.Member.Beat(t.Context())) // answered
		require.Equal(t, http.StatusOK, report().Code)
		require.NoError(t, s.engine.finish(t.Context()))
	})
}

// TestSeriesOfOthers: a series that another process has registered is found soon after.
func TestSeriesOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := newSharedStore("1h,6h,24h", clock.System{})
		s := sharedServer(t, roles{ingest: true}, st)
		var err error
		s.engine, err = s.newEngine(t.Context(), st)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go s.refreshes(ctx)
		synctest.Wait()
		labels, err := metric.NewLabels(metric.Label{Name: "__name__", Value: "x"}, metric.Label{Name: "source", Value: "web-1"})
		require.NoError(t, err)
		ids, err := st.LeaseIDs(t.Context(), 1)
		require.NoError(t, err)
		_, err = st.ClaimSchedules(t.Context(), storagetest.ClaimsOf("web-1", []storage.Schedule{{ID: ids.Start, Labels: labels}}))
		require.NoError(t, err)
		assert.Zero(t, s.engine.index.Len())
		time.Sleep(query.RefreshEvery)
		synctest.Wait()
		assert.Equal(t, 1, s.engine.index.Len())
	})
}

// partialStore is a cluster of which the first group of series is out of reach.
type partialStore struct{ *sharedStore }

func (s partialStore) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	if ids.Start < 32 {
		return func(yield func(storage.Schedule, error) bool) { yield(storage.Schedule{}, errAway) }
	}
	return s.sharedStore.Schedules(ctx, ids)
}

// TestStartInAPartialOutage: a process starts while series are out of reach, and says what it lacks.
func TestStartInAPartialOutage(t *testing.T) {
	st := newSharedStore("1h,6h,24h", clock.System{})
	src, err := registry.New(st, registry.Options{LeaseSize: 1024}).Source(t.Context(), "before", false)
	require.NoError(t, err)
	_, err = src.Register(t.Context(), []metric.Labels{{{Name: metric.NameLabel, Value: "up"}}})
	require.NoError(t, err)
	s := sharedServer(t, roles{ingest: true, aggregate: true}, st)
	s.open = func(context.Context, func(error)) (store, error) { return partialStore{st}, nil }
	url, _ := running(t, s)
	_, _, body := get(t, url+"/api/v1/labels")
	assert.Contains(t, body, "incomplete: the labels of up to")
}
