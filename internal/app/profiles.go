package app

import (
	"net/http/pprof"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/access/route"
)

// profiles serves the profiles of this process, for `go tool pprof`.
type profiles struct{}

// Register implements api.Registrar.
func (profiles) Register(to *route.Table) {
	to.HandleFunc(access.Admin, route.Refused, "GET /debug/pprof/", pprof.Index)
	to.HandleFunc(access.Admin, route.Refused, "GET /debug/pprof/cmdline", pprof.Cmdline)
	to.HandleFunc(access.Admin, route.Refused, "GET /debug/pprof/profile", pprof.Profile)
	to.HandleFunc(access.Admin, route.Refused, "GET /debug/pprof/symbol", pprof.Symbol)
	to.HandleFunc(access.Admin, route.Refused, "GET /debug/pprof/trace", pprof.Trace)
}
