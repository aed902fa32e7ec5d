package api

import (
	"net/http"

	"github.com/quern/quern/internal/protocol/respond"
)

// NewWaiting replaces a Server while there is no store yet. The process is healthy but not ready,
// and all other requests get 503 with Retry-After. reason returns the cause.
func NewWaiting(reason func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/healthy", healthy)
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		notReady(w, reason().Error())
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", respond.RetryAway)
		respond.Error(w, http.StatusServiceUnavailable, "the store is not available yet: "+reason().Error())
	})
	return mux
}
