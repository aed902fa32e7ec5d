package access

import (
	"net"
	"net/http"
	"net/netip"
)

// FromThisMachine returns whether the client runs on this machine. Requests that a local proxy
// forwards do not count, if the proxy adds its headers.
func FromThisMachine(r *http.Request) bool {
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
