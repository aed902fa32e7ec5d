// Package access decides who may do what: roles, the grants that requests carry, tokens, logins of the page,
// and the audit log.
package access

import (
	"context"
	"fmt"
	"strings"

	"github.com/quern/quern/internal/access/bound"
	"github.com/quern/quern/internal/limits"
)

// Role is a set of what somebody may do. A route needs one role, or none.
type Role uint8

// The roles. Admin includes the others. Write does not include Read.
const (
	// Read asks: queries, exports, the state of the server.
	Read Role = 1 << iota
	// Write sends reports, by any protocol.
	Write
	// Admin does the rest: deletes, fills in history, has rows computed again, administers tokens.
	Admin

	// Anyone is the role that a route needs which is open to all.
	Anyone Role = 0
)

// named are the single roles with their names.
var named = []struct {
	role Role
	name string
}{{Read, "read"}, {Write, "write"}, {Admin, "admin"}}

// Has returns whether r includes what need says.
func (r Role) Has(need Role) bool { return r&Admin != 0 || r&need == need }

// Names returns the names of the roles in r.
func (r Role) Names() []string {
	var names []string
	for _, n := range named {
		if r&n.role != 0 {
			names = append(names, n.name)
		}
	}
	return names
}

// String implements fmt.Stringer.
func (r Role) String() string {
	if r == Anyone {
		return "anyone"
	}
	return strings.Join(r.Names(), ", ")
}

// ParseRoles returns the set of roles with these names.
func ParseRoles(names []string) (Role, error) {
	var all Role
next:
	for _, name := range names {
		for _, n := range named {
			if n.name == name {
				all |= n.role
				continue next
			}
		}
		return 0, fmt.Errorf("%.40q is not a role: there are read, write and admin", name)
	}
	return all, nil
}

// Grant is what one client may do.
type Grant struct {
	// Name says who the client is, for the audit log. It is empty for a client that has not shown who it is.
	Name string
	// Roles are what the client may do.
	Roles Role

	// Token is the id of the client's token, "" if it has none. The others are that of the token.
	Token string
	// Bound are the series that the client may write and read, nil for all.
	Bound *bound.Bound
	// Rate bounds the samples that the client sends. Nil bounds nothing.
	Rate *limits.Rate
	// Turns is how many queries the client may have in progress, 0 for its share.
	Turns int
}

type grantKey struct{}

// WithGrant returns the context of a request that is granted g. What finds series, and what takes samples, enforce by
// this context what the grant's token is bound to.
func WithGrant(ctx context.Context, g Grant) context.Context {
	return limits.WithRate(bound.WithBound(context.WithValue(ctx, grantKey{}, g), g.Bound), g.Rate)
}

// FromContext returns the grant of the request whose context it is. Without one, nothing is granted.
func FromContext(ctx context.Context) Grant {
	g, _ := ctx.Value(grantKey{}).(Grant)
	return g
}
