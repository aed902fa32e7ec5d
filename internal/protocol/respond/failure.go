package respond

import (
	"errors"
	"net/http"
)

// ErrTooLong means that a query took longer than it may. It is answered with 503.
var ErrTooLong = errors.New("the request took longer than --query-timeout: ask for fewer series or less time")

// ErrStalled means that the client stops in the middle of a body. It is answered with 408.
var ErrStalled = errors.New("the body stopped arriving, or arrives too slowly")

// TooLargeError says which limit a body exceeds. It is answered with 413.
type TooLargeError struct{ Message string }

// Error implements error.
func (e *TooLargeError) Error() string { return e.Message }

// ErrNoRoom is answered with 429: other requests, or others of this client, hold the memory reserved
// for bodies.
var ErrNoRoom = errors.New("the bodies of other requests fill the memory for request bodies, try again")

// BodyFailure returns the status code for a body that is not decoded at all. It returns 0 for a
// body to decode, even one that broke off. It sets Retry-After where a retry makes sense.
func BodyFailure(w http.ResponseWriter, err error) int {
	tooLarge := (*TooLargeError)(nil)
	switch {
	case errors.As(err, &tooLarge):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrStalled):
		w.Header().Set("Connection", "close")
		return http.StatusRequestTimeout
	case errors.Is(err, ErrNoRoom):
		w.Header().Set("Retry-After", RetryBusy)
		return http.StatusTooManyRequests
	}
	return 0
}
