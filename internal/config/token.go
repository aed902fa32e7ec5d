package config

import (
	"errors"
	"slices"
	"time"

	"github.com/urfave/cli/v2"
)

const catToken = "Token"

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

// NewTokenFlags returns the flags of `quern token create`.
func NewTokenFlags() []cli.Flag {
	return slices.Concat(connectionFlags(), SettingsFlags(), []cli.Flag{
		urlFlag(),
		boolean(catToken, "in-store", false, "make the token in the store itself, see --store, and not by a server: the first token, before there is a server"),
		str(catToken, "name", "", "name of the token, such as that of the agent that will use it"),
		str(catToken, "role", "", "`ROLE,…` of the token: read, write, admin"),
		str(catToken, "expires", "90d", "how long the token is valid; 0 is for ever"),
		&cli.StringSliceFlag{
			Name: "match", Category: catToken,
			Usage: "`SELECTOR` of the series that the token may write and read, such as {team=\"web\"}; repeat the flag to add the series that match another selector (default: all series)",
		},
		integer(catToken, "max-match-series", 0, "maximum number of series that match --match, whoever made them, for the token to make one more; 0 is no limit"),
		integer(catToken, "max-samples-per-second", 0, "samples that the token may send to one process a second, over time; 0 is no limit"),
		integer(catToken, "max-queries", 0, "queries, exports and so on, of each kind, that the token may have in progress in one process; 0 is its share, half of all"),
	})
}

// TokensFlags returns the flags of `quern token list` and `quern token revoke`.
func TokensFlags() []cli.Flag { return append(connectionFlags(), configFlag(), urlFlag()) }

// FromNewToken reads the flags of `quern token create`.
func FromNewToken(c *cli.Context) (NewToken, error) {
	return read(c, func(p *parser, n *NewToken) {
		n.Connection = p.connection()
		n.Name = p.required("name")
		if n.Roles = p.list("role"); len(n.Roles) == 0 {
			p.add(errors.New("--role: must be read, write or admin, or several of them separated by commas"))
		}
		n.Expires = p.notNegative("expires")
		if n.InStore = p.c.Bool("in-store"); n.InStore {
			p.settings(&n.Settings)
		}
		n.Match = p.c.StringSlice("match")
		n.MaxSeries = p.within("max-match-series", 0, 1<<40)
		n.MaxSamplesPerSecond = p.within("max-samples-per-second", 0, 1<<40)
		n.MaxQueries = p.within("max-queries", 0, 1<<30)
	})
}

// FromTokens reads the flags of `quern token list`.
func FromTokens(c *cli.Context) (Connection, error) {
	return read(c, func(p *parser, to *Connection) { *to = p.connection() })
}

// FromRevokeToken reads the flags and the argument of `quern token revoke`.
func FromRevokeToken(c *cli.Context) (RevokeToken, error) {
	return read(c, func(p *parser, r *RevokeToken) {
		r.Connection = p.connection()
		if r.ID = c.Args().First(); c.NArg() != 1 || r.ID == "" {
			p.add(errors.New("name the token by its id, as `quern token list` shows it: quern token revoke ID"))
		}
	})
}
