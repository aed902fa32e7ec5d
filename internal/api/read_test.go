package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/storage"
)

// readServer serves the data of a store over real HTTP.
type readServer struct {
	t     *testing.T
	store storage.Store
	ids   *blocks.IDs
	index *query.Index
	url   string
}

func newReadServer(t *testing.T, wrap func(storage.Store) query.Store) *readServer {
	return newReadServerWith(t, wrap, reading.Turns{}, nil)
}

func newReadServerWith(
	t *testing.T, wrap func(storage.Store) query.Store, turns reading.Turns, serve func(*api.Server) string,
) *readServer {
	clk := clock.NewSimulated(apitest.Now)
	s := &readServer{t: t, store: apitest.Store(clk), ids: blocks.NewIDs(1), index: query.NewIndex()}
	st := query.Store(s.store)
	if wrap != nil {
		st = wrap(s.store)
	}
	reader := query.New(query.Parts{Store: st, Index: s.index, Settings: s.store.Settings(), Clock: clk}, query.Options{})
	server := apitest.Server(t, func(o *api.Options) {
		// Connections may end after the test.
		o.Logger = slog.New(slog.DiscardHandler)
		o.Clock, o.Extra = clk, []api.Registrar{reading.New(reader, nil, clk, turns)}
	})
	if serve == nil {
		serve = func(server *api.Server) string { return apitest.Listen(t, server) }
	}
	s.url = serve(server)
	return s
}

func (s *readServer) series(id metric.ScheduleID, pairs ...string) {
	var ls []metric.Label
	for i := 0; i < len(pairs); i += 2 {
		ls = append(ls, metric.Label{Name: pairs[i], Value: pairs[i+1]})
	}
	labels, err := metric.NewLabels(ls...)
	require.NoError(s.t, err)
	s.index.Add([]storage.Schedule{{ID: id, Labels: labels}})
}

// put stores values of a series, one per minute from 11:00 on.
func (s *readServer) put(id metric.ScheduleID, values ...float64) {
	sliceMs := apitest.Now.Add(-time.Hour).UnixMilli()
	var samples []metric.Sample
	for i, v := range values {
		samples = append(samples, metric.Sample{Schedule: id, TimeMs: sliceMs + int64(i)*60_000, Value: v})
	}
	require.NoError(s.t, s.store.Write(s.t.Context(), &storage.Batch{
		Open: []storage.SliceKey{{StartMs: sliceMs}},
		Raw: []storage.RawChunk{{
			Group: id - id%8, SliceMs: sliceMs,
			Chunk: storage.Chunk{ID: s.ids.Next(apitest.Now.UnixMilli()), Data: blocks.AppendSamples(nil, samples)},
		}},
	}))
}

// get returns a complete reply.
func (s *readServer) get(path string, params ...string) (code int, body string, header http.Header) {
	s.t.Helper()
	form := url.Values{}
	for i := 0; i < len(params); i += 2 {
		form.Add(params[i], params[i+1])
	}
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path+"?"+form.Encode(), http.NoBody)
	require.NoError(s.t, err)
	return apitest.Do(s.t, req)
}

