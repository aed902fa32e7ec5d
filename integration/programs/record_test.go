package programs

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/integration/process"
)

var recordTo = flag.String("record", "", "directory to write one request of each program to, for the tests of the decoders")

// request is a request that the server has answered.
type request struct {
	path   string
	header http.Header
	body   []byte
	code   int
	reply  string
}

// recorder is a proxy in front of a server that records requests.
type recorder struct {
	URL string

	mu       sync.Mutex
	requests []request
}

type recordingTransport struct{ *recorder }

func (r recordingTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	var body []byte
	if req.Body != nil {
		var err error
		if body, err = io.ReadAll(req.Body); err != nil {
			return nil, err
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
	}
	resp, err := process.Client.Transport.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	reply, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	resp.Body = io.NopCloser(bytes.NewReader(reply))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, request{req.URL.Path, req.Header.Clone(), body, resp.StatusCode, string(reply)})
	return resp, nil
}

// record puts a recorder in front of p. All requests must succeed.
func record(t *testing.T, p *process.Process) *recorder {
	t.Helper()
	target, err := url.Parse(p.URL)
	require.NoError(t, err)
	r := &recorder{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = recordingTransport{r}
	front := httptest.NewServer(proxy)
	r.URL = front.URL
	t.Cleanup(func() {
		front.Close()
		for _, req := range r.all() {
			assert.Equal(t, 2, req.code/100, "%s: %s", req.path, req.reply)
		}
	})
	return r
}

func (r *recorder) all() []request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]request(nil), r.requests...)
}

// keep writes the smallest suitable request to a file, if the flag is set.
func (r *recorder) keep(t *testing.T, name string, good func(request) bool) {
	t.Helper()
	var least *request
	for _, req := range r.all() {
		if good(req) && (least == nil || len(req.body) < len(least.body)) {
			least = &req
		}
	}
	require.NotNil(t, least, "a request that is good for %s", name)
	if *recordTo != "" {
		require.NoError(t, os.WriteFile(filepath.Join(*recordTo, name), least.body, 0o600))
		t.Log(name, fmt.Sprint(least.header))
	}
}
