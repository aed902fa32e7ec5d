package api_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/protocol/importer"
	"github.com/quern/quern/internal/protocol/push"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestOptionsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(o *api.Options){
		"clock":  func(o *api.Options) { o.Clock = nil },
		"logger": func(o *api.Options) { o.Logger = nil },
		"limits": func(o *api.Options) { o.Limits.Labels = -1 },
		"depth":  func(o *api.Options) { o.Limits.Depth = 1 << 20 },
		"bytes":  func(o *api.Options) { o.MaxBodyBytes = -1 },
		"metrics": func(o *api.Options) {
			reg := prometheus.NewRegistry()
			reg.MustRegister(prometheus.NewGauge(prometheus.GaugeOpts{Name: "quern_http_requests_total", Help: "x"}))
			o.Registerer = reg
		},
	} {
		t.Run(name, func(t *testing.T) {
			opts := apitest.Options(t)
			spoil(&opts)
			_, err := api.New(opts)
			require.Error(t, err)
		})
	}
}

func TestHealthAndReadiness(t *testing.T) {
	var reason error
	s := apitest.Server(t, func(o *api.Options) { o.Ready = func(context.Context) error { return reason } })
	require.Equal(t, 200, apitest.Get(t, s, "GET", "/-/healthy").Code)
	require.Equal(t, 200, apitest.Get(t, s, "HEAD", "/-/ready").Code)

	reason = errors.New("the store does not answer")
	w := apitest.Get(t, s, "GET", "/-/ready")
	require.Equal(t, 503, w.Code)
	require.Contains(t, w.Body.String(), "the store does not answer")
	require.Equal(t, 200, apitest.Get(t, s, "GET", "/-/healthy").Code)
}

func TestDrain(t *testing.T) {
	a := &apitest.Appender{}
	s := apitest.ReportServer(t, a, push.Limits{})
	require.Equal(t, 200, apitest.Get(t, s, "GET", "/-/ready").Code)
	s.Drain()
	require.Equal(t, 503, apitest.Get(t, s, "GET", "/-/ready").Code)
	require.Equal(t, 200, apitest.Get(t, s, "GET", "/-/healthy").Code)
	w := apitest.Post(t, s, strings.NewReader(apitest.OneReport))
	require.Equal(t, 503, w.Code)
	require.NotEmpty(t, w.Header().Get("Retry-After"))
	require.Zero(t, a.Calls)
}

// TestDrainEnds: earlier requests finish, later requests are refused, and the monitoring paths are
// served.
func TestDrainEnds(t *testing.T) {
	within, leave := make(chan struct{}), make(chan struct{})
	s := apitest.Server(t, func(o *api.Options) {
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			to.HandleFunc(access.Read, route.Filtered, "GET /slow", func(w http.ResponseWriter, _ *http.Request) {
				close(within)
				<-leave
				respond.Text(w, 200, "done")
			})
			to.HandleFunc(access.Read, route.Filtered, "GET /api/v1/query", func(w http.ResponseWriter, _ *http.Request) { respond.Text(w, 200, "done") })
		})}
	})
	slow := make(chan int)
	go func() { slow <- apitest.Get(t, s, "GET", "/slow").Code }()
	<-within
	ended := s.Drain()
	require.Equal(t, 503, apitest.Get(t, s, "GET", "/-/ready").Code)
	require.Equal(t, 200, apitest.Get(t, s, "GET", "/-/healthy").Code)
	w := apitest.Get(t, s, "GET", "/api/v1/query")
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
	<-apitest.Server(t, nil).Drain()
}

