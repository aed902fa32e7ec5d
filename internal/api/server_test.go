package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

type registrar func(mux *http.ServeMux)

func (r registrar) Register(mux *http.ServeMux) { r(mux) }

func TestOptionsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(o *Options){
		"clock":  func(o *Options) { o.Clock = nil },
		"logger": func(o *Options) { o.Logger = nil },
		"ladder": func(o *Options) { o.Status, o.Ladder = statusOf{}, metric.Ladder{} },
		"limits": func(o *Options) { o.Limits.Labels = -1 },
		"depth":  func(o *Options) { o.Limits.Depth = 1 << 20 },
		"bytes":  func(o *Options) { o.MaxBodyBytes = -1 },
		"metrics": func(o *Options) {
			reg := prometheus.NewRegistry()
			reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "quern_http_requests_total", Help: "x"}))
			o.Registerer = reg
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := testOptions(t)
			spoil(&opts)
			_, err := New(opts)
			require.Error(t, err)
		})
	}
}

func TestHealthAndReadiness(t *testing.T) {
	var reason error
	s := newServer(t, func(o *Options) { o.Ready = func(context.Context) error { return reason } })
	require.Equal(t, 200, get(t, s, "GET", "/-/healthy").Code)
	require.Equal(t, 200, get(t, s, "HEAD", "/-/ready").Code)

	reason = errors.New("the store does not answer")
	w := get(t, s, "GET", "/-/ready")
	require.Equal(t, 503, w.Code)
	require.Contains(t, w.Body.String(), "the store does not answer")
	require.Equal(t, 200, get(t, s, "GET", "/-/healthy").Code)
}

func TestDrain(t *testing.T) {
	a := &recordingAppender{}
	s := reportServer(t, a, Limits{})
	require.Equal(t, 200, get(t, s, "GET", "/-/ready").Code)
	s.Drain()
	require.Equal(t, 503, get(t, s, "GET", "/-/ready").Code)
	require.Equal(t, 200, get(t, s, "GET", "/-/healthy").Code)
	w := post(t, s, strings.NewReader(oneReport))
	require.Equal(t, 503, w.Code)
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	require.Zero(t, a.calls)
}

// TestDrainEnds: earlier requests finish, later requests are refused, and the monitoring paths are
// served.
func TestDrainEnds(t *testing.T) {
	within, leave := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(o *Options) {
		o.Extra = []Registrar{registrar(func(mux *http.ServeMux) {
			mux.HandleFunc("GET /slow", func(w http.ResponseWriter, _ *http.Request) {
				close(within)
				<-leave
				replyText(w, 200, "done")
			})
			mux.HandleFunc("GET /api/v1/query", func(w http.ResponseWriter, _ *http.Request) { replyText(w, 200, "done") })
		})}
	})
	slow := make(chan int)
	go func() { slow <- get(t, s, "GET", "/slow").Code }()
	<-within
	ended := s.Drain()
	require.Equal(t, 503, get(t, s, "GET", "/-/ready").Code)
	require.Equal(t, 200, get(t, s, "GET", "/-/healthy").Code)
	w := get(t, s, "GET", "/api/v1/query")
	require.Equal(t, 503, w.Code)
	require.Equal(t, "5", w.Header().Get("Retry-After"))
	require.Equal(t, "close", w.Header().Get("Connection"))
	select {
	case <-ended:
		t.Error("a request is under way")
	default:
	}
	close(leave)
	require.Equal(t, 200, <-slow)
	<-ended
	<-s.Drain()
	<-newServer(t, nil).Drain()
}

func TestNotFoundAndMethods(t *testing.T) {
	s := reportServer(t, &recordingAppender{}, Limits{})
	w := get(t, s, "GET", "/api/v1/nothing")
	require.Equal(t, 404, w.Code)
	require.JSONEq(t, `{"status":"error","error":"there is nothing at /api/v1/nothing; GET / lists the endpoints"}`, w.Body.String())

	for _, method := range []string{"GET", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		w = get(t, s, method, reportsPath)
		require.Equal(t, 405, w.Code, method)
		require.Equal(t, "POST", w.Header().Get("Allow"))
		require.Contains(t, w.Body.String(), "use POST")
	}
	w = get(t, s, "POST", "/-/healthy")
	require.Equal(t, 405, w.Code)
	require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	require.Contains(t, w.Body.String(), "use GET or HEAD")
}