func TestReadLines(t *testing.T) {
	s := newReadServer(t, nil)
	s.series(1, "__name__", "cpu", "source", `we"b`, "core", "ü\n")
	s.series(9, "__name__", "mem", "source", "db")
	s.series(10, "__name__", "mem", "source", "silent")
	s.put(1, 1, math.NaN(), -2.5, math.Inf(1), math.Inf(-1), 1e300)
	s.put(9, 4, 6)
	var sk sketch.Sketch
	for _, v := range []float64{2, 2, 2} {
		sk.Add(v)
	}
	hour := apitest.Now.Add(-2 * time.Hour).UnixMilli()
	require.NoError(t, s.store.WriteRollups(t.Context(), 0, 1, []metric.RollupRow{
		{Schedule: 9, TimeMs: hour, Rollup: metric.Rollup{
			Count: 3, Sum: 6, Min: 2, Max: 2, First: 2, Last: 2, FirstMs: hour, LastMs: hour + 9, Increase: 0.5, Sketch: sk.AppendEncoded(nil),
		}},
	}))
	require.NoError(t, s.store.WriteRollups(t.Context(), 0, 2, []metric.RollupRow{
		{Schedule: 9, TimeMs: apitest.Now.Add(-12 * time.Hour).UnixMilli(), Rollup: metric.Rollup{
			Count: 1, Sum: math.Inf(1), Min: 1, Max: 1, First: 1, Last: 1, Sketch: []byte("damaged"), Partial: true,
		}},
	}))
	middle, err := sk.Quantile(0.5, 0, 9)
	require.NoError(t, err)
	require.NotEqual(t, 2.0, middle, "the extremes have nothing to bound")
	const percentiles = `"p50":2,"p90":2,"p99":2`

	const cpu = `{"metric":{"__name__":"cpu","core":"ü\n","source":"we\"b"},`
	const mem = `{"metric":{"__name__":"mem","source":"db"},`
	// 11:00 UTC is 1763722800.
	for _, c := range []struct {
		path   string
		params []string
		want   string
	}{
		{
			"/api/v1/export",
			[]string{"match[]", "cpu"},
			cpu + `"values":[1,null,-2.5,"Infinity","-Infinity",1e+300],` +
				`"timestamps":[1763722800000,1763722860000,1763722920000,1763722980000,1763723040000,1763723100000]}` + "\n",
		},
		{
			"/api/v1/export",
			[]string{"match[]", `cpu{source="none"}`, "match[]", `mem`, "start", "1763722801", "end", "now"},
			mem + `"values":[6],"timestamps":[1763722860000]}` + "\n",
		},
		{"/api/v1/export", []string{"match[]", "mem", "start", "-6h", "end", "-5h"}, ""},
		{
			"/api/v1/export",
			[]string{"match[]", `mem`, "start", "1763722801", "exact", "true"},
			mem + `"values":[6],"timestamps":[1763722860000]}` + "\n",
		},
		{
			"/api/v1/rollups",
			[]string{"match[]", "mem"},
			mem + `"level":"1h","time":1763719200000,"count":3,"sum":6,"min":2,"max":2,"avg":2,"first":2,"last":2,"first_time":1763719200000,"last_time":1763719200009,"increase":0.5,` +
				percentiles + "}\n",
		},
		{
			"/api/v1/rollups",
			[]string{"match[]", "mem", "level", "6h", "start", "2025-11-21T00:00:00Z"},
			mem + `"level":"6h","time":1763683200000,"count":1,"sum":null,"min":1,"max":1,"avg":null,"first":1,"last":1,"first_time":0,"last_time":0,"increase":0,` +
				`"p50":null,"p90":null,"p99":null,"partial":true}` + "\n",
		},
		{
			"/api/v1/points",
			[]string{"match[]", "mem", "start", "1763722800000", "end", "2025-11-21T11:02:00.000Z", "buckets", "3"},
			mem + `"timestamps":[1763722800000,1763722840000,1763722880000],"count":[1,1,0],"min":[4,6,null],"max":[4,6,null],"avg":[4,6,null]}` + "\n",
		},
		{
			"/api/v1/latest",
			[]string{"match[]", `{__name__!=""}`},
			cpu + `"time":1763723100000,"value":1e+300}` + "\n" + mem + `"time":1763722860000,"value":6}` + "\n",
		},
		{"/api/v1/latest", []string{"match[]", "mem", "lookback", "5m"}, ""},
		{
			"/api/v1/summary",
			[]string{"match[]", "mem", "start", "2025-11-21T10:00:00Z", "end", "2025-11-21T11:00:00Z"},
			mem + `"count":3,"sum":6,"min":2,"max":2,"avg":2,` + percentiles + "}\n",
		},
		{
			"/api/v1/baseline",
			[]string{"match[]", "mem"},
			mem + `"rows":1,"count":3,"sum":6,"min":2,"max":2,"avg":2}` + "\n",
		},
		{"/api/v1/baseline", []string{"match[]", "cpu"}, ""},
	} {
		code, body, header := s.get(c.path, c.params...)
		require.Equal(t, http.StatusOK, code, "%s: %s", c.path, body)
		require.Equal(t, c.want, body, "%s %v", c.path, c.params)
		require.Equal(t, "application/x-ndjson", header.Get("Content-Type"))
		for line := range strings.Lines(body) {
			require.True(t, json.Valid([]byte(line)), line)
		}
	}

	code, body, header := s.get("/api/v1/rollups", "match[]", "mem", "level", "6h", "start", "-1d")
	require.Equal(t, http.StatusOK, code, body)
	require.Contains(t, header.Get("Quern-Warning"), "the 6h row at 2025-11-21T00:00:00Z")
}

