package limits_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
)

// TestBodyGoesBeforeTheReply: a reply of HTTP/2 may wait for its client, and nothing of a body that no handler has read
// is held meanwhile, whether the request is served or refused.
func TestBodyGoesBeforeTheReply(t *testing.T) {
	served, refused := "", ""
	answer := func(to *string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			*to += r.Method + " "
			_, _ = io.WriteString(w, "no")
		})
	}
	requests := limits.NewRequests(1, limits.NewClients(nil), answer(&refused))
	var inner http.Handler
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(&served).ServeHTTP(w, r)
		if inner != nil {
			h := inner
			inner = nil
			ask(t, h) // while this one is in progress
		}
	})
	h := requests.Limit(next)
	inner = h
	ask(t, h)
	require.Equal(t, "POST ", served)
	require.Equal(t, "POST ", refused)
}

// ask sends a request whose body must be closed when its reply is flushed.
func ask(t *testing.T, h http.Handler) {
	body := &closing{}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", body)
	r.ProtoMajor = 2
	w := &flushing{ResponseRecorder: httptest.NewRecorder(), body: body}
	h.ServeHTTP(w, r)
	require.True(t, w.Flushed)
	require.True(t, w.closed, "the body is let go before the reply is flushed")
}

// closing is a body that nobody reads.
type closing struct {
	io.Reader
	closed bool
}

// Close implements io.Closer.
func (c *closing) Close() error {
	c.closed = true
	return nil
}

// flushing is a reply that knows whether the body was closed when it was flushed.
type flushing struct {
	*httptest.ResponseRecorder
	body   *closing
	closed bool
}

// Flush implements http.Flusher.
func (f *flushing) Flush() {
	f.closed = f.body.closed
	f.ResponseRecorder.Flush()
}
