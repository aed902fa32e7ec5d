package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/config"
)

func serveCommand() *cli.Command {
	return &cli.Command{
		Name:  "serve",
		Usage: "run ingest, aggregation and queries in one process",
		Description: `Accepts measurement reports over HTTP, makes them durable, grinds them into roll-ups when
a slice of time has ended, and answers queries. It stores data in an embedded store, or in
a Cassandra cluster that 'quern schema apply' has prepared.

Examples:

   quern serve                                     on 127.0.0.1:9095, in ./quern-data
   quern serve --demo                              with 26 hours of generated data
   quern serve --listen :9095 --web.config.file web.yaml --data-dir /var/lib/quern
   quern serve --rollups 10s,1m,5m --aggregation-delay 3s --late-grace 1s
                                                   hours tried in a minute
   quern serve --store cassandra --cassandra-hosts 10.0.0.1,10.0.0.2
   quern serve --config quern.yaml                 options from a file: listen: 127.0.0.1:9095

SIGTERM or Ctrl-C drains: it refuses new reports, makes the accepted ones durable, and
releases the current blocks. A second signal stops it at once; nothing acknowledged is lost.`,
		Flags:  config.ServeFlags(),
		Action: program.Action(config.FromServe, app.Serve),
	}
}
