package promapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	jsoniter "github.com/json-iterator/go"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	promstorage "github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
	"github.com/prometheus/prometheus/util/jsonutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// loaded are the series of tests. Each has a sample every 10 s from 0 to 300 s, the first of them
// start, and each greater than the one before by step.
var loaded = []struct {
	labels      metric.Labels
	start, step float64
}{
	{labels: querytest.Named("up", metric.Label{Name: "instance", Value: "a"}, metric.Label{Name: "job", Value: "web"}), start: 1},
	{labels: querytest.Named("up", metric.Label{Name: "instance", Value: "b"}, metric.Label{Name: "job", Value: "web"})},
	{labels: querytest.Named("requests_total", metric.Label{Name: "instance", Value: "a"}, metric.Label{Name: "job", Value: "web"}), step: 5},
	{labels: querytest.Named("odd", metric.Label{Name: "instance", Value: "a"}, metric.Label{Name: "path", Value: `C:\x "y"`}), start: 1},
}

type list []metric.Metadata

func (l list) List(name string, limit int) []metric.Metadata {
	var out []metric.Metadata
	for _, m := range l {
		if (name == "" || m.Name == name) && (limit == 0 || len(out) < limit) {
			out = append(out, m)
		}
	}
	return out
}

func newAPI(t *testing.T, change func(*Options)) http.Handler {
	t.Helper()
	return newAPIWith(t, promquery.Options{}, change)
}

func newAPIWith(t *testing.T, limits promquery.Options, change func(*Options)) http.Handler {
	t.Helper()
	clk := clock.NewSimulated(time.Unix(100, 0))
	w := querytest.New(t, "model", storage.Retention{}, clk.Now().UnixMilli())
	for _, series := range loaded {
		for i := range int64(31) {
			w.Put(metric.Sample{Schedule: w.ID(series.labels), TimeMs: i * 10_000, Value: series.start + float64(i)*series.step})
		}
	}
	limits.MaxSamples = 10_000
	engine, queryable := promquery.New(w.Querier, limits)
	opts := Options{
		Engine: engine, Queryable: queryable, Clock: clk, Version: "1.2.3",
		Logger:   slog.New(slog.DiscardHandler),
		Querier:  w.Querier,
		Metadata: list{{Name: "up", Type: metric.TypeGauge, Help: "is it?"}, {Name: "requests_total", Type: metric.TypeCounter, Unit: "requests"}},
	}
	if change != nil {
		change(&opts)
	}
	mux := route.NewTable()
	New(opts).Register(mux)
	return mux
}

func ask(t *testing.T, h http.Handler, method, target string) (code int, body string) {
	t.Helper()
	var r *http.Request
	if path, form, found := strings.Cut(target, "?"); method == http.MethodPost && found {
		r = httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(form))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else {
		r = httptest.NewRequestWithContext(t.Context(), method, target, nil)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Code, w.Body.String()
}

// Unknown parameters are named in a header; the answer itself is as Prometheus'.
func TestUnknownParameters(t *testing.T) {
	h := newAPI(t, nil)
	for target, want := range map[string][]string{
		"/api/v1/query?query=1&time=1&timeout=1s&limit=1&lookback_delta=1m&stats=all&levels=1": nil,
		"/api/v1/query_range?query=1&start=1&end=2&step=1":                                     nil,
		"/api/v1/query?query=1&tiem=5&dedup=true":                                              {`unknown parameter "dedup" is ignored`, `unknown parameter "tiem" is ignored`},
		"/api/v1/series?match[]=up&from=1":                                                     {`unknown parameter "from" is ignored`},
		"/api/v1/label/job/values?matchers[]=up":                                               {`unknown parameter "matchers[]" is ignored`},
		"/api/v1/metadata?name=up":                                                             {`unknown parameter "name" is ignored`},
		"/api/v1/labels?" + url.QueryEscape("a\r\nX: é"+strings.Repeat("x", 99)) + "=":         {`unknown parameter "a\r\nX: \u00e9` + strings.Repeat("x", 56) + `" is ignored`},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, target, nil))
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.Equal(t, want, w.Header().Values("Quern-Warning"), target)
	}
}