func TestReadByPost(t *testing.T) {
	s := newReadServer(t, nil)
	s.series(1, "__name__", "cpu")
	s.put(1, 5)
	form := url.Values{"match[]": {"cpu"}, "start": {"-1h"}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/api/v1/export", strings.NewReader(form.Encode()))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	code, body, _ := apitest.Do(t, req)
	require.Equal(t, http.StatusOK, code)
	require.JSONEq(t, `{"metric":{"__name__":"cpu"},"values":[5],"timestamps":[1763722800000]}`, body)
}

// TestPatternsOfARequest: each endpoint bounds the patterns of all selectors together, before
// anything compiles them.
func TestPatternsOfARequest(t *testing.T) {
	s := newReadServer(t, nil)
	s.series(1, "__name__", "cpu")
	some := "{__name__=~`" + strings.Repeat(`\pL`, 100) + "`}"
	for _, path := range []string{"export", "rollups", "points", "latest", "summary", "baseline"} {
		code, body, _ := s.get("/api/v1/"+path, "match[]", some)
		require.Equal(t, http.StatusOK, code, body)
		code, body, _ = s.get("/api/v1/"+path, "match[]", some, "match[]", some, "match[]", some)
		require.Equal(t, http.StatusBadRequest, code, path)
		require.Contains(t, body, "ask in several requests")
	}

	// Memory charged for compiling in one request is not available to others.
	var server *api.Server
	newReadServerWith(t, nil, reading.Turns{}, func(it *api.Server) string { server = it; return "" })
	claim := server.Opts().Forms.Claim(limits.Client{})
	require.True(t, claim.Grow(120<<20))
	require.Equal(t, http.StatusTooManyRequests, ask(t, server, http.MethodGet, "/api/v1/export?match[]="+url.QueryEscape(some), "").Code)
	claim.Release()
	for range 10 { // each releases what it held
		require.Equal(t, http.StatusOK, ask(t, server, http.MethodGet, "/api/v1/export?match[]="+url.QueryEscape(some), "").Code)
	}
}

// TestQueriesHaveATimeout: the timeout covers all queries, including their wait for a turn. Exports
// wait for their turn, but then have no timeout.
func TestQueriesHaveATimeout(t *testing.T) {
	turns := limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Clients: limits.NewClients(nil)})
	give, err := turns.Take(t.Context(), "")
	require.NoError(t, err)
	defer give()
	s := newReadServerWith(t, nil, reading.Turns{Queries: turns, QueryTimeout: time.Millisecond}, nil)
	s.series(1, "__name__", "cpu")
	s.put(1, 5)
	for _, path := range []string{"points", "latest", "summary", "baseline"} {
		code, body, header := s.get("/api/v1/"+path, "match[]", "cpu")
		require.Equal(t, http.StatusServiceUnavailable, code, path)
		require.Contains(t, body, "--query-timeout")
		require.NotEmpty(t, header.Get("Retry-After"))
	}
	code, body, _ := s.get("/api/v1/export", "match[]", "cpu")
	require.Equal(t, http.StatusOK, code, body)
}

