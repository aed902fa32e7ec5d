// Command ingest accepts measurement reports and answers queries over a Cassandra cluster.
package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/config"
)

func main() { program.Main(ingest()) }

func ingest() *cli.App {
	return &cli.App{
		Name:  "ingest",
		Usage: "accept measurement reports and answer queries over Cassandra",
		Description: `Accepts measurement reports over HTTP, makes them durable in a Cassandra cluster that
'quern schema apply' has prepared, and answers queries. Run as many as the load needs,
and at least one 'aggregator', which grinds their samples into roll-ups.

Examples:

   ingest                                          on 127.0.0.1:9095, Cassandra on 127.0.0.1:9042
   ingest --listen :9095 --web.config.file web.yaml --cassandra-hosts 10.0.0.1,10.0.0.2 --local-dc dc1
   QUERN_CASSANDRA_PASSWORD_FILE=/run/secrets/cassandra ingest --cassandra-username quern
   ingest --config ingest.yaml                     options from a file: listen: 127.0.0.1:9095

While no Cassandra node answers, it answers reports 503 with Retry-After and keeps trying.
SIGTERM or Ctrl-C drains: it refuses new reports and makes the accepted ones durable. A
second signal stops it at once; nothing acknowledged is lost.`,
		Flags:  config.IngestFlags(),
		Action: program.Action(config.FromIngest, app.Ingest),
	}
}