func TestNotFoundAndMethods(t *testing.T) {
	s := apitest.ReportServer(t, &apitest.Appender{}, push.Limits{})
	w := apitest.Get(t, s, "GET", "/api/v1/nothing")
	require.Equal(t, 404, w.Code)
	require.JSONEq(t, `{"status":"error","error":"there is nothing at /api/v1/nothing; GET / lists the endpoints"}`, w.Body.String())

	for _, method := range []string{"GET", "PUT", "DELETE", "PATCH", "OPTIONS"} {
		w = apitest.Get(t, s, method, wire.ReportsPath)
		require.Equal(t, 405, w.Code, method)
		require.Equal(t, "POST", w.Header().Get("Allow"))
		require.Contains(t, w.Body.String(), "use POST")
	}
	w = apitest.Get(t, s, "POST", "/-/healthy")
	require.Equal(t, 405, w.Code)
	require.Equal(t, "GET, HEAD", w.Header().Get("Allow"))
	require.Contains(t, w.Body.String(), "use GET or HEAD")
}

// TestIndex: the index lists exactly the endpoints that exist.
func TestIndex(t *testing.T) {
	s := apitest.Server(t, func(o *api.Options) {
		o.Appender = &apitest.Appender{}
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			to.HandleFunc(access.Read, route.Filtered, "GET /api/v1/query", func(http.ResponseWriter, *http.Request) {})
		})}
	})
	w := apitest.Get(t, s, "GET", "/")
	require.Equal(t, 200, w.Code)
	require.Contains(t, w.Body.String(), "/api/v1/reports")
	require.Contains(t, w.Body.String(), "GET /api/v1/query\n")
	require.Contains(t, w.Body.String(), "/-/ready")
	require.NotContains(t, w.Body.String(), "GET /metrics\n")
	require.NotContains(t, w.Body.String(), "query_range")
}

// TestHalfOfEachBudgetRemains: by default, as with other limits, one client holds at most half of
// each budget, and its largest request fits into that.
func TestHalfOfEachBudgetRemains(t *testing.T) {
	var all limits.Clients
	for _, size := range []int64{0, 1 << 20, 100 << 20, 1 << 30} {
		o := apitest.Options(t)
		o.Limits = push.Limits{CompressedBytes: size, BodyBytes: 4 * size}
		o.MaxBodyBytes = size
		s, err := api.New(o)
		require.NoError(t, err)
		for name, c := range map[string]struct {
			budget  *limits.Budget
			largest int64
		}{
			"bodies":  {s.Opts().Bodies, s.Opts().Limits.RequestBytes()},
			"imports": {s.Opts().Imports, importer.MaxBytes()},
			"forms":   {s.Opts().Forms, s.Opts().FormBytes()},
		} {
			greedy, other := c.budget.Claim(all.ByAddress("192.0.2.1:1")), c.budget.Claim(all.ByAddress("192.0.2.2:1"))
			require.True(t, greedy.Grow(c.largest), "%s, %d bytes", name, size)
			for step := c.largest; step > 0; step /= 2 {
				for greedy.Grow(step) {
				}
			}
			require.True(t, other.Grow(c.largest), "%s, %d bytes", name, size)
		}
	}
}

// whose is an appender and a back-filler that notes whose the samples are.
type whose struct {
	apitest.AcceptAll
	clients []limits.Client
}

func (w *whose) Append(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	w.clients = append(w.clients, limits.ClientOf(ctx))
	return w.AcceptAll.Append(ctx, reports)
}

func (w *whose) BackFill(ctx context.Context, reports []ingest.Report) (ingest.Result, error) {
	return w.Append(ctx, reports)
}

