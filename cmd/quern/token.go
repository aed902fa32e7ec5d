package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func tokenCommand() *cli.Command {
	return &cli.Command{
		Name:  "token",
		Usage: "make, list and revoke the tokens by which programs log in",
		Description: `Tokens are for servers with a web config file (see docs/security.md). The commands ask a server,
as a user of that file or with a token that has the role admin:

   quern token create --url https://admin:PASSWORD@metrics.example:9095 --name web-1 --role write

Before there is a server, or where its file has no users, the first token is made in the store:

   quern token create --in-store --store pebble --data-dir /var/lib/quern --name first --role admin`,
		Subcommands: []*cli.Command{{
			Name:  "create",
			Usage: "make a token, and print it once",
			Description: `Prints the token on standard output, and what it may do on standard error. The server keeps only
a hash, so nobody can learn the token later.

Examples:

   quern token create --token-file admin.token --name web-1 --role write > web-1.token
   quern token create --token-file admin.token --name grafana --role read --expires 1y
   quern token create --token-file admin.token --name web --role read,write --match '{team="web"}' \
     --max-match-series 100000 --max-samples-per-second 5000 --max-queries 4
   quern token create --in-store --keyspace quern --cassandra 10.0.0.1 --name first --role admin

With --match the token writes and reads only series that match, at all endpoints; other samples are
rejected, each with its reason. A token with the role admin cannot be bound or limited.

With --in-store the command opens the store itself. No process may be serving an embedded store
meanwhile; over Cassandra the processes may keep running, and know the token within ten seconds.`,
			Flags:  config.NewTokenFlags(),
			Action: asking(program.Action(config.FromNewToken, commands.CreateToken)),
		}, {
			Name:  "list",
			Usage: "list the tokens that are not revoked",
			Description: `Lists ids, names and roles, never the tokens themselves.

Example:

   quern token list --token-file admin.token`,
			Flags:  config.TokensFlags(),
			Action: asking(program.Action(config.FromTokens, commands.ListTokens)),
		}, {
			Name:      "revoke",
			ArgsUsage: "ID",
			Usage:     "end a token",
			Description: `Ends a token, and the logins of pages that it began, on all processes of the store within ten seconds.
Instead of the id, the whole token does as well; its secret is not sent.

Example:

   quern token revoke --token-file admin.token aaaabbbbccccdddd`,
			Flags:  config.RevokeTokenFlags(),
			Action: asking(program.Action(config.FromRevokeToken, commands.RevokeToken)),
		}},
	}
}
