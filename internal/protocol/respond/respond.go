// Package respond has the replies that endpoints of all kinds share, and the status codes for what
// fails.
package respond

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/wire"
	"github.com/quern/quern/internal/wire/excerpt"
)

// ClientGone is nginx's code for a client that did not wait. Only the request metrics see it,
// where it does not count as a server error.
const ClientGone = 499

// Draining says why a process that ends refuses a request.
const Draining = "the process is shutting down"

// RetryBusy and RetryAway are values of Retry-After. A queue is short and drains within
// a group commit; an unavailable store takes longer to return.
const (
	RetryBusy = "1"
	RetryAway = "5"
)

// Error replies with a message in JSON, which it shortens if it is very long.
func Error(w http.ResponseWriter, code int, message string) {
	JSON(w, code, wire.Error{Status: wire.Failure, Error: excerpt.Message(message)})
}

// NotFound replies that an endpoint has nothing of the name that the request gives. A client tells it by its type from a
// server without the endpoint.
func NotFound(w http.ResponseWriter, message string) {
	JSON(w, http.StatusNotFound, wire.Error{Status: wire.Failure, ErrorType: wire.NotFound, Error: excerpt.Message(message)})
}

// LetGo drops the parameters of a request, and gives back what was charged for them and for what was
// parsed from them. Handlers call it before they write a failure, since the client may take arbitrarily
// long to read it.
func LetGo(r *http.Request) {
	r.Form, r.PostForm, r.Body = nil, nil, http.NoBody
	limits.Discharge(r.Context())
}

// JSON sends v, which must be encodable, as the whole reply.
func JSON(w http.ResponseWriter, code int, v any) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	// These replies never become part of HTML, and people read them.
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // a value of this package that JSON cannot represent, such as NaN
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	// A client that has gone cannot be told.
	_, _ = w.Write(buf.Bytes())
}

// Text sends a text as the whole reply.
func Text(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	// A client that has gone cannot be told.
	_, _ = io.WriteString(w, text)
}

// Seconds returns a value of Retry-After.
func Seconds(after time.Duration) string { return strconv.Itoa(int(math.Ceil(after.Seconds()))) }

// Failure maps an error from behind the API to a status code and, where a retry makes sense, the
// seconds of Retry-After.
func Failure(ctx context.Context, err error) (code int, retryAfter string) {
	if early := (*limits.RateError)(nil); errors.As(err, &early) {
		return http.StatusTooManyRequests, Seconds(early.After)
	}
	switch {
	case errors.Is(err, ingest.ErrTooLarge):
		return http.StatusRequestEntityTooLarge, ""
	case errors.Is(err, ingest.ErrBusy), errors.Is(err, limits.ErrQueueFull), errors.Is(err, limits.ErrNoRoom):
		return http.StatusTooManyRequests, RetryBusy
	case storage.IsAway(err), errors.Is(err, limits.ErrWaited), errors.Is(err, ErrTooLong):
		return http.StatusServiceUnavailable, RetryAway
	case ctx.Err() != nil:
		return ClientGone, ""
	}
	return http.StatusInternalServerError, ""
}
