package api

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
)

// ConfirmClockPath is where the clock of a server is confirmed.
const ConfirmClockPath = "/api/v1/clock/confirm"

// ConfirmClock is the endpoint by which somebody says that the server's clock is right. What expires by it is gone.
type ConfirmClock struct {
	confirm func(context.Context) error
	anyone  bool
}

// NewConfirmClock makes the endpoint. Unless anyone may ask, only who is on this machine may. confirm is nil where rows
// expire by other machines' clocks.
func NewConfirmClock(confirm func(context.Context) error, anyone bool) *ConfirmClock {
	return &ConfirmClock{confirm, anyone}
}

// Register implements Registrar.
func (h *ConfirmClock) Register(mux *http.ServeMux) { mux.Handle("POST "+ConfirmClockPath, h) }

// ServeHTTP implements http.Handler.
func (h *ConfirmClock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case h.confirm == nil:
		replyError(w, http.StatusBadRequest, "rows of this store expire by the clocks of Cassandra's servers: there is nothing to confirm here")
	case !h.anyone && !fromThisMachine(r):
		replyError(w, http.StatusForbidden, fmt.Sprintf(
			"%s is for programs on the server's own machine: ask there, or start the server with --enable-admin-api", r.URL.Path))
	default:
		if err := h.confirm(r.Context()); err != nil {
			replyError(w, http.StatusServiceUnavailable, err.Error())
			return
		}
		replyJSON(w, http.StatusOK, struct {
			Status string `json:"status"`
		}{"success"})
	}
}

// fromThisMachine says whether the client runs on this machine. What a proxy on it hands on does not count, as far as the
// proxy says so.
func fromThisMachine(r *http.Request) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	from := peer.Addr().Unmap()
	if from.IsLoopback() {
		return true
	}
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return false
	}
	local, err := netip.ParseAddrPort(at.String())
	return err == nil && local.Addr().Unmap() == from
}
