package agent

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/wire"
)

const sampleBody = `{"source":"web-1","measurements":[{"metric":"host_load1","time":1732161600000,"value":0.25}]}
{"source":"web-1","measurements":[{"metric":"host_load1","time":1732161610000,"value":0.5}]}
`

var sample = Batch{Samples: 2, Body: []byte(sampleBody)}

func newSender(t *testing.T, url string) *HTTPSender {
	client := &http.Client{}
	t.Cleanup(client.CloseIdleConnections)
	transport := &http.Transport{}
	client.Transport = transport
	s, err := NewHTTPSender(url, client, clock.NewSimulated(bubbleStart))
	require.NoError(t, err)
	return s
}

func TestRequest(t *testing.T) {
	var got *http.Request
	var body string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		b, err := io.ReadAll(r.Body)
		body = string(b)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
		_, _ = io.WriteString(w, `{"accepted":2,"rejected":[]}`)
	}))
	defer srv.Close()

	s := newSender(t, strings.Replace(srv.URL, "http://", "http://user:secret@", 1)+"/behind/proxy/")
	require.NoError(t, s.Send(t.Context(), sample))
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "/behind/proxy/api/v1/reports", got.URL.Path)
	require.Equal(t, "application/x-ndjson", got.Header.Get("Content-Type"))
	require.Equal(t, "zstd", got.Header.Get("Content-Encoding"))
	require.Equal(t, "quern-agent/devel", got.Header.Get("User-Agent"))
	user, password, _ := got.BasicAuth()
	require.Equal(t, "user secret", user+" "+password)
	require.Equal(t, string(sample.Body), body)
}

func TestReplies(t *testing.T) {
	const busy, away = "the server answered 429 Too Many Requests", "the server answered 503 Service Unavailable"
	const sorry = `{"status":"error","error":"sorry"}`
	again := errors.New("tried again, when the agent likes")
	later := func(after time.Duration) error { return &RetryError{After: after} }
	for _, c := range []struct {
		name   string
		code   int
		header [2]string
		body   string
		want   error // nil: accepted; otherwise the kind of error
		says   string
	}{
		{name: "taken", code: 200, body: `{"accepted":2,"rejected":[]}`},
		{name: "somebody who takes anything", code: 204, want: again, says: "the answer is not a Quern server's: 204 No Content"},
		{
			name: "a page to log in", code: 200, body: "<html>Please log in</html>",
			want: again, says: "the answer is not a Quern server's: 200 OK: <html>Please log in</html>",
		},
		{name: "another server", code: 200, body: `{"status":"ok"}`, want: again, says: `the answer is not a Quern server's: 200 OK: {"status":"ok"}`},
		{name: "a reply without words", code: 200, want: again, says: "the answer is not a Quern server's: 200 OK"},
		{name: "a reply for fewer", code: 200, body: `{"accepted":1,"rejected":[]}`, want: again, says: `the answer is not a Quern server's: 200 OK: {"accepted":1,"rejected":[]}`},
		{
			name: "taken in part", code: 200,
			body: `{"accepted":1,"rejected":[{"index":1,"reason":"too_old","message":"a day late"}]}`,
			want: &RejectedError{Total: 1, Rejected: []wire.Rejection{{Index: 1, Reason: "too_old", Message: "a day late"}}},
			says: "1 measurements were rejected",
		},
		{
			name: "nothing taken, the list cut", code: 400,
			body: `{"error":"every measurement was rejected","accepted":0,"rejected":[{"index":0,"reason":"too_old","message":"m"}],"rejected_total":2}`,
			want: &RejectedError{Total: 2, Rejected: []wire.Rejection{{Reason: "too_old", Message: "m"}}},
			says: "2 measurements were rejected",
		},
		{
			name: "broken off", code: 400,
			body: `{"status":"error","error":"the body breaks off","accepted":0,"rejected":[{"index":0,"reason":"too_old","message":"m"}]}`,
			want: ErrRefused, says: "the server refused the report: 400 Bad Request: the body breaks off",
		},
		{name: "not understood", code: 400, body: sorry, want: ErrRefused, says: "the server refused the report: 400 Bad Request: sorry"},
		{name: "not decodable", code: 415, body: sorry, want: ErrRefused, says: "the server refused the report: 415 Unsupported Media Type: sorry"},
		{name: "not processable", code: 422, body: sorry, want: ErrRefused, says: "the server refused the report: 422 Unprocessable Entity: sorry"},
		{name: "not understood by a proxy", code: 400, body: "what?\n", want: again, says: "the server answered 400 Bad Request: what?"},
		{name: "wrong token", code: 401, body: sorry, want: again, says: "the server answered 401 Unauthorized: sorry"},
		{name: "a token to read", code: 403, body: sorry, want: again, says: "the server answered 403 Forbidden: sorry"},
		{name: "forbidden by a proxy", code: 403, body: strings.Repeat("x", 1000), want: again, says: "the server answered 403 Forbidden: " + strings.Repeat("x", 300)},
		{name: "no such place", code: 404, body: sorry, want: again, says: "the server answered 404 Not Found: sorry"},
		{name: "a page instead", code: 405, want: again, says: "the server answered 405 Method Not Allowed"},
		{name: "gone", code: 410, want: again, says: "the server answered 410 Gone"},
		{name: "another host", code: 421, body: sorry, want: again, says: "the server answered 421 Misdirected Request: sorry"},
		{
			name: "moved", code: 302, header: [2]string{"Location", "http://other/"},
			want: again, says: "the answer is not a Quern server's: 302 Found: redirect to http://other/",
		},
		{name: "too large", code: 413, want: ErrTooLarge, says: "the report is too large for the server: 413 Request Entity Too Large"},
		{name: "busy, no time given", code: 429, want: again, says: busy},
		{
			name: "busy, seconds", code: 429, header: [2]string{"Retry-After", "7"},
			want: later(7 * time.Second), says: busy,
		},
		{
			name: "away, a date", code: 503, header: [2]string{"Retry-After", "Sat, 01 Jan 2000 00:01:30 GMT"},
			want: later(90 * time.Second), says: away,
		},
		{
			name: "away, a date that has passed", code: 503, header: [2]string{"Retry-After", "Fri, 31 Dec 1999 00:00:00 GMT"},
			want: later(0), says: away,
		},
		{
			name: "more seconds than there are", code: 503, header: [2]string{"Retry-After", "9000000000000000000"},
			want: later(maxRetryAfter), says: away,
		},
		{
			name: "no time at all", code: 503, header: [2]string{"Retry-After", "soon"},
			want: again, says: away,
		},
		{name: "a server's mistake", code: 500, body: `{"error":"sorry"}`, want: again, says: "the server answered 500 Internal Server Error: sorry"},
		{name: "a proxy's server is down", code: 502, want: again, says: "the server answered 502 Bad Gateway"},
		{name: "too slow", code: 408, want: again, says: "the server answered 408 Request Timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.header[0] != "" {
					w.Header().Set(c.header[0], c.header[1])
				}
				w.WriteHeader(c.code)
				if c.code != http.StatusNoContent {
					_, _ = io.WriteString(w, c.body)
				}
			}))
			defer srv.Close()
			err := newSender(t, srv.URL).Send(t.Context(), sample)

			if c.want == nil {
				require.NoError(t, err)
				return
			}
			require.EqualError(t, err, c.says)
			var rejected, wantRejected *RejectedError
			if errors.As(c.want, &wantRejected) {
				require.ErrorAs(t, err, &rejected)
				require.Equal(t, wantRejected, rejected)
			}
			var retry, wantRetry *RetryError
			if errors.As(c.want, &wantRetry) {
				require.ErrorAs(t, err, &retry)
				require.Equal(t, wantRetry.After, retry.After)
			}
			// Any other error is retried.
			require.Equal(t, errors.Is(c.want, ErrRefused), errors.Is(err, ErrRefused))
			require.Equal(t, errors.Is(c.want, ErrTooLarge), errors.Is(err, ErrTooLarge))
			require.Equal(t, wantRetry != nil, errors.As(err, &retry))
			require.Equal(t, wantRejected != nil, errors.As(err, &rejected))
		})
	}
}