// Answers are Prometheus', byte for byte.
func TestAnswers(t *testing.T) {
	h := newAPI(t, nil)
	q := url.QueryEscape
	for target, want := range map[string]string{
		"/api/v1/query?time=100.5&query=" + q("sort_desc(up)"): `{"status":"success","data":{"resultType":"vector","result":[` +
			`{"metric":{"__name__":"up","instance":"a","job":"web"},"value":[100.500,"1"]},` +
			`{"metric":{"__name__":"up","instance":"b","job":"web"},"value":[100.500,"0"]}]}}`,
		"/api/v1/query?query=odd": `{"status":"success","data":{"resultType":"vector","result":[` +
			`{"metric":{"__name__":"odd","instance":"a","path":"C:\\x \"y\""},"value":[100,"1"]}]}}`,
		"/api/v1/query?query=nothing":                         `{"status":"success","data":{"resultType":"vector","result":[]}}`,
		"/api/v1/query?query=" + q("1/0"):                     `{"status":"success","data":{"resultType":"scalar","result":[100,"+Inf"]}}`,
		"/api/v1/query?query=" + q(`"a<b"`):                   `{"status":"success","data":{"resultType":"string","result":[100,"a<b"]}}`,
		"/api/v1/query?time=1970-01-01T00:01:40Z&query=1":     `{"status":"success","data":{"resultType":"scalar","result":[100,"1"]}}`,
		"/api/v1/query?limit=1&query=" + q("sum by(job)(up)"): `{"status":"success","data":{"resultType":"vector","result":[{"metric":{"job":"web"},"value":[100,"1"]}]}}`,
		"/api/v1/query?limit=1&query=" + q("sort_desc(up)"): `{"status":"success","data":{"resultType":"vector","result":[` +
			`{"metric":{"__name__":"up","instance":"a","job":"web"},"value":[100,"1"]}]},"warnings":["results truncated due to limit"]}`,
		"/api/v1/query?time=100&query=" + q("rate(odd[1m])"): `{"status":"success","data":{"resultType":"vector","result":[` +
			`{"metric":{"instance":"a","path":"C:\\x \"y\""},"value":[100,"0"]}]},` +
			`"infos":["PromQL info: metric might not be a counter, name does not end in _total/_sum/_count/_bucket: \"odd\" (1:6)"]}`,
		"/api/v1/query_range?query=" + q(`requests_total`) + "&start=100&end=120&step=10": `{"status":"success","data":{"resultType":"matrix","result":[` +
			`{"metric":{"__name__":"requests_total","instance":"a","job":"web"},"values":[[100,"50"],[110,"55"],[120,"60"]]}]}}`,
		"/api/v1/query_range?query=1&start=0&end=0.002&step=1ms": `{"status":"success","data":{"resultType":"matrix","result":[` +
			`{"metric":{},"values":[[0,"1"],[0.001,"1"],[0.002,"1"]]}]}}`,
		"/api/v1/format_query?query=" + q("sum(up)by(job)"): `{"status":"success","data":"sum by (job) (up)"}`,
		"/api/v1/series?match[]=up&match[]=" + q(`{instance="b"}`): `{"status":"success","data":[` +
			`{"__name__":"up","instance":"a","job":"web"},{"__name__":"up","instance":"b","job":"web"}]}`,
		"/api/v1/series?match[]=none":                          `{"status":"success","data":[]}`,
		"/api/v1/series?match[]=up&limit=1":                    `{"status":"success","data":[{"__name__":"up","instance":"a","job":"web"}],"warnings":["results truncated due to limit"]}`,
		"/api/v1/labels":                                       `{"status":"success","data":["__name__","instance","job","path"]}`,
		"/api/v1/labels?match[]=odd":                           `{"status":"success","data":["__name__","instance","path"]}`,
		"/api/v1/labels?limit=1":                               `{"status":"success","data":["__name__"],"warnings":["results truncated due to limit"]}`,
		"/api/v1/label/instance/values":                        `{"status":"success","data":["a","b"]}`,
		"/api/v1/label/U__instance/values":                     `{"status":"success","data":["a","b"]}`,
		"/api/v1/label/none/values":                            `{"status":"success","data":[]}`,
		"/api/v1/label/instance/values?match[]=requests_total": `{"status":"success","data":["a"]}`,
		"/api/v1/metadata":                                     `{"status":"success","data":{"requests_total":[{"type":"counter","help":"","unit":"requests"}],"up":[{"type":"gauge","help":"is it?","unit":""}]}}`,
		"/api/v1/metadata?metric=up":                           `{"status":"success","data":{"up":[{"type":"gauge","help":"is it?","unit":""}]}}`,
		"/api/v1/metadata?metric=none":                         `{"status":"success","data":{}}`,
		"/api/v1/query_exemplars?query=up&start=0&end=1":       `{"status":"success","data":[]}`,
		"/api/v1/rules":                                        `{"status":"success","data":{"groups":[]}}`,
		"/api/v1/alerts":                                       `{"status":"success","data":{"alerts":[]}}`,
	} {
		t.Run(target, func(t *testing.T) {
			code, body := ask(t, h, http.MethodGet, target)
			require.Equal(t, want, body)
			require.Equal(t, http.StatusOK, code)
			if !strings.Contains(target, "/label/") && !strings.Contains(target, "metadata") && !strings.Contains(target, "rules") && !strings.Contains(target, "alerts") {
				code, body = ask(t, h, http.MethodPost, target)
				require.Equal(t, want, body)
				require.Equal(t, http.StatusOK, code)
			}
		})
	}
	_, body := ask(t, h, http.MethodGet, "/api/v1/status/buildinfo")
	require.Contains(t, body, `"version":"3.`)
	require.Contains(t, body, `"applicationVersion":"1.2.3"`)
}

