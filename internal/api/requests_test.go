package api_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
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
	"github.com/quern/quern/internal/limits/admission"
)

// TestWindowsOfHTTP2: a client may send little that no handler reads, on one stream or on all of a connection.
func TestWindowsOfHTTP2(t *testing.T) {
	s := apitest.Server(t, nil)
	ts := httptest.NewUnstartedServer(nil)
	ts.EnableHTTP2 = true
	ts.Config = s.HTTPServer()
	ts.StartTLS()
	defer ts.Close()
	trust := ts.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
	trust.NextProtos = []string{"h2"}
	conn, err := (&tls.Dialer{Config: trust}).DialContext(t.Context(), "tcp", ts.Listener.Addr().String())
	require.NoError(t, err)
	defer conn.Close()
	// No settings, and a ping, which is answered behind what the server says of its windows.
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+
		"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+"\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678")
	require.NoError(t, err)

	const settings, ping, windowUpdate, initialWindow = 4, 6, 8, 4 // RFC 9113, section 6
	stream, all := uint32(65535), uint32(65535)                    // unless the server says otherwise
	for kind := byte(0); kind != ping; {
		var head [9]byte
		_, err := io.ReadFull(conn, head[:])
		require.NoError(t, err)
		kind = head[3]
		payload := make([]byte, binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))
		_, err = io.ReadFull(conn, payload)
		require.NoError(t, err)
		switch kind {
		case settings:
			for ; len(payload) >= 6; payload = payload[6:] {
				if binary.BigEndian.Uint16(payload) == initialWindow {
					stream = binary.BigEndian.Uint32(payload[2:])
				}
			}
		case windowUpdate:
			all += binary.BigEndian.Uint32(payload)
		}
	}
	require.LessOrEqual(t, stream, uint32(64<<10))
	require.LessOrEqual(t, all, uint32(64<<10))
}

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
		Clock: clock.System{}, Logger: s.Opts().Logger, Stall: time.Minute, Clients: admission.NewClients(nil), Requests: most,
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
}