// TestIngestKnowsTheClient: reports and imports are counted for the address that they come from.
func TestIngestKnowsTheClient(t *testing.T) {
	for path, body := range map[string]string{
		wire.ReportsPath: apitest.OneReport,
		wire.ImportPath:  fmt.Sprintf(`{"metric":{"__name__":"m","source":"a"},"values":[1],"timestamps":[%d]}`, apitest.Now.UnixMilli()),
		"/write":         "m,host=a value=1\n",
	} {
		got := &whose{}
		s := apitest.Server(t, func(o *api.Options) {
			o.Appender, o.BackFiller, o.Sources = got, got, metric.SourceLabels{"host"}
			o.Clients = limits.NewClients(limits.Loopback())
		})
		for _, address := range []string{"192.0.2.1:1", "127.0.0.1:1"} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, strings.NewReader(body))
			r.RemoteAddr = address
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			require.Less(t, w.Code, 300, "%s: %s", path, w.Body)
		}
		require.Equal(t, []limits.Client{s.Opts().Clients.ByAddress("192.0.2.1:2"), {}}, got.clients, path)
		require.NotEqual(t, got.clients[0], got.clients[1], path)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := apitest.Server(t, func(o *api.Options) { o.Gatherer, o.Registerer, o.Appender = reg, reg, &apitest.Appender{} })
	apitest.Post(t, s, strings.NewReader(`{"source":"a","measurements":[{"metric":"m","value":1},{}]}`))
	apitest.Post(t, s, strings.NewReader("{"))
	apitest.Send(t, s, "/api/v2/write", strings.NewReader("m v=1\nm,\nm v=x\n"))
	apitest.Get(t, s, "GET", "/made/up")
	w := apitest.Get(t, s, "GET", "/metrics")
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
	s := apitest.Server(t, func(o *api.Options) {
		o.Registerer = reg
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			to.HandleFunc(access.Read, route.Filtered, "GET /early", func(http.ResponseWriter, *http.Request) { panic("oh") })
			to.HandleFunc(access.Read, route.Filtered, "GET /late", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, "half")
				panic("oh")
			})
			to.HandleFunc(access.Read, route.Filtered, "GET /abort", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		})}
	})
	w := apitest.Get(t, s, "GET", "/early")
	require.Equal(t, 500, w.Code)
	require.Contains(t, w.Body.String(), `"error"`)
	require.Contains(t, log.String(), "server_test.go")

	// Half an answer must not look complete, so the connection is cut.
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { apitest.Get(t, s, "GET", "/late") })
	require.PanicsWithValue(t, http.ErrAbortHandler, func() { apitest.Get(t, s, "GET", "/abort") })
	require.InDelta(t, 2, apitest.Counter(t, reg, "quern_http_panics_total"), 0)
	require.InDelta(t, 3, apitest.Counter(t, reg, "quern_http_requests_total"), 0)
}

type panickingAppender struct{}

func (panickingAppender) Append(context.Context, []ingest.Report) (ingest.Result, error) {
	panic("oh")
}

// TestPanicGivesTheBudgetBack: otherwise, after some panics, every report would be refused.
func TestPanicGivesTheBudgetBack(t *testing.T) {
	s := apitest.Server(t, func(o *api.Options) {
		o.Appender, o.Bodies = panickingAppender{}, apitest.Share(push.MinBufferBytes+4<<10)
	})
	for range 3 {
		require.Equal(t, 500, apitest.Post(t, s, strings.NewReader(apitest.OneReport)).Code)
	}
}