// Error messages are Prometheus'.
func TestErrors(t *testing.T) {
	h := newAPI(t, nil)
	q := url.QueryEscape
	for target, want := range map[string]struct {
		code        int
		kind, error string
	}{
		"/api/v1/query":                     {400, "bad_data", `invalid parameter "query": unknown position: parse error: no expression found in input`},
		"/api/v1/query?query=" + q("sum("):  {400, "bad_data", `invalid parameter "query": 1:5: parse error: unclosed left parenthesis`},
		"/api/v1/query?query=1&time=x":      {400, "bad_data", `invalid parameter "time": invalid time value for 'time': cannot parse "x" to a valid timestamp`},
		"/api/v1/query?query=1&time=NaN":    {400, "bad_data", `invalid parameter "time": invalid time value for 'time': cannot parse "NaN" to a valid timestamp`},
		"/api/v1/query?query=1&time=1e300":  {400, "bad_data", `invalid parameter "time": invalid time value for 'time': cannot parse "1e300" to a valid timestamp`},
		"/api/v1/query?query=1&timeout=x":   {400, "bad_data", `invalid parameter "timeout": cannot parse "x" to a valid duration`},
		"/api/v1/query?query=1&timeout=NaN": {400, "bad_data", `invalid parameter "timeout": cannot parse "NaN" to a valid duration. It overflows int64`},
		// 2^63 ns, one more than a duration has.
		"/api/v1/query?query=1&timeout=9223372036.854775807": {400, "bad_data", `invalid parameter "timeout": cannot parse "9223372036.854775807" to a valid duration. It overflows int64`},
		"/api/v1/query?query=1&timeout=293y":                 {400, "bad_data", `invalid parameter "timeout": cannot parse "293y" to a valid duration`},
		"/api/v1/query?query=1&limit=-1":                     {400, "bad_data", `invalid parameter "limit": limit must be non-negative`},
		"/api/v1/query?query=1&limit=x":                      {400, "bad_data", `invalid parameter "limit": strconv.Atoi: parsing "x": invalid syntax`},
		"/api/v1/query?query=" + q("up + on() up"): {422, "execution", "found duplicate series for the match group {} on the right hand-side of the operation: " +
			"[{__name__=\"up\", instance=\"b\", job=\"web\"}, {__name__=\"up\", instance=\"a\", job=\"web\"}];many-to-many matching not allowed: matching labels must be unique on one side"},
		"/api/v1/query_range?query=1&start=0&end=1":                          {400, "bad_data", `invalid parameter "step": cannot parse "" to a valid duration`},
		"/api/v1/query_range?query=1&start=0&end=1&step=0":                   {400, "bad_data", `invalid parameter "step": zero or negative query resolution step widths are not accepted. Try a positive integer`},
		"/api/v1/query_range?query=1&start=0&end=20000&step=1":               {400, "bad_data", `exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)`},
		"/api/v1/query?query=1&time=1e15":                                    {400, "bad_data", `invalid parameter "time": expressions can be evaluated from 1677-09-21T00:12:43Z to 2262-04-11T23:47:16Z only`},
		"/api/v1/query_range?query=1&start=-1e12&end=1&step=1e9":             {400, "bad_data", `invalid parameter "start": expressions can be evaluated from 1677-09-21T00:12:43Z to 2262-04-11T23:47:16Z only`},
		"/api/v1/query_range?query=1&start=1&end=1e12&step=1e9":              {400, "bad_data", `invalid parameter "end": expressions can be evaluated from 1677-09-21T00:12:43Z to 2262-04-11T23:47:16Z only`},
		"/api/v1/query_range?query=1&start=-9.2e9&end=9.2e9&step=1.2e6":      {400, "bad_data", `exceeded maximum resolution of 11,000 points per timeseries. Try decreasing the query resolution (?step=XX)`},
		"/api/v1/query_range?query=1&start=1&end=1&step=0.0001":              {400, "bad_data", `invalid parameter "step": times have millisecond precision: the step must be at least 1ms`},
		"/api/v1/query_range?query=1&start=2&end=1&step=1":                   {400, "bad_data", `invalid parameter "end": end timestamp must not be before start time`},
		"/api/v1/query_range?query=" + q("up[1m]") + "&start=0&end=1&step=1": {400, "bad_data", `invalid parameter "query": invalid expression type "range vector" for range query, must be Scalar or instant Vector`},
		"/api/v1/series": {400, "bad_data", `no match[] parameter provided`},
		"/api/v1/series?match[]=" + q(`{a=~".*"}`): {400, "bad_data", `invalid parameter "match[]": match[] must contain at least one non-empty matcher`},
		"/api/v1/labels?start=x":                   {400, "bad_data", `invalid parameter "start": invalid time value for 'start': cannot parse "x" to a valid timestamp`},
		"/api/v1/label/%FF/values":                 {400, "bad_data", `invalid label name: "\xff"`},
	} {
		t.Run(target, func(t *testing.T) {
			code, body := ask(t, h, http.MethodGet, target)
			var got struct{ Status, ErrorType, Error string }
			require.NoError(t, json.Unmarshal([]byte(body), &got))
			require.Equal(t, "error", got.Status)
			require.Equal(t, want.kind, got.ErrorType)
			if want.code == 422 { // the order of the two is not fixed
				require.Len(t, got.Error, len(want.error))
			} else {
				require.Equal(t, want.error, got.Error)
			}
			require.Equal(t, want.code, code)
		})
	}
	// The form is invalid.
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/query", strings.NewReader("query=%zz"))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	require.Equal(t, http.StatusBadRequest, w.Code)
}

