// Package admission bounds what clients hold at the same time: connections, memory for the bodies of their requests, and turns
// at work that is heavy.
//
//  1. Each thing has a bound of its own: who holds all of one keeps nobody from the others.
//  2. Of each thing one client holds at most half, so that the other half is there for others. Addresses that stand for
//     many clients are not held to that; see Clients.
//  3. What is taken is given back once.
package admission

import (
	"net/netip"
)

// Client is who holds something. The zero value is nobody in particular, and is held to no share.
type Client struct{ prefix netip.Prefix }

// ipv6Bits is how much of an IPv6 address names a client: who has one address has all of its network.
const ipv6Bits = 64

// Clients tells clients apart by the address that they connect from.
type Clients struct{ shared []netip.Prefix }

// NewClients makes a Clients. Addresses in shared stand for many clients, as that of a proxy does.
func NewClients(shared []netip.Prefix) *Clients { return &Clients{shared: shared} }

// Loopback is where a proxy on the same machine connects from.
func Loopback() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// Of is the client that connects from an address such as 192.0.2.1:4711. One that is no IP address is nobody's in particular.
func (c *Clients) Of(address string) Client {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return Client{}
	}
	addr := at.Addr().Unmap().WithZone("")
	for _, p := range c.shared {
		if p.Contains(addr) {
			return Client{}
		}
	}
	bits := addr.BitLen()
	if addr.Is6() {
		bits = ipv6Bits
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return Client{}
	}
	return Client{prefix: prefix}
}

// holdings count what is held of one thing, together and by client. It is not safe for concurrent use.
type holdings struct {
	limit, share int64
	all          int64
	of           map[Client]int64
}

func newHoldings(limit, share int64) holdings {
	return holdings{limit: limit, share: share, of: make(map[Client]int64)}
}

// fits says whether c may hold n more.
func (h *holdings) fits(c Client, n int64) bool {
	return h.all+n <= h.limit && (c == Client{} || h.of[c]+n <= h.share)
}

func (h *holdings) take(c Client, n int64) bool {
	if !h.fits(c, n) {
		return false
	}
	h.all += n
	if (c != Client{}) {
		h.of[c] += n
	}
	return true
}

func (h *holdings) give(c Client, n int64) {
	h.all -= n
	if (c == Client{}) {
		return
	}
	if h.of[c] -= n; h.of[c] == 0 {
		delete(h.of, c)
	}
}

// half is the share of one client.
func half(limit int64) int64 { return max((limit+1)/2, 1) }