func TestNobodyThere(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	srv.Close()
	err := newSender(t, srv.URL).Send(t.Context(), sample)
	require.Error(t, err)
	require.NotErrorIs(t, err, ErrRefused)
	require.NotErrorIs(t, err, ErrTooLarge)
}

func TestURL(t *testing.T) {
	for _, bad := range []string{"", "127.0.0.1:9095", "ftp://host", "http://", "http://host:port", "/path"} {
		_, err := NewHTTPSender(bad, &http.Client{}, clock.System{})
		require.Error(t, err, bad)
	}
	_, err := NewHTTPSender("ftp://user:secret@host", &http.Client{}, clock.System{})
	require.NotContains(t, err.Error(), "secret")
	for _, good := range []string{"http://host", "http://host/", "https://host:9095"} {
		s, err := NewHTTPSender(good, &http.Client{}, clock.System{})
		require.NoError(t, err)
		require.Equal(t, strings.TrimSuffix(good, "/")+"/api/v1/reports", s.url)
	}
}

// direct passes requests to a handler without a network, which a synctest bubble cannot wait for.
type direct struct{ handler http.Handler }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.handler.ServeHTTP(w, r)
	return w.Result(), nil
}

// TestOverHTTP runs agent and sender together against a server that is busy for a while.
func TestOverHTTP(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var requests int
		handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if time.Since(bubbleStart) < 13*time.Second {
				w.Header().Set("Retry-After", "4")
				w.WriteHeader(http.StatusTooManyRequests)
				return
			}
			z, err := zstd.NewReader(r.Body)
			assert.NoError(t, err)
			defer z.Close()
			body, err := io.ReadAll(z)
			assert.NoError(t, err)
			requests++
			_, _ = fmt.Fprintf(w, `{"accepted":%d,"rejected":[]}`, strings.Count(string(body), `"value"`))
		})
		sender, err := NewHTTPSender("http://quern", &http.Client{Transport: direct{handler}}, clock.System{})
		require.NoError(t, err)
		a := start(t, Options{}, &counting{n: 2}, sender)
		after(35 * time.Second)
		a.stop()
		require.Equal(t, Stats{Delivered: 8}, a.Stats())
		require.Equal(t, 3, requests, "two intervals in one, the others in their own")
	})
}