// TestDeepExpressions: an expression that is too long is refused before recursion over it ends the
// process; the deepest allowed expression is answered.
func TestDeepExpressions(t *testing.T) {
	h := newAPI(t, nil)
	nested := func(begin, end string, n int) string {
		return strings.Repeat(begin, n) + "up" + strings.Repeat(end, n)
	}
	for _, path := range []string{"/api/v1/query?query=", "/api/v1/query_range?start=0&end=1&step=1&query=", "/api/v1/format_query?query="} {
		for _, expr := range []string{nested("sum(", ")", 1_000_000), nested("-", "", query.MaxWords), nested("1+", "", query.MaxWords/2)} {
			code, body := ask(t, h, http.MethodPost, path+url.QueryEscape(expr))
			require.Equal(t, http.StatusBadRequest, code, "%.200s", body)
			require.JSONEq(t, `{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": it has more than 10000 words"}`, body)
		}
	}
	for _, expr := range []string{
		nested("sum(", ")", query.MaxWords/3-1), nested("(", ")", query.MaxWords/2-1),
		`up{instance=~"` + strings.Repeat("a|", query.MaxWords) + `"}`,
	} {
		code, body := ask(t, h, http.MethodPost, "/api/v1/query?query="+url.QueryEscape(expr))
		require.Equal(t, http.StatusOK, code, "%.200s", body)
	}
}

