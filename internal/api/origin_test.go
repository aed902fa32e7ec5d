package api_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/api/reading"
	"github.com/quern/quern/internal/protocol/collectd"
	"github.com/quern/quern/internal/protocol/remotewrite"
	"github.com/quern/quern/internal/protocol/respond"
	"github.com/quern/quern/internal/wire"
)

// everything makes a server with an endpoint of each kind.
func everything(t *testing.T, origins api.Origins) (*api.Server, *apitest.BackFiller) {
	t.Helper()
	b := &apitest.BackFiller{}
	return apitest.Server(t, func(o *api.Options) {
		o.Origins, o.Appender, o.BackFiller, o.Status = origins, b, b, apitest.Status{}
		o.Extra = []api.Registrar{apitest.Registrar(func(to *route.Table) {
			for p, role := range map[string]access.Role{
				"GET /api/v1/query": access.Read, "POST /api/v1/query": access.Read, "POST " + wire.ReaggregatePath: access.Admin,
				"POST /api/v1/admin/tsdb/delete_series": access.Admin, "PUT /api/v1/admin/tsdb/delete_series": access.Admin,
			} {
				to.HandleFunc(role, route.Filtered, p, func(w http.ResponseWriter, _ *http.Request) { respond.Text(w, 200, "done") })
			}
		})}
	}), b
}

