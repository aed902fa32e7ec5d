// Package limits bounds what clients hold at the same time: connections, memory for the bodies
// of their requests, and turns at heavy work.
//
//  1. Each resource has its own bound: a client that holds all of one resource blocks nobody from
//     the others.
//  2. One client holds at most half of each resource, so that the other half remains for others.
//     Addresses that stand for many clients are exempt; see Clients. Whoever reads by a token is one
//     client, from whatever address, and may have smaller limits.
//  3. What is taken is given back exactly once.
package limits

import (
	"context"
	"net/netip"
)

// Client identifies who holds a resource. The zero value stands for an unknown client, to which no
// share applies.
type Client struct {
	prefix netip.Prefix
	token  string
	limits Limits
}

// Limits are what a client may hold at most. 0 is what any client may hold, its share.
type Limits struct {
	// Turns is the number of turns of each kind.
	Turns int
}

// OfToken returns the client that has a token, by the token's id.
func OfToken(id string, limits Limits) Client { return Client{token: id, limits: limits} }

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

// For returns the client whose request a context is of, if it has a token, and otherwise the one that connects from the
// address.
func (c *Clients) For(ctx context.Context, address string) Client {
	if client := ClientOf(ctx); client.token != "" {
		return client
	}
	return c.Of(address)
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
	// own returns the limit of a client, 0 for none. It may be nil.
	own func(Limits) int64
	all int64
	of  map[Client]int64
}

func newHoldings(limit, share int64) holdings {
	return holdings{limit: limit, share: share, of: make(map[Client]int64)}
}

// shareOf returns how much c may hold.
func (h *holdings) shareOf(c Client) int64 {
	if (c == Client{}) {
		return h.limit
	}
	if h.own != nil {
		if own := h.own(c.limits); own > 0 {
			return min(own, h.share)
		}
	}
	return h.share
}

// fits reports whether c may hold n more.
func (h *holdings) fits(c Client, n int64) bool {
	return h.all+n <= h.limit && (c == Client{} || h.of[c]+n <= h.shareOf(c))
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