// TestFormattingIsBounded: formatting takes the cube of how deep an expression nests, and looks at no context.
func TestFormattingIsBounded(t *testing.T) {
	h := newAPI(t, nil)
	nested := func(begin, end string, n int) string {
		return strings.Repeat(begin, n) + "up" + strings.Repeat(end, n)
	}
	format := func(expr string) (int, string) {
		return ask(t, h, http.MethodPost, "/api/v1/format_query?query="+url.QueryEscape(expr))
	}
	for _, expr := range []string{
		nested("abs(", ")", 500), nested("sum by (job) (", ")", 500), nested("-", "", 800), nested("up + ", "", 500),
		nested("abs(", ")", 50) + ` + up{job="` + strings.Repeat("a", 200_000) + `"}`,
	} {
		code, body := format(expr)
		require.Equal(t, http.StatusBadRequest, code, "%.100s", expr)
		require.Contains(t, body, "levels deep")
	}
	for _, expr := range []string{nested("abs(", ")", 100), nested("up + ", "", 200), `up{job="` + strings.Repeat("a", 200_000) + `"}`} {
		code, body := format(expr)
		require.Equal(t, http.StatusOK, code, "%.100s", body)
	}
}

// TestPatternsAreBounded: no endpoint compiles what one request may not ask for, nor what there is no room for.
func TestPatternsAreBounded(t *testing.T) {
	h := newAPI(t, func(o *Options) { o.Deleter = &deleter{} })
	letters := func(n int) string { return "{instance=~`" + strings.Repeat(`\pL`, n) + "`}" }
	for path, method := range map[string]string{
		"query?query=": http.MethodGet, "query_range?start=0&end=1&step=1&query=": http.MethodGet, "format_query?query=": http.MethodGet,
		"query_exemplars?query=": http.MethodGet, "series?match[]=": http.MethodGet, "labels?match[]=": http.MethodGet,
		"label/job/values?match[]=": http.MethodGet, "admin/tsdb/delete_series?match[]=": http.MethodPost,
	} {
		var code int
		var body string
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for _, expr := range []string{letters(19_000), `label_replace(up,"a","b","c",` + "`" + strings.Repeat(`\pL`, 19_000) + "`)"} {
			code, body = ask(t, h, method, "/api/v1/"+path+url.QueryEscape(expr))
			require.Equal(t, http.StatusBadRequest, code, path)
			require.Contains(t, body, "ask in several requests")
		}
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20), path)

		small := limits.NewBudget(16<<20, 0)
		claim := small.Claim(limits.Client{})
		r := httptest.NewRequestWithContext(limits.WithClaim(t.Context(), &claim), method, "/api/v1/"+path+url.QueryEscape(letters(100)), nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusTooManyRequests, w.Code, path)
		require.NotEmpty(t, w.Header().Get("Retry-After"))
	}
}

// failing is an engine whose queries fail with err.
type failing struct {
	promql.QueryEngine
	err error
}

type failed struct {
	promql.Query
	err error
}

func (f failing) NewInstantQuery(context.Context, promstorage.Queryable, promql.QueryOpts, string, time.Time) (promql.Query, error) {
	return failed{err: f.err}, nil
}
func (f failed) Exec(context.Context) *promql.Result { return &promql.Result{Err: f.err} }
func (failed) Close()                                {}

func TestKindsOfErrors(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		kind string
	}{
		{promql.ErrQueryCanceled("x"), 499, "canceled"},
		{context.Canceled, 499, "canceled"},
		{promql.ErrQueryTimeout("x"), 503, "timeout"},
		{promql.ErrStorage{Err: errors.New("disk")}, 500, "internal"},
		{promql.ErrStorage{Err: fmt.Errorf("read: %w", storage.ErrTimeout)}, 503, "unavailable"},
		{promql.ErrStorage{Err: fmt.Errorf("%w: %w", storage.ErrTimeout, context.DeadlineExceeded)}, 503, "timeout"},
		{promql.ErrStorage{Err: &query.RequestError{Message: "too many series"}}, 422, "execution"},
		{fmt.Errorf("expanding series: %w", promql.ErrStorage{Err: limits.ErrNoRoom}), 429, "unavailable"},
		{promql.ErrTooManySamples("x"), 422, "execution"},
		{errors.New("x"), 422, "execution"},
	} {
		h := newAPI(t, func(o *Options) { o.Engine = failing{err: c.err} })
		code, body := ask(t, h, http.MethodGet, "/api/v1/query?query=1")
		require.Equal(t, c.code, code, "%v", c.err)
		require.Contains(t, body, `"errorType":"`+c.kind+`"`)
	}
}

