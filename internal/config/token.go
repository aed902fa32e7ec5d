package config

import (
	"errors"
	"time"
)

// NewToken holds the options of `quern token create`. Whoever makes the token validates what it is to be.
type NewToken struct {
	Connection
	// InStore has the command make the token itself, in a store that no server needs to serve.
	InStore bool
	Settings
	Name    string
	Roles   []string
	Expires time.Duration // 0 for never
	// Match are selectors of series, none for all. The limits are 0 for none.
	Match                                      []string
	MaxSeries, MaxSamplesPerSecond, MaxQueries int
}

// RevokeToken holds the options of `quern token revoke`.
type RevokeToken struct {
	Connection
	// ID may also be the whole token.
	ID string
}

// NewTokenFlags and FromNewToken are of `quern token create`.
var NewTokenFlags, FromNewToken = command(func(o *options, n *NewToken) {
	token := o.group("Token")
	n.Connection.addRows(o)
	n.Settings.addRows(o)
	token.boolean(&n.InStore, "in-store", false, "make the token in the store itself, see --store, and not by a server: the first token, before there is a server")
	token.required(&n.Name, "name", "", "name of the token, such as that of the agent that will use it")
	parsed(token, &n.Roles, "role", "", "`ROLE,…` of the token: read, write, admin", func(s string) ([]string, error) {
		if roles := splitWords(s); len(roles) > 0 {
			return roles, nil
		}
		return nil, wholeError{errors.New("must be read, write or admin, or several of them separated by commas")}
	})
	token.span(&n.Expires, "expires", 90*day, notNegative, "how long the token is valid; 0 is for ever")
	token.repeated(&n.Match, "match", "`SELECTOR` of the series that the token may write and read, such as {team=\"web\"}; repeat the flag to add the series that match another selector (default: all series)")
	number(token, &n.MaxSeries, "max-match-series", 0, 0, 1<<40, "maximum number of series that match --match, whoever made them, for the token to make one more; 0 is no limit")
	number(token, &n.MaxSamplesPerSecond, "max-samples-per-second", 0, 0, 1<<40, "samples that the token may send to one process a second, over time; 0 is no limit")
	number(token, &n.MaxQueries, "max-queries", 0, 0, 1<<30, "queries, exports and so on, of each kind, that the token may have in progress in one process; 0 is its share, half of all")
})

// TokensFlags and FromTokens are of `quern token list`.
var TokensFlags, FromTokens = command(func(o *options, c *Connection) { c.addRows(o) })

// RevokeTokenFlags and FromRevokeToken are of `quern token revoke`.
var RevokeTokenFlags, FromRevokeToken = command(func(o *options, r *RevokeToken) {
	r.addRows(o)
	o.argument(&r.ID, "name the token by its id, as `quern token list` shows it: quern token revoke ID")
})
