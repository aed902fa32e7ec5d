package app

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/wire"
)

// boundServer is a locked server in this process.
type boundServer struct {
	*testing.T
	*server
}

func newBoundServer(t *testing.T) *boundServer {
	t.Helper()
	s, _ := lockedServer(t, servesTLS)
	s.cfg.EnableAdminAPI = true
	running(t, s)
	return &boundServer{t, s}
}

// token makes a token.
func (s *boundServer) token(n access.NewToken) string {
	s.Helper()
	n.Name = "test"
	_, text, err := s.tokens.Create(s.Context(), n)
	require.NoError(s, err)
	return text
}

// send sends a request by token.
func (s *boundServer) send(token, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	s.Helper()
	r := httptest.NewRequestWithContext(s.Context(), method, "http://127.0.0.1"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+token)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.http.ServeHTTP(w, r)
	return w
}

// get asks for a path, and returns the answer if it is a success.
func (s *boundServer) get(token, path string, parameters ...string) string {
	s.Helper()
	form := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		form.Add(parameters[i], parameters[i+1])
	}
	w := s.send(token, http.MethodGet, path+"?"+form.Encode(), "")
	require.Equal(s, http.StatusOK, w.Code, "%s: %s", path, w.Body)
	return w.Body.String()
}

var web = []string{`{team="web"}`}

// questions are what every endpoint is asked. None of them has the word that must not be in an answer.
func questions(nowMs int64) []string {
	start := fmt.Sprint(nowMs/1000 - 4*3600)
	end := fmt.Sprint(nowMs/1000 + 60)
	var all []string
	add := func(parameters ...string) {
		form := url.Values{"start": {start}, "end": {end}, "step": {"60"}}
		for i := 0; i < len(parameters); i += 2 {
			form.Add(parameters[i], parameters[i+1])
		}
		all = append(all, form.Encode())
		for _, name := range []string{"start", "end", "step"} {
			form.Del(name)
		}
		all = append(all, form.Encode())
	}
	add()
	for _, sel := range []string{`{__name__!=""}`, `{team!="web",__name__!=""}`, `{team=~"d."}`, `{team="db"}`, `{team=~"web|db"}`, `{__name__=~".*metric.*"}`} {
		add("match[]", sel)
		add("match[]", `{team="web"}`, "match[]", sel)
		add("match[]", sel, "days", "3")
		add("match[]", sel, "level", "1h")
		add("match[]", sel, "time", end)
		add("query", sel)
		add("query", "count_values by (team) (\"x\", "+sel+")")
		add("query", "last_over_time("+sel+"[1h])")
		add("query", "last_over_time("+sel+"[1h]) or on () vector(1)", "levels", "true", "stats", "all")
		add("query", "label_replace("+sel+", \"copy\", \"$1\", \"source\", \"(.*)\")")
		add("query", "cpu * on (team) group_right () "+sel)
		add("query", sel+" + on (team) "+sel)
	}
	add("limit", "1000")
	add("sort", "name")
	add("waiting", "true")
	return all
}