func TestWaitForATurn(t *testing.T) {
	turns := func(wait time.Duration) *limits.Turns {
		return limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Wait: wait, Clients: limits.NewClients(nil)})
	}
	for _, c := range []struct {
		bound, wait time.Duration
		path        string
	}{
		{time.Millisecond, 0, "query?query=1"},
		{0, 0, "query?query=1&timeout=1ms"},
		{time.Hour, 0, "query?query=1&timeout=1ms"},
		{time.Millisecond, 0, "query_range?query=1&start=0&end=1&step=1&timeout=1h"},
		{0, time.Millisecond, "query?query=1"},
		{0, time.Millisecond, "series?match[]=up"},
		{0, time.Millisecond, "labels"},
		{0, time.Millisecond, "label/a/values"},
		{0, time.Millisecond, "metadata"},
		{0, 0, "metadata?timeout=1ms"},
		{0, 0, "status/tsdb?timeout=1ms"},
		{0, time.Millisecond, "format_query?query=up"},
		{0, time.Millisecond, "query_exemplars?query=up"},
		{time.Millisecond, 0, "series?match[]=up"},
		{0, 0, "labels?timeout=1ms"},
		{time.Millisecond, 0, "label/a/values"},
		{time.Millisecond, 0, "format_query?query=up"},
		{time.Millisecond, 0, "query_exemplars?query=up"},
	} {
		taken := turns(c.wait)
		give, err := taken.Take(t.Context(), "")
		require.NoError(t, err)
		h := newAPI(t, func(o *Options) { o.Queries, o.Timeout = taken, c.bound })
		code, body := ask(t, h, http.MethodGet, "/api/v1/"+c.path)
		require.Equal(t, http.StatusServiceUnavailable, code, c.path)
		require.Contains(t, body, `"errorType":"timeout"`)
		give()
		// Each request releases its turn.
		h = newAPI(t, func(o *Options) { o.Queries = taken })
		for range 2 {
			code, body = ask(t, h, http.MethodGet, "/api/v1/"+strings.ReplaceAll(c.path, "timeout=1ms", "timeout=1m"))
			require.Equal(t, http.StatusOK, code, body)
		}
	}

	taken := turns(0)
	give, err := taken.Take(t.Context(), "")
	require.NoError(t, err)
	defer give()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w := httptest.NewRecorder()
	newAPI(t, func(o *Options) { o.Queries = taken }).ServeHTTP(w, httptest.NewRequestWithContext(gone, http.MethodGet, "/api/v1/query?query=1", nil))
	require.Equal(t, statusClientGone, w.Code)
}

// TestExemplars: a valid query gets an empty list.
func TestExemplars(t *testing.T) {
	h := newAPI(t, nil)
	for path, want := range map[string]int{
		"query_exemplars?query=up":                      200,
		"query_exemplars?query=rate(up[5m])%2B1":        200,
		"query_exemplars?query=(":                       400,
		"query_exemplars":                               400,
		"series?" + strings.Repeat("match[]=up&", 1001): 400,
		"query_exemplars?query=up&start=x":              400,
		"query_exemplars?query=up&start=2&end=1":        400,
		"query_exemplars?query=up&start=1&end=2.5":      200,
	} {
		code, body := ask(t, h, http.MethodGet, "/api/v1/"+path)
		require.Equal(t, want, code, "%s: %s", path, body)
		if want == 200 {
			require.JSONEq(t, `{"status":"success","data":[]}`, body)
		} else {
			require.Contains(t, body, `"errorType":"bad_data"`)
		}
	}
}