// TestFormLimit: a handler runs only after its form has been read completely.
func TestFormLimit(t *testing.T) {
	var got string
	s := apitest.Server(t, func(o *api.Options) {
		o.MaxBodyBytes = 100
		o.Forms = apitest.Share(4 << 10)
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			to.HandleFunc(access.Read, route.Filtered, "POST /form", func(w http.ResponseWriter, r *http.Request) {
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
	claim := s.Opts().Forms.Claim(limits.Client{})
	require.True(t, claim.Grow(5<<10))
	require.Equal(t, 429, send(10))
	claim.Release()
	require.Equal(t, 200, send(10))
}

// endlessStatus has marks without end.
type endlessStatus struct{ apitest.Status }

func (endlessStatus) AggregationStatus(ctx context.Context, _ bool) (wire.Status, error) {
	<-ctx.Done()
	return wire.Status{}, ctx.Err()
}

// askedStatus has a bucket of which nothing waits, if that is asked.
type askedStatus struct{ apitest.Status }

func (askedStatus) AggregationStatus(_ context.Context, waiting bool) (wire.Status, error) {
	b := wire.Bucket{}
	if waiting {
		b.Waiting = &[]wire.Slice{}
	}
	return wire.Status{Buckets: []wire.Bucket{b}}, nil
}

// TestAggregationStatus: the status takes a turn of its own, so that it can be seen while all queries are busy; with what
// waits, for which all marks are read, one of the queries.
func TestAggregationStatus(t *testing.T) {
	serve := func(p apitest.Status) *httptest.ResponseRecorder {
		return apitest.Get(t, apitest.Server(t, func(o *api.Options) { o.Status = p }), "GET", "/api/v1/status/aggregation")
	}
	w := serve(apitest.Status{Reply: wire.Status{Workers: []wire.Worker{{ID: "w1", Host: "<h>"}}}})
	require.Equal(t, 200, w.Code)
	require.Equal(t, "application/json", w.Header().Get("Content-Type"))
	require.Contains(t, w.Body.String(), `"workers":[{"id":"w1","host":"<h>",`)

	waiting := apitest.Server(t, func(o *api.Options) { o.Status = askedStatus{} })
	require.Contains(t, apitest.Get(t, waiting, "GET", "/api/v1/status/aggregation?waiting=true").Body.String(), `"waiting":[]`)
	require.NotContains(t, apitest.Get(t, waiting, "GET", "/api/v1/status/aggregation").Body.String(), "waiting")
	require.Equal(t, 400, apitest.Get(t, waiting, "GET", "/api/v1/status/aggregation?waiting=perhaps").Code)

	// Waiting work is read from all marks. That takes a turn and releases it.
	turns := limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Clients: limits.NewClients(nil)})
	busy := apitest.Server(t, func(o *api.Options) {
		o.Status, o.Turns = apitest.Status{}, reading.Turns{Queries: turns, QueryTimeout: time.Millisecond}
	})
	give, err := turns.Take(t.Context(), "")
	require.NoError(t, err)
	require.Equal(t, 503, apitest.Get(t, busy, "GET", "/api/v1/status/aggregation?waiting=true").Code)
	require.Equal(t, 200, apitest.Get(t, busy, "GET", "/api/v1/status/aggregation").Code)
	give()
	for range 3 {
		free := apitest.Server(t, func(o *api.Options) { o.Status, o.Turns = apitest.Status{}, reading.Turns{Queries: turns} })
		require.Equal(t, 200, apitest.Get(t, free, "GET", "/api/v1/status/aggregation?waiting=true").Code)
	}

	// So has what is outstanding, of which the marks are read too: one of its own, so that it can be
	// seen while all queries are busy.
	statusTurns := limits.NewTurns(limits.TurnOptions{N: 1, Name: "status", Clients: limits.NewClients(nil)})
	give, err = statusTurns.Take(t.Context(), "")
	require.NoError(t, err)
	limited := reading.Turns{Queries: turns, Status: statusTurns, QueryTimeout: time.Millisecond}
	queued := apitest.Server(t, func(o *api.Options) { o.Status, o.Turns = apitest.Status{}, limited })
	require.Equal(t, 503, apitest.Get(t, queued, "GET", "/api/v1/status/aggregation").Code)
	require.Equal(t, 200, apitest.Get(t, queued, "GET", "/api/v1/status/aggregation?waiting=true").Code)
	give()
	for range 3 {
		require.Equal(t, 200, apitest.Get(t, queued, "GET", "/api/v1/status/aggregation").Code)
	}
	endless := apitest.Server(t, func(o *api.Options) { o.Status, o.Turns = endlessStatus{}, limited })
	for range 2 {
		w = apitest.Get(t, endless, "GET", "/api/v1/status/aggregation")
		require.Equal(t, 503, w.Code)
		require.Contains(t, w.Body.String(), "took longer")
	}

	require.Equal(t, 503, serve(apitest.Status{Err: storage.ErrUnavailable}).Code)
	require.Equal(t, 500, serve(apitest.Status{Err: storage.ErrCorrupt}).Code)
}

// rangedStatus has a time line that begins and ends as asked.
type rangedStatus struct{ apitest.Status }

func (rangedStatus) Slices(_ context.Context, fromMs, toMs int64) (wire.Slices, error) {
	return wire.Slices{Buckets: []wire.BucketSlices{{Bucket: "raw", Start: fromMs, End: toMs, Slices: []wire.SliceState{}}}}, nil
}

func TestSlices(t *testing.T) {
	const path = "/api/v1/status/slices"
	s := apitest.Server(t, func(o *api.Options) { o.Status = rangedStatus{} })
	for query, want := range map[string]string{
		"": `"start":1732075200000,"end":1732161600000`, "?start=-1h": `"start":1732158000000,"end":1732161600000`,
		"?start=1732100000&end=1732200000000": `"start":1732100000000,"end":1732200000000`,
	} {
		w := apitest.Get(t, s, "GET", path+query)
		require.Equal(t, 200, w.Code)
		require.JSONEq(t, `{"buckets":[{"bucket":"raw",`+want+`,"slices":[]}]}`, w.Body.String())
	}
	for query, want := range map[string]string{
		"?start=soon": "start=", "?end=soon": "end=", "?start=now&end=-1h": "start must be before end",
		"?end=9999999999999999": "years 1 to 9999", "?form=-1h": `unknown parameter \"form\"`,
	} {
		w := apitest.Get(t, s, "GET", path+query)
		require.Equal(t, 400, w.Code, query)
		require.Contains(t, w.Body.String(), want)
	}
	require.Equal(t, 405, apitest.Get(t, s, "DELETE", path).Code)

	failing := func(err error) int {
		return apitest.Get(t, apitest.Server(t, func(o *api.Options) { o.Status = apitest.Status{Err: err} }), "GET", path).Code
	}
	require.Equal(t, 503, failing(storage.ErrUnavailable))
	require.Equal(t, 500, failing(storage.ErrCorrupt))
	require.Equal(t, 429, failing(limits.ErrNoRoom))
}

// TestPage: browsers get the page at its addresses, from links of others too, and other programs get what they always
// got.
func TestPage(t *testing.T) {
	s, _ := everything(t, api.Origins{CORS: regexp.MustCompile("^https://pages.example$")})
	const browser = "text/html,*/*;q=0.8"
	visit := []string{"Accept", browser, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}
	for _, path := range []string{"/", "/explore?q=up", "/grinding", "/metrics-explorer", "/dashboards/one", "/send"} {
		w := ask(t, s, http.MethodGet, here+path, "", visit...)
		require.Equal(t, 200, w.Code, path)
		require.Contains(t, w.Body.String(), `<div id="page">`)
		require.Contains(t, w.Header().Values("Vary"), "Origin")
	}
	require.Contains(t, ask(t, s, http.MethodGet, here+"/", "", visit...).Header().Values("Vary"), "Accept")
	text := ask(t, s, http.MethodGet, here+"/", "", "Accept", "*/*")
	require.True(t, strings.HasPrefix(text.Body.String(), "Quern, a time-series store."), text.Body)
	require.Contains(t, text.Header().Values("Vary"), "Accept")

	// Pages of others neither frame it nor take its files, and nobody else's addresses become visits.
	framed := []string{"Accept", browser, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}
	require.Equal(t, http.StatusForbidden, ask(t, s, http.MethodGet, here+"/explore", "", framed...).Code)
	require.Equal(t, http.StatusForbidden, ask(t, s, http.MethodGet, here+"/assets/main.js", "", "Sec-Fetch-Site", "cross-site").Code)
	require.Equal(t, http.StatusForbidden, ask(t, s, http.MethodGet, here+"/api/v1/query", "", visit...).Code)
	require.Equal(t, http.StatusMethodNotAllowed, ask(t, s, http.MethodPost, here+"/explore", "").Code)

	// Without a status there is nothing that it could show.
	s = apitest.Server(t, func(o *api.Options) { o.Appender = &apitest.Appender{} })
	require.True(t, strings.HasPrefix(ask(t, s, http.MethodGet, here+"/", "", visit...).Body.String(), "Quern, a time-series store."))
	require.Equal(t, http.StatusNotFound, ask(t, s, http.MethodGet, here+"/explore", "", visit...).Code)
}