// TestNothingLeaks asks every endpoint all kinds of questions, by a token that is bound to one team. No answer, and no
// error, says anything of another team's series. The same questions by a token that is not bound do find them.
func TestNothingLeaks(t *testing.T) {
	s := newBoundServer(t)
	all := s.token(access.NewToken{Roles: access.Read | access.Write})
	const report = `[{"source":"web-1","measurements":[{"metric":"cpu","labels":{"team":"web"},"value":1}]},
		{"source":"hidden-host","measurements":[{"metric":"hidden_metric","labels":{"team":"db","hidden_label":"hidden value"},"value":2},
			{"metric":"cpu","labels":{"team":"db","hidden_label":"hidden value 2"},"value":3}]}]`
	w := s.send(all, http.MethodPost, "/api/v1/reports", report)
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	w = s.send(all, http.MethodPost, "/v1/metrics", `{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"metric_hidden","description":"hidden help",
		"gauge":{"dataPoints":[{"asDouble":1,"timeUnixNano":"`+fmt.Sprint(s.clk.Now().UnixNano())+`"}]}}]}]}]}`, "Content-Type", "application/json")
	require.Equal(t, http.StatusOK, w.Code, w.Body)

	ids, err := s.engine.index.Select(t.Context(), query.Selector{labels.MustNewMatcher(labels.MatchNotEqual, "__name__", "")})
	require.NoError(t, err)
	level := s.engine.ladder.Levels()[0]
	hour := s.engine.ladder.SliceAt(metric.Raw, s.clk.Now().UnixMilli()).StartMs
	for _, id := range ids {
		for _, startMs := range []int64{hour, hour - time.Hour.Milliseconds()} {
			require.NoError(t, s.engine.Store.WriteRollups(t.Context(), 0, level, []metric.RollupRow{{Schedule: id, TimeMs: startMs, Rollup: metric.Rollup{Count: 1, Sum: 1, Min: 1, Max: 1}}}))
		}
	}

	bound := s.token(access.NewToken{Roles: access.Read | access.Write, Match: web})
	asked := questions(s.clk.Now().UnixMilli())
	for _, entry := range s.http.Routes() {
		pattern := entry.Pattern
		if entry.Role == access.Write || strings.HasPrefix(pattern, "POST /api/v1/log") {
			continue
		}
		var paths []string
		method := ""
		for _, label := range []string{"__name__", "source", "team", "hidden_label"} {
			var path string
			if method, path = endpoint(pattern, http.MethodGet, label); !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
		refused := entry.Bound == route.Refused
		seen := false
		for _, path := range paths {
			for _, q := range asked {
				ask := func(token string) (int, string) {
					if method == http.MethodGet {
						w := s.send(token, method, path+"?"+q, "")
						return w.Code, w.Body.String() + fmt.Sprint(w.Header())
					}
					w := s.send(token, method, path, q, "Content-Type", "application/x-www-form-urlencoded")
					return w.Code, w.Body.String() + fmt.Sprint(w.Header())
				}
				code, text := ask(bound)
				require.NotContains(t, text, "hidden", "%s?%s", pattern, q)
				require.Equal(t, refused, code == http.StatusForbidden, "%s?%s: %d %s", pattern, q, code, text)
				if entry.Role == access.Admin {
					break // one refusal is as good as many
				}
				if !seen && entry.Bound == route.Filtered {
					_, text = ask(all)
					seen = strings.Contains(text, "hidden")
				}
			}
		}
		if entry.Bound == route.Filtered {
			require.True(t, seen, "%s: no question finds anything, so this test shows nothing", pattern)
		}
	}
	// An export leaves annotations out, which may tell of any series.
	w = s.send(all, http.MethodPost, "/api/v1/annotations", fmt.Sprintf(`{"text":"hidden note","start":%d}`, s.clk.Now().UnixMilli()-1), "Content-Type", "application/json")
	require.Equal(t, http.StatusOK, w.Code, w.Body)
	export := []string{"match[]", "cpu", "annotations", "true"}
	require.Contains(t, s.get(all, wire.ExportPath, export...), "hidden note")
	require.NotContains(t, s.get(bound, wire.ExportPath, export...), "hidden note")
	// It has what is its own.
	require.Contains(t, s.get(bound, "/api/v1/query", "query", "cpu"), `"source":"web-1"`)
	require.Contains(t, s.get(bound, "/api/v1/sources"), `"web-1"`)
	require.JSONEq(t, `{"status":"success","data":["web"]}`, s.get(bound, "/api/v1/label/team/values"))
	require.JSONEq(t, `{"status":"success","data":["__name__","source","team"]}`, s.get(bound, "/api/v1/labels"))
	require.Contains(t, s.get(bound, "/api/v1/cardinality"), `"series":1,`)
	// Nothing that one asks for is in the answer of the other.
	require.Contains(t, s.get(all, "/api/v1/query", "query", "cpu"), "hidden")
	require.NotContains(t, s.get(bound, "/api/v1/query", "query", "cpu"), "hidden")
}

// remoteWrite is a remote-write request of one series.
func remoteWrite(t *testing.T, nowMs int64, labels ...string) string {
	t.Helper()
	var series prompb.TimeSeries
	for i := 0; i < len(labels); i += 2 {
		series.Labels = append(series.Labels, prompb.Label{Name: labels[i], Value: labels[i+1]})
	}
	series.Samples = []prompb.Sample{{Timestamp: nowMs, Value: 1}}
	body, err := (&prompb.WriteRequest{Timeseries: []prompb.TimeSeries{series}}).Marshal()
	require.NoError(t, err)
	return string(snappy.Encode(nil, body))
}

// TestBoundWriters: by every protocol, a bound token writes its own series and no others. Nothing of the others is known
// afterwards.
func TestBoundWriters(t *testing.T) {
	s := newBoundServer(t)
	bound := s.token(access.NewToken{Roles: access.Write, Match: []string{`{host=~"web-.+"}`, `{source=~"web-.+"}`, `{instance=~"web-.+"}`}})
	nowMs := s.clk.Now().UnixMilli()
	otlp := func(host string) string {
		return fmt.Sprintf(`{"resourceMetrics":[{"scopeMetrics":[{"metrics":[{"name":"otlp","gauge":{"dataPoints":[
			{"asDouble":1,"timeUnixNano":"%d","attributes":[{"key":"host","value":{"stringValue":%q}}]}]}}]}]}]}`, nowMs*1e6, host)
	}
	collectd := func(host string) string {
		return fmt.Sprintf(`[{"values":[1],"dstypes":["gauge"],"dsnames":["value"],"time":%d,"host":%q,"plugin":"load","type":"load"}]`, nowMs/1000, host)
	}
	lines := func(host string) string { return "influx,host=" + host + " value=1" }
	bodies := map[string]func(host string) string{
		"POST /api/v1/reports": func(host string) string {
			return fmt.Sprintf(`{"source":%q,"measurements":[{"metric":"reports","value":1}]}`, host)
		},
		"POST /api/v1/write":           func(host string) string { return remoteWrite(t, nowMs, "__name__", "remote", "host", host) },
		"POST /write":                  lines,
		"POST /influx/write":           lines,
		"POST /api/v2/write":           lines,
		"POST /v1/metrics":             otlp,
		"POST /api/v1/otlp/v1/metrics": otlp,
		"POST /api/v1/push/collectd":   collectd,
	}
	types := map[string]string{"POST /api/v1/write": "application/x-protobuf"}
	for _, entry := range s.http.Routes() {
		pattern := entry.Pattern
		if entry.Role != access.Write || entry.Bound != route.Filtered {
			continue
		}
		body := bodies[pattern]
		require.NotNil(t, body, pattern)
		method, path, _ := strings.Cut(pattern, " ")
		contentType := types[pattern]
		if contentType == "" && !strings.HasSuffix(path, "/write") {
			contentType = "application/json"
		}
		w := s.send(bound, method, path, body("hidden"), "Content-Type", contentType)
		reply, err := io.ReadAll(w.Body)
		require.NoError(t, err)
		require.Contains(t, string(reply), "and the token may write only", pattern)
		w = s.send(bound, method, path, body("web-1"), "Content-Type", contentType)
		require.Less(t, w.Code, 300, "%s: %s", pattern, w.Body)
	}
	all := s.token(access.NewToken{Roles: access.Read})
	require.NotContains(t, s.get(all, "/api/v1/series", "match[]", `{__name__!=""}`), "hidden")
	require.NotContains(t, s.get(all, "/api/v1/sources"), "hidden")
	names := s.get(all, "/api/v1/label/__name__/values")
	for _, name := range []string{"reports", "remote", "influx", "otlp", "load"} {
		require.Contains(t, names, name)
	}
	// The good part is kept, and what is not is named.
	w := s.send(bound, http.MethodPost, "/api/v1/reports", `[{"source":"web-1","measurements":[{"metric":"good","value":1}]},{"source":"db-1","measurements":[{"metric":"bad","value":1}]}]`)
	require.Equal(t, http.StatusOK, w.Code)
	require.JSONEq(t, `{"accepted":1,"rejected":[{"index":1,"reason":"forbidden",
		"message":"metric bad: label host is \"\", and the token may write only {host=~\"web-.+\"} or {source=~\"web-.+\"} or {instance=~\"web-.+\"}"}]}`, w.Body.String())
	require.Contains(t, s.get(all, "/metrics"), `quern_ingest_samples_rejected_total{reason="forbidden"} 9`)
}

// TestSeriesOfTokens: a token makes as many series as it may, counted by what the store has, and goes on to write those.
func TestSeriesOfTokens(t *testing.T) {
	s := newBoundServer(t)
	write := func(token string, from, to int) string {
		var all []string
		for i := from; i < to; i++ {
			m := fmt.Sprintf(`{"metric":"m%d","labels":{"team":"web"},"value":1,"timestamp":%d}`, i, s.clk.Now().UnixMilli()-int64(i))
			all = append(all, m, strings.Replace(m, `"value":1`, `"value":2`, 1)) // a series is counted once
		}
		return s.send(token, http.MethodPost, "/api/v1/reports", `{"source":"a","measurements":[`+strings.Join(all, ",")+`]}`).Body.String()
	}
	free := s.token(access.NewToken{Roles: access.Write})
	require.Contains(t, write(free, 0, 2), `"accepted":4,`)
	limited := access.NewToken{Roles: access.Write, Match: web, Limits: access.TokenLimits{Series: 5}}
	token := s.token(limited)
	reply := write(token, 1, 8)
	require.Contains(t, reply, `"accepted":8,`) // m1, which was there, and three more
	require.Contains(t, reply, `there are 5 series of {team=\"web\"}, the most that the token may make`)
	require.Contains(t, write(token, 0, 5), `"accepted":10,"rejected":[]`)
	require.Contains(t, write(token, 7, 8), `"accepted":0,`)
	// Another token that is bound alike finds the same number, as does this one after a restart.
	require.Contains(t, write(s.token(limited), 7, 8), `"accepted":0,`)
	require.Contains(t, write(free, 7, 8), `"accepted":2,`)
}

// TestSamplesOfTokens: who sends more a second than it may is told when to go on, and is counted. Others are not held up.
func TestSamplesOfTokens(t *testing.T) {
	s := newBoundServer(t)
	token := s.token(access.NewToken{Roles: access.Write, Limits: access.TokenLimits{SamplesPerSecond: 1}})
	body := `{"source":"a","measurements":[` + strings.Repeat(`{"metric":"m","value":1},`, 999) + `{"metric":"m","value":1}]}`
	require.Equal(t, http.StatusOK, s.send(token, http.MethodPost, "/api/v1/reports", body).Code)
	for _, path := range []string{"/api/v1/reports", "/write", "/api/v1/write", "/v1/metrics", "/api/v1/push/collectd"} {
		w := s.send(token, http.MethodPost, path, "not even read", "Content-Type", map[string]string{
			"/api/v1/write": "application/x-protobuf", "/v1/metrics": "application/json", "/api/v1/push/collectd": "application/json",
		}[path])
		code := http.StatusTooManyRequests
		if path == "/write" {
			code = http.StatusServiceUnavailable // Telegraf drops what is answered 4xx
		}
		require.Equal(t, code, w.Code, "%s: %s", path, w.Body)
		require.Regexp(t, "^(9[0-9][0-9]|1000)$", w.Header().Get("Retry-After"))
		require.Contains(t, w.Body.String(), "1 samples a second")
	}
	other := s.token(access.NewToken{Roles: access.Read | access.Write})
	require.Equal(t, http.StatusOK, s.send(other, http.MethodPost, "/api/v1/reports", body).Code)
	id, _, _ := strings.Cut(strings.TrimPrefix(token, "quern_"), "_")
	require.Contains(t, s.get(other, "/metrics"), `quern_http_limited_requests_total{token="`+id+`"} 5`)
}
