package app

import (
	"net/http"
	"net/http/pprof"
)

// profiles serves the profiles of this process, for `go tool pprof`.
type profiles struct{}

// Register implements api.Registrar.
func (profiles) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
}
