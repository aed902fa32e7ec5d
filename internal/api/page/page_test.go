package page_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api/page"
)

func ask(t *testing.T, h http.HandlerFunc, method, path string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h(w, r)
	return w
}

func TestWanted(t *testing.T) {
	for accept, want := range map[string]bool{
		"":                                  false,
		"*/*":                               false, // curl
		"application/json, text/plain, */*": false,
		"text/html;q=0, */*":                false,
		"text/html,application/xhtml+xml":   true,
		"application/xml;q=0.9, Text/HTML ;q=0.8": true,
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody)
		r.Header.Set("Accept", accept)
		require.Equal(t, want, page.Wanted(r), "%q", accept)
	}
}

func TestIsView(t *testing.T) {
	for _, p := range []string{"/", "/explore", "/dashboards/a/b", "/metrics-explorer", "/send"} {
		require.True(t, page.IsView(p), p)
	}
	for _, p := range []string{"/explorer", "/metrics", "/api/v1/query", "//", ""} {
		require.False(t, page.IsView(p), p)
	}
}

// TestAssets: every file that the document names is there, whole, and stays the same.
func TestAssets(t *testing.T) {
	html := ask(t, page.Document, http.MethodGet, "/explore").Body.String()
	names := regexp.MustCompile(`/assets/[^"]+`).FindAllString(html, -1)
	require.Len(t, names, 5, html)
	for _, name := range names {
		plain := ask(t, page.Assets, http.MethodGet, name)
		require.Equal(t, 200, plain.Code, name)
		require.NotEmpty(t, plain.Header().Get("Content-Type"))
		require.Contains(t, plain.Header().Get("Cache-Control"), "immutable")
		require.Equal(t, strconv.Itoa(plain.Body.Len()), plain.Header().Get("Content-Length"))
		require.Empty(t, ask(t, page.Assets, http.MethodHead, name).Body.String())
	}
	for _, name := range []string{"/assets/", "/assets/none.js", "/assets/../page.go", "/assets/main.js/", "/index.html"} {
		w := ask(t, page.Assets, http.MethodGet, name)
		require.Equal(t, http.StatusNotFound, w.Code, name)
		require.True(t, strings.HasPrefix(w.Body.String(), "there is no such file"))
	}
}
