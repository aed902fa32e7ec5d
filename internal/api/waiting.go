package api

import "net/http"

// NewWaiting answers in place of a Server while there is no store to make one with: the
// process is healthy, not ready, and everything else is to be tried again. reason says
// why.
func NewWaiting(reason func() error) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /-/healthy", healthy)
	mux.HandleFunc("GET /-/ready", func(w http.ResponseWriter, _ *http.Request) {
		notReady(w, reason().Error())
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", retryAwaySeconds)
		replyError(w, http.StatusServiceUnavailable, "the store is not there yet: "+reason().Error())
	})
	return mux
}
