package api_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/api"
	"github.com/quern/quern/internal/api/apitest"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wire"
)

// TestManyHeaders: a request with more than a hundred header fields is refused by every version of HTTP, before its body is
// read.
func TestManyHeaders(t *testing.T) {
	for name, version := range map[string]int{"HTTP/1.1": 1, "HTTP/2": 2} {
		t.Run(name, func(t *testing.T) {
			s := apitest.Server(t, func(o *api.Options) { o.Clock, o.Appender = clock.System{}, &apitest.Appender{} })
			ts := httptest.NewUnstartedServer(nil)
			ts.Config, ts.EnableHTTP2 = s.HTTPServer(), version == 2
			ts.StartTLS()
			defer ts.Close()
			send := func(each, fields, size int) (code int, err error) {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, ts.URL+wire.ReportsPath, strings.NewReader(apitest.OneReport))
				require.NoError(t, err)
				for i := range fields {
					r.Header.Add(fmt.Sprintf("X-%d", i%each), strings.Repeat("x", size))
				}
				resp, err := ts.Client().Do(r)
				if err != nil {
					return 0, err
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, version, resp.ProtoMajor)
				return resp.StatusCode, nil
			}
			code, err := send(90, 90, 100)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, code)
			for _, each := range []int{150, 1} { // names; fields of one name
				code, err = send(each, 150, 1)
				require.NoError(t, err)
				require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, code)
			}
			// The server reads no more bytes of headers. The client learns it by the answer, or by the end of the connection.
			if code, err = send(90, 90, 400); err == nil {
				require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, code)
			}
		})
	}
}

// TestTrailerNames: the names that a request announces for its trailer count as header fields.
func TestTrailerNames(t *testing.T) {
	apitest.InBubble(t, func(o *api.Options) { o.Appender = &apitest.Appender{} }, func(t *testing.T, dial func() net.Conn) {
		c := dial()
		var names []string
		for i := range 150 {
			names = append(names, fmt.Sprintf("x%d", i))
		}
		go func() {
			_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nTrailer: %s\r\n\r\n", wire.ReportsPath, strings.Join(names, ","))
		}()
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusRequestHeaderFieldsTooLarge, resp.StatusCode)
		require.True(t, resp.Close)
		require.NoError(t, resp.Body.Close())
	})
}

// TestLongURLs: a selector in a URL may be as long as the docs say.
func TestLongURLs(t *testing.T) {
	s := apitest.Server(t, func(o *api.Options) { o.Clock = clock.System{} })
	ts := httptest.NewUnstartedServer(nil)
	ts.Config = s.HTTPServer()
	ts.Start()
	defer ts.Close()
	for size, code := range map[int]int{15 << 10: http.StatusOK, 24 << 10: http.StatusRequestHeaderFieldsTooLarge} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, ts.URL+"/?q="+strings.Repeat("x", size), nil)
		require.NoError(t, err)
		resp, err := ts.Client().Do(r)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, code, resp.StatusCode)
	}
}