func TestBadReadRequests(t *testing.T) {
	s := newReadServer(t, nil)
	s.series(1, "__name__", "cpu")
	for _, c := range []struct {
		method string
		path   string
		query  string
		code   int
		want   string
	}{
		{"GET", "/api/v1/export", "", 400, "no series are selected"},
		{"GET", "/api/v1/export", strings.Repeat("match[]=cpu&", 1001), 400, "1001 selectors, more than the 1000"},
		{"GET", "/api/v1/export", "match[]=cpu{", 400, `selector "cpu{"`},
		{"GET", "/api/v1/export", "match[]={}", 400, "at least one matcher"},
		{"GET", "/api/v1/export", "match[]=cpu&exact=maybe", 400, `exact="maybe": must be true or false`},
		{"GET", "/api/v1/export", "match[]=cpu&start=yesterday", 400, `start="yesterday": must be a time such as`},
		{"GET", "/api/v1/export", "match[]=cpu&end=NaN", 400, `end="NaN"`},
		{"GET", "/api/v1/export", "match[]=cpu&end=1e300", 400, `end="1e300"`},
		{"GET", "/api/v1/export", "match[]=cpu&end=1e16", 400, "years 1 to 9999"},
		{"GET", "/api/v1/export", "match[]=cpu&start=now&end=now", 400, "start must be before end"},
		{"GET", "/api/v1/export", "match[]=cpu&start=-1month", 400, `start="-1month"`},
		{"GET", "/api/v1/export", "match[]=cpu&from=-1h", 400, `unknown parameter "from": /api/v1/export accepts match[], start, end`},
		{"GET", "/api/v1/rollups", "match[]=cpu&level=1h&step=1h", 400, `unknown parameter "step"`},
		{"POST", "/api/v1/latest", "match[]=cpu&start=-1h", 400, `unknown parameter "start": /api/v1/latest accepts match[], lookback`},
		{"GET", "/api/v1/export", "a=%zz", 400, "parameters"},
		{"GET", "/api/v1/rollups", "match[]=cpu&level=raw", 400, `level "raw": there are 1h,6h,24h`},
		{"GET", "/api/v1/rollups", "match[]=cpu&level=2h", 400, `level "2h"`},
		{"GET", "/api/v1/points", "match[]=cpu&buckets=many", 400, `buckets="many": must be a whole number`},
		{"GET", "/api/v1/points", "match[]=cpu&buckets=0", 400, "between 1 and 11000"},
		{"GET", "/api/v1/latest", "match[]=cpu&lookback=-1h", 400, "lookback must be more than 0"},
		{"GET", "/api/v1/latest", "match[]=cpu&lookback=1month", 400, `lookback="1month"`},
		{"DELETE", "/api/v1/export", "match[]=cpu", 405, "/api/v1/export accepts GET and POST, not DELETE"},
		{"PUT", "/api/v1/summary", "", 405, "not PUT"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.url+c.path, http.NoBody)
		require.NoError(t, err)
		req.URL.RawQuery = c.query
		code, body, header := apitest.Do(t, req)
		require.Equal(t, c.code, code, "%s?%s: %s", c.path, c.query, body)
		require.Equal(t, "application/json", header.Get("Content-Type"))
		var reply struct{ Status, Error string }
		require.NoError(t, json.Unmarshal([]byte(body), &reply))
		require.Equal(t, "error", reply.Status)
		require.Contains(t, reply.Error, c.want)
	}
}

// failingStore returns the store's data, then fails.
type failingStore struct {
	query.Store
	err error
}

func (f failingStore) RawChunks(ctx context.Context, ids blocks.Range, fromMs, toMs int64) iter.Seq2[storage.RawChunk, error] {
	return func(yield func(storage.RawChunk, error) bool) {
		for ch, err := range f.Store.RawChunks(ctx, ids, fromMs, toMs) {
			if !yield(ch, err) {
				return
			}
		}
		// The first group is complete, so lines of it may be sent before the error.
		if ids.Start >= 8 {
			yield(storage.RawChunk{}, f.err)
		}
	}
}

func TestReadFails(t *testing.T) {
	for _, c := range []struct {
		err        error
		code       int
		retryAfter string
	}{
		{fmt.Errorf("read: %w", storage.ErrUnavailable), 503, "5"},
		{errors.New("bad luck"), 500, ""},
	} {
		s := newReadServer(t, func(st storage.Store) query.Store { return failingStore{st, c.err} })
		s.series(1, "__name__", "cpu")
		s.series(9, "__name__", "cpu")
		s.put(1, 1, 2, 3)
		code, body, header := s.get("/api/v1/export", "match[]", "cpu")
		require.Equal(t, c.code, code, "nothing was sent yet, so the reply can be an error")
		require.Equal(t, c.retryAfter, header.Get("Retry-After"))
		require.Contains(t, body, `"status":"error"`)
		require.Contains(t, body, c.err.Error())
		require.NotContains(t, body, "metric")
	}
}

// A reply that breaks off must not look complete.
func TestReadFailsHalfWay(t *testing.T) {
	s := newReadServer(t, func(st storage.Store) query.Store { return failingStore{st, storage.ErrUnavailable} })
	s.series(1, "__name__", "cpu")
	s.series(9, "__name__", "cpu", "i", "9")
	values := make([]float64, 60)
	for i := range values {
		values[i] = math.Pi * float64(i)
	}
	for id := range metric.ScheduleID(8) {
		s.series(id, "__name__", "cpu", "i", fmt.Sprint(id), "long", strings.Repeat("x", 16<<10))
		s.put(id, values...)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/api/v1/export?match[]=cpu", http.NoBody)
	require.NoError(t, err)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, http.StatusOK, resp.StatusCode)
	body, err := io.ReadAll(resp.Body)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.JSONEq(t, `{"status":"error","error":"read raw of group 8: the store is unavailable"}`,
		string(body[bytes.LastIndexByte(bytes.TrimSpace(body), '\n')+1:]))
	http.DefaultClient.CloseIdleConnections()
}
