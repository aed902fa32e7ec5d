package api

import (
	"context"
	"fmt"
	"net/http"

	"github.com/quern/quern/internal/access"
	"github.com/quern/quern/internal/api/respond"
	"github.com/quern/quern/internal/api/route"
	"github.com/quern/quern/internal/wire"
)

// ConfirmClock is the endpoint by which an operator confirms that the server's clock is right. Data
// that has expired by that clock is then gone.
type ConfirmClock struct {
	confirm func(context.Context) error
	anyone  bool
	own     access.Hosts
}

// NewConfirmClock makes the endpoint. Of clients that have not shown who they are, only those on this
// machine, which asks for one of the server's own names, may use it, unless anyone is set. confirm is nil where rows
// expire by the clocks of other machines.
func NewConfirmClock(confirm func(context.Context) error, anyone bool, own access.Hosts) *ConfirmClock {
	return &ConfirmClock{confirm, anyone, own}
}

// Register implements Registrar.
func (h *ConfirmClock) Register(to *route.Table) {
	to.Handle(access.Admin, route.Refused, "POST "+wire.ConfirmClockPath, h)
}

// ServeHTTP implements http.Handler.
func (h *ConfirmClock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case h.confirm == nil:
		respond.Error(w, http.StatusBadRequest, "rows of this store expire by the clocks of the Cassandra servers: there is nothing to confirm here")
	case !h.anyone && access.FromContext(r.Context()).Name == "" && !access.FromThisMachine(r, h.own):
		respond.Error(w, http.StatusForbidden, fmt.Sprintf(
			"%s is open only to programs on the server's own machine: ask from there, at localhost or a name of --allowed-hosts, "+
				"or start the server with --enable-admin-api", r.URL.Path))
	default:
		if err := h.confirm(r.Context()); err != nil {
			respond.Error(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		respond.JSON(w, http.StatusOK, wire.Done{Status: wire.Success})
	}
}
