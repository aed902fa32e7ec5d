package config

import (
	"errors"
	"time"

	"github.com/urfave/cli/v2"
)

const catToken = "Token"

// NewToken holds the options of `quern token create`. The server validates name and roles.
type NewToken struct {
	Connection
	Name    string
	Roles   []string
	Expires time.Duration // 0 for never
}

// RevokeToken holds the options of `quern token revoke`.
type RevokeToken struct {
	Connection
	ID string
}

// NewTokenFlags returns the flags of `quern token create`.
func NewTokenFlags() []cli.Flag {
	return append(connectionFlags(), []cli.Flag{
		configFlag(),
		urlFlag(),
		str(catToken, "name", "", "name of the token, such as that of the agent that will use it"),
		str(catToken, "role", "", "`ROLE,…` of the token: read, write, admin"),
		str(catToken, "expires", "90d", "how long the token is valid; 0 is for ever"),
	}...)
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