func TestStats(t *testing.T) {
	h := newAPI(t, nil)
	_, body := ask(t, h, http.MethodGet, "/api/v1/query?query=up&stats=all")
	var got struct {
		Data struct {
			Stats struct {
				Timings map[string]float64
				Samples map[string]any
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(body), &got))
	require.Contains(t, got.Data.Stats.Timings, "evalTotalTime")
	require.EqualValues(t, 2, got.Data.Stats.Samples["totalQueryableSamples"])
}

// Numbers, times and texts are encoded as Prometheus encodes them.
func TestSameAsPrometheus(t *testing.T) {
	upstream := func(write func(*jsoniter.Stream)) string {
		var out bytes.Buffer
		s := jsoniter.NewStream(jsoniter.ConfigDefault, &out, 64)
		write(s)
		require.NoError(t, s.Flush())
		return out.String()
	}
	for _, v := range []float64{
		0, math.Copysign(0, -1), 1, -1.5, 1e-6, 9.99e-7, 1e20, 1e21, math.MaxFloat64, math.SmallestNonzeroFloat64,
		math.NaN(), math.Inf(1), math.Inf(-1), 0.1, 1.0 / 3,
	} {
		require.Equal(t, upstream(func(s *jsoniter.Stream) { jsonutil.MarshalFloat(v, s) }), string(appendFloat(nil, v)))
	}
	for _, ms := range []int64{0, 1, 10, 100, 999, 1000, 1001, -1, -1500, 1732161600123} {
		require.Equal(t, upstream(func(s *jsoniter.Stream) { jsonutil.MarshalTimestamp(ms, s) }), string(appendTime(nil, ms)))
	}
	for _, s := range []string{"", "a", `"\`, "\n\r\t\x00\x1f\x7f", "ü€😀", "<&>"} {
		w := new(writer)
		w.text(s)
		require.Equal(t, upstream(func(st *jsoniter.Stream) { st.WriteString(s) }), w.String())
	}
	w := new(writer)
	w.text("a\xff")
	require.Equal(t, `"a`+"\uFFFD"+`"`, w.String())
}

// A long answer is sent in pieces, and arrives complete.
func TestLongAnswer(t *testing.T) {
	m := promql.Matrix{}
	for range 20 {
		s := promql.Series{Metric: labels.FromStrings("a", "b")}
		for i := range 11_000 {
			s.Floats = append(s.Floats, promql.FPoint{T: int64(i), F: float64(i)})
		}
		m = append(m, s)
	}
	w := httptest.NewRecorder()
	reply(w, answer{data: evaluated{value: m}}, nil, nil, nil)
	var got struct {
		Data struct {
			ResultType parser.ValueType
			Result     []struct{ Values [][2]any }
		}
	}
	require.NoError(t, json.Unmarshal(w.Body.Bytes(), &got))
	require.Len(t, got.Data.Result, 20)
	require.Len(t, got.Data.Result[19].Values, 11_000)
	require.Equal(t, "10999", got.Data.Result[19].Values[10_999][1])
}

// counter is a client that reads an answer and keeps none of it.
type counter struct {
	header http.Header
	n      int
}

func (c *counter) Header() http.Header         { return c.header }
func (c *counter) WriteHeader(int)             {}
func (c *counter) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

// longWords is a storage with these names and values of labels.
type longWords []string

func (l longWords) Querier(int64, int64) (promstorage.Querier, error) { return l, nil }
func (l longWords) Close() error                                      { return nil }

func (l longWords) Select(context.Context, bool, *promstorage.SelectHints, ...*labels.Matcher) promstorage.SeriesSet {
	return promstorage.EmptySeriesSet()
}

func (l longWords) LabelValues(context.Context, string, *promstorage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return l, nil, nil
}

func (l longWords) LabelNames(context.Context, *promstorage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return l, nil, nil
}

// TestLongListsAreSentAsTheyAreMade: what an answer allocates is a part of what is sent.
func TestLongListsAreSentAsTheyAreMade(t *testing.T) {
	described := make(list, 20_000)
	for i := range described {
		described[i] = metric.Metadata{Name: fmt.Sprintf("m%06d", i), Help: strings.Repeat("<", 1000)}
	}
	found := make(longWords, len(described))
	for i := range found {
		found[i] = described[i].Name + described[i].Help
	}
	h := newAPI(t, func(o *Options) { o.Metadata, o.Queryable = described, found })
	for _, path := range []string{"metadata", "labels", "label/x/values", "labels?match[]=a&match[]=b"} {
		out := &counter{header: http.Header{}}
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/"+path, nil)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		h.ServeHTTP(out, r)
		runtime.ReadMemStats(&after)
		allocated := int(after.TotalAlloc - before.TotalAlloc)
		t.Logf("%s: %d bytes allocated for %d sent", path, allocated, out.n)
		require.Greater(t, out.n, 20_000*1000)
		require.Less(t, allocated, out.n/2, path)
	}
}

// slow is a client that reads a reply late.
type slow struct {
	*httptest.ResponseRecorder
	by      time.Time
	reading func()
}

func (s *slow) SetWriteDeadline(t time.Time) error { s.by = t; return nil }

func (s *slow) Write(p []byte) (int, error) {
	s.reading()
	return s.ResponseRecorder.Write(p)
}

// TestWhatAReplyHolds: while a reply is sent nothing is charged for what was parsed, and it must
// end with the query's time.
func TestWhatAReplyHolds(t *testing.T) {
	const room = 1 << 20
	h := newAPI(t, func(o *Options) { o.Timeout = time.Hour })
	for _, path := range []string{
		"query?query=", "query_range?start=0&end=100&step=10&query=", "format_query?query=", "series?match[]=", "query_exemplars?query=",
	} {
		budget := limits.NewBudget(room, 0)
		claim, other := budget.Claim(limits.Client{}), budget.Claim(limits.Client{})
		target := "/api/v1/" + path + url.QueryEscape(`up{instance=~"a.*|b[a-z]+"}`)
		r := httptest.NewRequestWithContext(limits.WithClaim(t.Context(), &claim), http.MethodGet, target, nil)
		read := false
		w := &slow{ResponseRecorder: httptest.NewRecorder(), reading: func() {
			read = true
			require.True(t, other.Grow(room), path)
			other.Release()
		}}
		before := time.Now()
		h.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.True(t, read)
		require.WithinRange(t, w.by, before, time.Now().Add(time.Hour), path)
	}
}

// TestWhatAFailureHolds: while a failure is sent, the request has no turn, and nothing is charged for
// it. Its message is short.
func TestWhatAFailureHolds(t *testing.T) {
	const room = 1 << 30
	metrics := prometheus.NewRegistry()
	h := newAPI(t, func(o *Options) {
		o.Queries = limits.NewTurns(limits.TurnOptions{N: 1, Name: "queries", Clients: limits.NewClients(nil), Metrics: metrics})
	})
	long := strings.Repeat("\u00e4", 20_000)
	for name, c := range map[string]struct {
		path string
		form url.Values
		code int
		cut  bool
	}{
		"too many samples":    {"query", url.Values{"query": {`sum_over_time(up[4m:1ms])`}}, http.StatusUnprocessableEntity, false},
		"a syntax error":      {"query", url.Values{"query": {`up{instance="` + long + `"} )`}}, http.StatusBadRequest, false},
		"an unknown function": {"query", url.Values{"query": {strings.Repeat("a", len(long)) + "(up)"}}, http.StatusBadRequest, true},
		"a bad pattern":       {"series", url.Values{"match[]": {`up{instance=~"(` + long + `"}`}}, http.StatusBadRequest, true},
		"no format":           {"format_query", url.Values{"query": {`up{instance=~"(` + long + `"}`}}, http.StatusBadRequest, true},
		"a bad limit":         {"labels", url.Values{"match[]": {"up"}, "limit": {long}}, http.StatusBadRequest, true},
	} {
		t.Run(name, func(t *testing.T) {
			forms := limits.NewBudget(room, 0)
			claim, other := forms.Claim(limits.Client{}), forms.Claim(limits.Client{})
			text := c.form.Encode()
			r := httptest.NewRequestWithContext(limits.WithClaim(t.Context(), &claim), http.MethodPost, "/api/v1/"+c.path, strings.NewReader(text))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			require.True(t, claim.Grow(int64(len(text))))
			read := false
			w := &slow{ResponseRecorder: httptest.NewRecorder(), reading: func() {
				read = true
				require.Zero(t, gaugeOf(t, metrics, "quern_turns"), "the turn")
				require.True(t, other.Grow(room), "the form")
				require.Nil(t, r.Form)
			}}
			h.ServeHTTP(w, r)
			require.Equal(t, c.code, w.Code, "%.300s", w.Body)
			require.True(t, read)
			require.Less(t, w.Body.Len(), 6<<10)
			require.NotContains(t, w.Body.String(), "\ufffd")
			if c.cut {
				require.Contains(t, w.Body.String(), "bytes more)")
			}
		})
	}
}

func gaugeOf(t *testing.T, g prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := g.Gather()
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == name })
	require.GreaterOrEqual(t, i, 0)
	return families[i].GetMetric()[0].GetGauge().GetValue()
}
