package api_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
)

// TestRequestsOfOneConnection: requests of HTTP/2 are counted like connections, whatever the connections are. A client
// has half of them. It is refused more, until one of them has ended.
func TestRequestsOfOneConnection(t *testing.T) {
	const most = 8
	began, end := make(chan struct{}, most), make(chan struct{})
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			began <- struct{}{}
			<-end
		}
		_, _ = io.WriteString(w, "done")
	})
	s := apitest.Server(t, nil)
	ts := httptest.NewUnstartedServer(nil)
	ts.EnableHTTP2 = true
	ts.Config = api.NewHTTPServer(handler, api.Serving{
		Clock: clock.System{}, Logger: s.Opts().Logger, Stall: time.Minute, Clients: limits.NewClients(nil), Requests: most,
	})
	ts.StartTLS()
	defer ts.Close()
	ask := func(path string) (int, string) {
		r, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet, ts.URL+path, nil)
		assert.NoError(t, err)
		resp, err := ts.Client().Do(r)
		if !assert.NoError(t, err) {
			return 0, ""
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		assert.NoError(t, err)
		assert.Equal(t, 2, resp.ProtoMajor)
		return resp.StatusCode, strings.TrimSpace(string(body)) + resp.Header.Get("Retry-After")
	}
	code, body := ask("/")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, "done", body)
	var waiting sync.WaitGroup
	for range most / 2 {
		waiting.Go(func() {
			code, _ := ask("/wait")
			assert.Equal(t, http.StatusOK, code)
		})
	}
	for range most / 2 {
		<-began
	}
	code, after := ask("/")
	assert.Equal(t, http.StatusServiceUnavailable, code)
	assert.NotEmpty(t, after, "it says when to try again")
	close(end)
	waiting.Wait()
	code, _ = ask("/")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, 64, ts.Config.HTTP2.MaxConcurrentStreams)
	require.Equal(t, 64<<10, ts.Config.HTTP2.MaxReceiveBufferPerConnection)
	require.Equal(t, 64<<10, ts.Config.HTTP2.MaxReceiveBufferPerStream)
}