func ask(t *testing.T, s *api.Server, method, url, body string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

const (
	here    = "http://quern.example:9095"
	erasing = `{"metric":{"__name__":"m"},"values":[null],"timestamps":[1]}`
)

// TestPagesOfOthers: a browser's requests for a page of another origin change nothing.
func TestPagesOfOthers(t *testing.T) {
	s, b := everything(t, api.Origins{})
	for _, path := range []string{
		wire.ImportPath, wire.ReaggregatePath, wire.ReportsPath, "/write", "/influx/write", "/api/v2/write", remotewrite.Path, "/v1/metrics", collectd.Path,
		"/api/v1/admin/tsdb/delete_series", "/api/v1/query", "/query",
	} {
		for name, headers := range map[string][]string{
			"a simple form":       {"Content-Type", "text/plain", "Origin", "http://evil.example", "Sec-Fetch-Site", "cross-site"},
			"another port":        {"Content-Type", "text/plain", "Origin", "http://quern.example:8080", "Sec-Fetch-Site", "same-site"},
			"a sandboxed frame":   {"Content-Type", "text/plain", "Origin", "null"},
			"an old browser":      {"Content-Type", "application/x-www-form-urlencoded", "Origin", "https://evil.example"},
			"without its origin":  {"Sec-Fetch-Site", "cross-site"},
			"more than one field": {"Origin", "http://evil.example", "Content-Encoding", "gzip"},
		} {
			w := ask(t, s, http.MethodPost, here+path, erasing, headers...)
			require.Equal(t, http.StatusForbidden, w.Code, "%s: %s: %s", path, name, w.Body)
			require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
		}
	}
	require.Zero(t, b.Calls)
	require.Equal(t, http.StatusForbidden, ask(t, s, http.MethodPut, here+"/api/v1/admin/tsdb/delete_series", "", "Origin", "http://evil.example").Code)

	// Agents send no Origin, and this server's own pages send its own.
	require.Equal(t, 200, ask(t, s, http.MethodPost, here+wire.ImportPath, erasing).Code)
	require.Equal(t, 200, ask(t, s, http.MethodPost, here+wire.ImportPath, erasing, "Origin", here, "Sec-Fetch-Site", "same-origin").Code)
	require.Equal(t, 200, ask(t, s, http.MethodPost, here+"/api/v1/query", "query=1").Code)
}

// TestReadsForPagesOfOthers: a browser's reads for a page of another origin are refused, so they
// cost nothing: not for an image, a frame, a script or a new window. The page could not see the
// answers, anyway.
func TestReadsForPagesOfOthers(t *testing.T) {
	tools := api.Origins{CORS: regexp.MustCompile(`^(?s:https://tools\.example)$`)}
	for _, origins := range []api.Origins{{}, tools} {
		s, _ := everything(t, origins)
		for _, c := range []struct {
			what    string
			path    string
			want    int
			headers []string
		}{
			{"an image", "/api/v1/query?query=1", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"}},
			{"another port", "/api/v1/query?query=1", 403, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}},
			{"a script's fetch", "/api/v1/query?query=1", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Origin", "https://evil.example"}},
			{"an old browser's fetch", "/api/v1/query?query=1", 403, []string{"Origin", "https://evil.example"}},
			{"a sandboxed frame", "/api/v1/query?query=1", 403, []string{"Origin", "null"}},
			{"a window", "/api/v1/query?query=1", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
			{"a frame", "/metrics", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}},
			{"what is not there", "/api/v1/none", 403, []string{"Sec-Fetch-Site", "cross-site"}},
			{"an image of a page", "/", 403, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}},

			{"a link", "/", 200, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
			{"a link to health", "/-/healthy", 200, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
			{"the address bar", "/api/v1/query?query=1", 200, []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}},
			{"its own page", "/api/v1/query?query=1", 200, []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "cors"}},
			{"its own page, old browser", "/api/v1/query?query=1", 200, []string{"Origin", here}},
			{"no browser", "/api/v1/query?query=1", 200, nil},
		} {
			for _, method := range []string{http.MethodGet, http.MethodHead} {
				if method == http.MethodHead && c.want == 200 {
					continue
				}
				w := ask(t, s, method, here+c.path, "", c.headers...)
				require.Equal(t, c.want, w.Code, "%s: %s %s: %s", c.what, method, c.path, w.Body)
				require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
			}
		}
	}
}

// TestCORS: pages of the configured origins may read, but change nothing.
func TestCORS(t *testing.T) {
	s, b := everything(t, api.Origins{CORS: regexp.MustCompile(`^(?s:https://tools\.example)$`)})
	const tools = "https://tools.example"
	preflight := func(path, method, origin string) *httptest.ResponseRecorder {
		return ask(t, s, http.MethodOptions, here+path, "", "Origin", origin, "Access-Control-Request-Method", method, "Access-Control-Request-Headers", "content-type")
	}
	for _, method := range []string{"GET", "POST"} {
		w := preflight("/api/v1/query", method, tools)
		require.Equal(t, 204, w.Code)
		require.Equal(t, tools, w.Header().Get("Access-Control-Allow-Origin"))
		require.Contains(t, w.Header().Get("Access-Control-Allow-Methods"), method)
		require.Contains(t, w.Header().Get("Access-Control-Allow-Headers"), "Content-Type")
		require.Equal(t, "Origin", w.Header().Get("Vary"))

		w = ask(t, s, method, here+"/api/v1/query?query=1", "", "Origin", tools, "Sec-Fetch-Site", "cross-site")
		require.Equal(t, 200, w.Code)
		require.Equal(t, tools, w.Header().Get("Access-Control-Allow-Origin"))
		require.Contains(t, w.Header().Get("Access-Control-Expose-Headers"), reading.WarningHeader)
	}
	for _, path := range []string{wire.ImportPath, wire.ReaggregatePath, wire.ReportsPath, "/api/v1/admin/tsdb/delete_series"} {
		w := preflight(path, "POST", tools)
		require.Equal(t, 405, w.Code, path)
		require.Empty(t, w.Header().Get("Access-Control-Allow-Origin"))
		require.Equal(t, 403, ask(t, s, "POST", here+path, erasing, "Origin", tools, "Sec-Fetch-Site", "cross-site").Code)
	}
	for _, origin := range []string{"https://tools.example.evil", "http://tools.example", "xhttps://tools.example", "null"} {
		require.Equal(t, 405, preflight("/api/v1/query", "POST", origin).Code)
		require.Equal(t, 403, ask(t, s, "POST", here+"/api/v1/query", "query=1", "Origin", origin).Code)
	}
	require.Zero(t, b.Calls)
}

// TestHosts: a page whose name resolves to this machine is not one of this server's.
func TestHosts(t *testing.T) {
	s, b := everything(t, api.Origins{CheckHost: true, Hosts: []string{"Quern.example"}})
	for host, want := range map[string]int{
		"localhost:9095": 200, "LOCALHOST": 200, "localhost.:9095": 200, "a.localhost": 200, "127.0.0.1:9095": 200, "127.0.0.1": 200,
		"[::1]:9095": 200, "[::1]": 200, "192.0.2.1:9095": 200, "quern.example": 200, "QUERN.example:9095": 200, "": 200,
		"evil.example": 421, "evil.example:9095": 421, "localhost.evil.example": 421, "127.0.0.1.evil.example": 421, "quern.example.evil": 421,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/api/v1/query", nil)
		r.Host = host
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, host)
		if want == 421 {
			require.Contains(t, w.Body.String(), "--allowed-hosts")
		}
	}
	// To a browser, this is the page's own origin.
	w := ask(t, s, "POST", "http://evil.example:9095"+wire.ImportPath, erasing, "Origin", "http://evil.example:9095", "Sec-Fetch-Site", "same-origin")
	require.Equal(t, 421, w.Code)
	require.Zero(t, b.Calls)
}
