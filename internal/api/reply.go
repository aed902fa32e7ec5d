package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/quern/quern/internal/admission"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/storage"
)

const (
	// statusClientGone is nginx's code for a client that did not wait. Only the request metrics see
	// it, where it does not count as a server error.
	statusClientGone = 499

	drainingMessage = "the process is shutting down"

	// A queue is short and drains within a group commit; an unavailable store takes longer to
	// return.
	retryBusySeconds = "1"
	retryAwaySeconds = "5"
)

// errorReply is the body of an error reply without further content. The status serves clients of
// Prometheus' API, whose errors have one.
type errorReply struct {
	Status string `json:"status"`
	Error  string `json:"error"`
}

func replyError(w http.ResponseWriter, code int, message string) {
	replyJSON(w, code, errorReply{Status: "error", Error: message})
}

// replyJSON sends v, which must be encodable, as the whole reply.
func replyJSON(w http.ResponseWriter, code int, v any) {
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

// failure maps an error from behind the API to a status code and, where a retry makes sense, the
// seconds of Retry-After.
func failure(ctx context.Context, err error) (code int, retryAfter string) {
	switch {
	case errors.Is(err, ingest.ErrBusy), errors.Is(err, admission.ErrQueueFull), errors.Is(err, admission.ErrNoRoom):
		return http.StatusTooManyRequests, retryBusySeconds
	case storage.IsAway(err), errors.Is(err, admission.ErrWaited), errors.Is(err, errTooLong):
		return http.StatusServiceUnavailable, retryAwaySeconds
	case ctx.Err() != nil:
		return statusClientGone, ""
	}
	return http.StatusInternalServerError, ""
}
