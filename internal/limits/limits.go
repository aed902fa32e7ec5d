// Package limits bounds what clients hold at the same time (connections, memory for the bodies of their requests, turns
// at heavy work), what they send over time, what runs beside requests, and how often a message is logged.
//
//  1. Each resource has its own Budget: a client that holds all of one resource blocks nobody from the others.
//  2. One client holds at most half of each Budget, so that the other half remains for others. Addresses that stand for
//     many clients are exempt; see Clients. Whoever reads by a token is one client, from whatever address.
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
	turns  int
}

// TokenClient returns the client that has a token, by the token's id, and how many turns of each kind it may have: 0 is its
// share.
func TokenClient(id string, turns int) Client { return Client{token: id, turns: turns} }

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

// ByAddress returns the client that connects from an address such as 192.0.2.1:4711. For a shared address,
// or one that is no IP address, it returns the zero Client.
func (c *Clients) ByAddress(address string) Client {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return Client{}
	}
	addr, bits := at.Addr().Unmap().WithZone(""), 32
	if addr.Is6() {
		bits = ipv6Bits
	}
	for _, p := range c.shared {
		if p.Contains(addr) {
			return Client{}
		}
	}
	return Client{prefix: netip.PrefixFrom(addr, bits).Masked()}
}

// For returns the client of ctx's request if it has a token, and else the one that connects from the address.
func (c *Clients) For(ctx context.Context, address string) Client {
	if client := ClientOf(ctx); client.token != "" {
		return client
	}
	return c.ByAddress(address)
}

type clientKey struct{}

// WithClient returns the context of a client's request.
func WithClient(ctx context.Context, c Client) context.Context {
	return context.WithValue(ctx, clientKey{}, c)
}

// ClientOf returns the client of ctx's request. By default, it is unknown.
func ClientOf(ctx context.Context) Client {
	c, _ := ctx.Value(clientKey{}).(Client)
	return c
}
