package agent

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
)

var sample = Batch{Samples: 2, Body: []byte("compressed")}

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
		w.Header().Set("X-Prometheus-Remote-Write-Samples-Written", "2")
		w.WriteHeader(http.StatusNoContent)
	}))
	defer srv.Close()

	s := newSender(t, strings.Replace(srv.URL, "http://", "http://user:secret@", 1)+"/behind/proxy/")
	require.NoError(t, s.Send(t.Context(), sample))
	require.Equal(t, http.MethodPost, got.Method)
	require.Equal(t, "/behind/proxy/api/v1/write", got.URL.Path)
	require.Equal(t, "application/x-protobuf", got.Header.Get("Content-Type"))
	require.Equal(t, "0.1.0", got.Header.Get("X-Prometheus-Remote-Write-Version"))
	require.Equal(t, "zstd", got.Header.Get("Content-Encoding"))
	require.Equal(t, "quern-agent/devel", got.Header.Get("User-Agent"))
	user, password, _ := got.BasicAuth()
	require.Equal(t, "user secret", user+" "+password)
	require.Equal(t, string(sample.Body), body)
}

func TestReplies(t *testing.T) {
	const busy, away = "the server answered 429 Too Many Requests", "the server answered 503 Service Unavailable"
	const sorry = "sorry\n"
	again := errors.New("tried again, when the agent likes")
	later := func(after time.Duration) error { return &RetryError{After: after} }
	for _, c := range []struct {
		name   string
		code   int
		header [2]string
		counts string // written and rejected; without it, the answer is not Quern's
		body   string
		want   error // nil: accepted; otherwise the kind of error
		says   string
	}{
		{name: "taken", code: 204, counts: "2 0"},
		{name: "somebody who takes anything", code: 204, want: again, says: "the answer is not a Quern server's: 204 No Content"},
		{
			name: "a page to log in", code: 200, body: "<html>Please log in</html>",
			want: again, says: "the answer is not a Quern server's: 200 OK: <html>Please log in</html>",
		},
		{name: "a reply for fewer", code: 204, counts: "1 0", want: again, says: "the answer is not a Quern server's: 204 No Content"},
		{
			name: "forgiven in part", code: 204, counts: "1 1",
			want: &RejectedError{Total: 1, Message: "204 No Content"}, says: "1 measurements were rejected: 204 No Content",
		},
		{
			name: "taken in part", code: 400, counts: "1 1", body: "1 samples stored, 1 rejected; sample 1: a day late (too_old)\n",
			want: &RejectedError{Total: 1, Message: "400 Bad Request: 1 samples stored, 1 rejected; sample 1: a day late (too_old)"},
			says: "1 measurements were rejected: 400 Bad Request: 1 samples stored, 1 rejected; sample 1: a day late (too_old)",
		},
		{
			name: "nothing taken", code: 400, counts: "0 2", body: "all old",
			want: &RejectedError{Total: 2, Message: "400 Bad Request: all old"}, says: "2 measurements were rejected: 400 Bad Request: all old",
		},
		{
			name: "broken off", code: 400, counts: "0 1", body: "the body breaks off",
			want: ErrRefused, says: "the server refused the report: 400 Bad Request: the body breaks off",
		},
		{name: "not understood", code: 400, counts: "0 0", body: sorry, want: ErrRefused, says: "the server refused the report: 400 Bad Request: sorry"},
		{name: "not decodable", code: 415, counts: "0 0", body: sorry, want: ErrRefused, says: "the server refused the report: 415 Unsupported Media Type: sorry"},
		{name: "not processable", code: 422, counts: "0 0", body: sorry, want: ErrRefused, says: "the server refused the report: 422 Unprocessable Entity: sorry"},
		{name: "busy after a part", code: 503, counts: "1 0", want: again, says: away},
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
		{name: "a server's mistake", code: 500, body: sorry, want: again, says: "the server answered 500 Internal Server Error: sorry"},
		{name: "a proxy's server is down", code: 502, want: again, says: "the server answered 502 Bad Gateway"},
		{name: "too slow", code: 408, want: again, says: "the server answered 408 Request Timeout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if c.header[0] != "" {
					w.Header().Set(c.header[0], c.header[1])
				}
				if written, rejected, ok := strings.Cut(c.counts, " "); ok {
					w.Header().Set("X-Prometheus-Remote-Write-Samples-Written", written)
					w.Header().Set("X-Quern-Samples-Rejected", rejected)
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
		require.Equal(t, strings.TrimSuffix(good, "/")+"/api/v1/write", s.url)
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
			body, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			var batch ingest.Batch
			assert.NoError(t, (&Batch{Body: body}).Decode(&batch))
			written := 0
			for _, r := range batch.Reports() {
				written += len(r.Measurements)
			}
			requests++
			w.Header().Set("X-Prometheus-Remote-Write-Samples-Written", strconv.Itoa(written))
			w.WriteHeader(http.StatusNoContent)
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