// TestIndex: the index lists exactly the endpoints that exist.
func TestIndex(t *testing.T) {
	s := newServer(t, func(o *Options) {
		o.Appender = &recordingAppender{}
		o.Extra = []Registrar{registrar(func(mux *http.ServeMux) {
			mux.HandleFunc("GET /api/v1/query", func(http.ResponseWriter, *http.Request) {})
		})}
	})
	w := get(t, s, "GET", "/")
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), "/api/v1/reports")
	require.Contains(t, w.Body.String(), "/api/v1/query ")
	require.Contains(t, w.Body.String(), "/-/ready")
	require.NotContains(t, w.Body.String(), " /metrics")
	require.NotContains(t, w.Body.String(), "query_range")
}

// A request that uses all of its limits fits into the memory.
func TestRoomForTheLargestBody(t *testing.T) {
	for _, size := range []int64{1 << 20, 100 << 20, 1 << 30} {
		o := Options{Limits: Limits{CompressedBytes: size, BodyBytes: 4 * size}}
		o.EnsureDefaults()
		require.GreaterOrEqual(t, o.MaxInFlightBytes, 5*size)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := newServer(t, func(o *Options) { o.Gatherer, o.Registerer, o.Appender = reg, reg, &recordingAppender{} })
	post(t, s, strings.NewReader(`{"source":"a","measurements":[{"metric":"m","value":1},{}]}`))
	post(t, s, strings.NewReader("{"))
	send(t, s, "/api/v2/write", strings.NewReader("m v=1\nm,\nm v=x\n"))
	get(t, s, "GET", "/made/up")
	w := get(t, s, "GET", "/metrics")
	require.Equal(t, 200, w.Code)
	for _, line := range []string{
		`quern_http_requests_total{code="200",path="/api/v1/reports"} 1`,
		`quern_http_requests_total{code="400",path="/api/v1/reports"} 1`,
		`quern_http_requests_total{code="404",path="unmatched"} 1`,
		`quern_http_request_duration_seconds_count{path="/api/v1/reports"} 2`,
		`quern_http_requests_in_flight 1`,
		`quern_http_undecodable_measurements_total{path="/api/v1/reports"} 1`,
		`quern_http_undecodable_measurements_total{path="/api/v2/write"} 2`,
		`quern_http_undecodable_measurements_total{path="/api/v1/write"} 0`,
	} {
		require.Contains(t, w.Body.String(), line+"\n")
	}
}

func TestPanics(t *testing.T) {
	var log bytes.Buffer
	reg := prometheus.NewRegistry()
	s := newServer(t, func(o *Options) {
		o.Registerer = reg
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Extra = []Registrar{registrar(func(mux *http.ServeMux) {
			mux.HandleFunc("GET /early", func(http.ResponseWriter, *http.Request) { panic("oh") })
			mux.HandleFunc("GET /late", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half")
				panic("oh")
			})
			mux.HandleFunc("GET /abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		})}
	})
	w := get(t, s, "GET", "/early")
	require.Equal(t, 500, w.Code)
	require.Contains(t, w.Body.String(), `"error"`)
	require.Contains(t, log.String(), "server_test.go")

	// Half an answer must not look complete, so the connection is cut.
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { get(t, s, "GET", "/late") })
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { get(t, s, "GET", "/abort") })
	require.InDelta(t, 2, counterValue(t, reg, "quern_http_panics_total"), 0)
	require.InDelta(t, 3, counterValue(t, reg, "quern_http_requests_total"), 0)
}

type panickingAppender struct{}

func (panickingAppender) Append(context.Context, []ingest.Report) (ingest.Result, error) {
	panic("oh")
}

// TestPanicGivesTheBudgetBack: otherwise, after some panics, every report would be refused.
func TestPanicGivesTheBudgetBack(t *testing.T) {
	s := newServer(t, func(o *Options) { o.Appender, o.MaxInFlightBytes = panickingAppender{}, int64(len(oneReport))+4<<10 })
	for range 3 {
		require.Equal(t, 500, post(t, s, strings.NewReader(oneReport)).Code)
	}
}

// TestFormLimit: a handler runs only after its form has been read completely.
func TestFormLimit(t *testing.T) {
	var got string
	s := newServer(t, func(o *Options) {
		o.MaxBodyBytes = 100
		o.MaxFormBytes = 8 << 10
		o.Extra = []Registrar{registrar(func(mux *http.ServeMux) {
			mux.HandleFunc("POST /form", func(w http.ResponseWriter, r *http.Request) {
				got = r.FormValue("x")
				w.(http.Flusher).Flush()
			})
		})}
	})
	send := func(n int) int {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/form", strings.NewReader("x="+strings.Repeat("y", n-2)))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		return w.Code
	}
	for range 3 { // each releases what it held
		require.Equal(t, 200, send(100))
		require.Len(t, got, 98)
		require.Equal(t, 413, send(101))
	}
	claim := s.forms.Claim(admission.Client{})
	require.True(t, claim.Grow(5<<10))
	require.Equal(t, 429, send(10))
	claim.Release()
	require.Equal(t, 200, send(10))
}

func TestHTTPServer(t *testing.T) {
	h := newServer(t, nil).HTTPServer()
	require.NotZero(t, h.ReadHeaderTimeout)
	require.NotZero(t, h.IdleTimeout)
	require.NotZero(t, h.MaxHeaderBytes)
	// Long requests must progress; see demandProgress.
	require.Zero(t, h.ReadTimeout)
	require.Zero(t, h.WriteTimeout)
}

type statusOf struct {
	status Status
	err    error
}

func (s statusOf) AggregationStatus(context.Context, bool) (Status, error) { return s.status, s.err }

// endlessStatus has marks without end.
type endlessStatus struct{}

func (endlessStatus) AggregationStatus(ctx context.Context, _ bool) (Status, error) {
	<-ctx.Done()
	return Status{}, ctx.Err()
}

func TestAggregationStatus(t *testing.T) {
	serve := func(p statusOf) *httptest.ResponseRecorder {
		return get(t, newServer(t, func(o *Options) { o.Status = p }), "GET", "/api/v1/status/aggregation")
	}
	w := serve(statusOf{})
	require.Equal(t, 200, w.Code)
	require.JSONEq(t, `{"levels":[],"buckets":[],"runs":[],"workers":[],"shards":[],"errors":[]}`, w.Body.String())

	w = serve(statusOf{status: Status{
		Levels: []LevelStatus{{Bucket: metric.Raw, Retention: 7 * 24 * time.Hour, WholeFromMs: 17}, {Bucket: 3, WholeFromMs: math.MinInt64}},
		Buckets: []BucketStatus{
			{Bucket: metric.Raw, Outstanding: []OutstandingSlice{{StartMs: 3600000, Marks: 7}}, Lag: 90500 * time.Millisecond},
			{Bucket: 1},
		},
		Runs: []storage.Run{
			{
				SliceKey: storage.SliceKey{Bucket: 1, StartMs: 21600000}, Worker: "w1", StartedMs: 5, Duration: 1500 * time.Millisecond,
				Blocks: 1, Schedules: 2, BlockQueries: 3, IndexQueries: 4, Late: 5, Rescheduled: 6, Dropped: 7, Err: "gone",
			},
			{},
		},
		Workers: []storage.Worker{{ID: "w1", Host: "h", StartedMs: 1, SeenMs: 2}},
		Shards:  []ShardStatus{{Shard: 3, Worker: "w1", Lease: storage.Lease{Shard: 3, Owner: "w1", Fence: 1732161600000000, ExpiresMs: 9}}, {Shard: 4, Worker: "w2"}},
		Errors: []storage.ComponentError{
			{Component: "run", Worker: "w1", TimeMs: 4, SliceKey: storage.SliceKey{Bucket: 2, StartMs: 6}, Start: 128, Message: "no"},
			{Component: "lease", Start: -1, SliceKey: storage.SliceKey{Bucket: 9}},
		},
	}})
	require.Equal(t, 200, w.Code)
	require.JSONEq(t, `{
		"levels":[{"level":"raw","width_seconds":0,"retention_seconds":604800,"whole_from":17},{"level":"24h","width_seconds":86400,"retention_seconds":0}],
		"buckets":[
			{"bucket":"raw","outstanding":[{"slice":3600000,"marks":7}],"lag_seconds":90.5},
			{"bucket":"1h","outstanding":[],"lag_seconds":0}],
		"runs":[
			{"bucket":"1h","slice":21600000,"worker":"w1","started":5,"seconds":1.5,"blocks":1,"schedules":2,"block_queries":3,
			 "index_queries":4,"late":5,"rescheduled":6,"dropped":7,"error":"gone"},
			{"bucket":"raw","slice":0,"worker":"","started":0,"seconds":0,"blocks":0,"schedules":0,"block_queries":0,
			 "index_queries":0,"late":0,"rescheduled":0,"dropped":0}],
		"workers":[{"id":"w1","host":"h","started":1,"seen":2,"aggregates":false}],
		"shards":[{"shard":3,"worker":"w1","owner":"w1","fence":1732161600000000,"expires":9},{"shard":4,"worker":"w2"}],
		"errors":[
			{"component":"run","worker":"w1","time":4,"bucket":"6h","slice":6,"start":128,"message":"no"},
			{"component":"lease","worker":"","time":0,"bucket":"bucket-9","slice":0,"message":""}]}`, w.Body.String())

	waiting := newServer(t, func(o *Options) {
		o.Status = statusOf{status: Status{Buckets: []BucketStatus{{Waiting: []OutstandingSlice{{StartMs: 7200000, Marks: 3}}}, {Bucket: 1}}}}
	})
	w = get(t, waiting, "GET", "/api/v1/status/aggregation?waiting=true")
	require.JSONEq(t, `{"levels":[],"buckets":[
		{"bucket":"raw","outstanding":[],"waiting":[{"slice":7200000,"marks":3}],"lag_seconds":0},
		{"bucket":"1h","outstanding":[],"waiting":[],"lag_seconds":0}],"runs":[],"workers":[],"shards":[],"errors":[]}`, w.Body.String())
	require.NotContains(t, get(t, waiting, "GET", "/api/v1/status/aggregation").Body.String(), "waiting")
	require.Equal(t, 400, get(t, waiting, "GET", "/api/v1/status/aggregation?waiting=perhaps").Code)

	// Waiting work is read from all marks. That takes a turn and releases it.
	turns := admission.NewTurns(1, "queries", 0, admission.NewClients(nil), nil)
	busy := newServer(t, func(o *Options) {
		o.Status, o.Turns = statusOf{}, Turns{Queries: turns, QueryTimeout: time.Millisecond}
	})
	give, err := turns.Take(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, 503, get(t, busy, "GET", "/api/v1/status/aggregation?waiting=true").Code)
	require.Equal(t, 200, get(t, busy, "GET", "/api/v1/status/aggregation").Code)
	give()
	for range 3 {
		free := newServer(t, func(o *Options) { o.Status, o.Turns = statusOf{}, Turns{Queries: turns} })
		require.Equal(t, 200, get(t, free, "GET", "/api/v1/status/aggregation?waiting=true").Code)
	}

	// So has what is outstanding, of which the marks are read too: one of its own, so that it can be seen while all queries are busy.
	own := admission.NewTurns(1, "status", 0, admission.NewClients(nil), nil)
	give, err = own.Take(t.Context(), "")
	require.NoError(t, err)
	limited := Turns{Queries: turns, Status: own, QueryTimeout: time.Millisecond}
	queued := newServer(t, func(o *Options) { o.Status, o.Turns = statusOf{}, limited })
	require.Equal(t, 503, get(t, queued, "GET", "/api/v1/status/aggregation").Code)
	require.Equal(t, 200, get(t, queued, "GET", "/api/v1/status/aggregation?waiting=true").Code)
	give()
	for range 3 {
		require.Equal(t, 200, get(t, queued, "GET", "/api/v1/status/aggregation").Code)
	}
	endless := newServer(t, func(o *Options) { o.Status, o.Turns = endlessStatus{}, limited })
	for range 2 {
		w = get(t, endless, "GET", "/api/v1/status/aggregation")
		require.Equal(t, 503, w.Code)
		require.Contains(t, w.Body.String(), "took longer")
	}

	require.Equal(t, 503, serve(statusOf{err: storage.ErrUnavailable}).Code)
	require.Equal(t, 500, serve(statusOf{err: storage.ErrCorrupt}).Code)
}
