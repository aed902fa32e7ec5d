package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// Hosts are the names of the server that its operator has configured.
type Hosts []string

// Name returns whether a request's Host is localhost, a name below it, or one of h. No other name is the server's own: a
// page of somebody else may have a name that leads to this machine.
func (h Hosts) Name(host string) bool {
	host = withoutPort(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost") ||
		slices.ContainsFunc(h, func(name string) bool { return strings.EqualFold(name, host) })
}

// Address returns the IP address that a request's Host is. ok is false if it is none.
func Address(host string) (addr netip.Addr, ok bool) {
	addr, err := netip.ParseAddr(withoutPort(host))
	return addr.Unmap(), err == nil
}

// Loopback returns whether an address, with or without a port, is one that only this machine reaches.
func Loopback(address string) bool {
	ip, ok := Address(address)
	return withoutPort(address) == "localhost" || ok && ip.IsLoopback()
}

// withoutPort returns the name or address in a request's Host, in one form.
func withoutPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// FromThisMachine returns whether a program on this machine sends the request to this server. A request that a local
// proxy forwards does not count, if the proxy adds its headers. Nor does one of a local browser after DNS rebinding: the
// Host must be one of names, a loopback address, or the address that the request came to.
func FromThisMachine(r *http.Request, names Hosts) bool {
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "Via"} {
		if len(r.Header.Values(name)) > 0 {
			return false
		}
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return false
	}
	from, to := peer.Addr().Unmap(), localAddress(r)
	if !from.IsLoopback() && from != to {
		return false
	}
	asked, isAddress := Address(r.Host)
	return names.Name(r.Host) || isAddress && (asked.IsLoopback() || asked == to)
}

// localAddress returns the server's address of a request's connection, the zero Addr if it is unknown.
func localAddress(r *http.Request) netip.Addr {
	at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return netip.Addr{}
	}
	local, _ := netip.ParseAddrPort(at.String())
	return local.Addr().Unmap()
}
