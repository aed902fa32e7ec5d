// Package admission bounds what clients hold at the same time: connections, memory for the bodies
// of their requests, and turns at heavy work.
//
//  1. Each resource has its own bound: a client that holds all of one resource blocks nobody from
//     the others.
//  2. One client holds at most half of each resource, so that the other half remains for others.
//     Addresses that stand for many clients are exempt; see Clients.
//  3. What is taken is given back exactly once.
package admission

import (
	"context"
	"net/netip"
)

// Client identifies who holds a resource. The zero value stands for an unknown client, to which no
// share applies.
type Client struct{ prefix netip.Prefix }

// ipv6Bits is the length of the prefix that identifies a client by IPv6: whoever has one address
// has the whole network.
const ipv6Bits = 64

// Clients distinguishes clients by the address that they connect from.
type Clients struct{ shared []netip.Prefix }

// NewClients returns a Clients. Each address in shared stands for many clients, as that of a proxy
// does.
func NewClients(shared []netip.Prefix) *Clients { return &Clients{shared: shared} }

// Loopback returns the addresses from which a proxy on the same machine connects.
func Loopback() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// Of returns the client that connects from an address such as 192.0.2.1:4711. For a shared address,
// or one that is no IP address, it returns the zero Client.
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

type clientKey struct{}

// WithClient returns the context of a client's request.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientOf returns the client whose request a context is of. By default, it is unknown.
func ClientOf(ctx context.Context) Client {
	c, _ := ctx.Value(clientKey{}).(Client)
	return c
}

// holdings counts what is held of one resource, in total and by client. It is not safe for
// concurrent use.
type holdings struct {
	limit, share int64
	all          int64
	of           map[Client]int64
}

func newHoldings(limit, share int64) holdings {
	return holdings{limit: limit, share: share, of: make(map[Client]int64)}
}

// fits reports whether c may hold n more.
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

// half returns the share of one client.
func half(limit int64) int64 { return max((limit+1)/2, 1) }
