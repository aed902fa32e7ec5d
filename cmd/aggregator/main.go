// Command aggregator grinds the samples of ingest processes into roll-ups.
package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/config"
)

func main() { program.Main(aggregator()) }

func aggregator() *cli.App {
	return &cli.App{
		Name:  "aggregator",
		Usage: "grind reports into roll-ups over Cassandra",
		Description: `Grinds the samples of 'ingest' processes into roll-ups whenever a slice of time has
ended, catches up on missed slices, and reports its progress over HTTP. Its
--aggregation-delay, --late-grace and --age-cap must equal those of the ingest processes.

Examples:

   aggregator                                      on 127.0.0.1:9096, Cassandra on 127.0.0.1:9042
   aggregator --listen :9096 --web.config.file web.yaml --cassandra-hosts 10.0.0.1,10.0.0.2 --local-dc dc1
   aggregator --config aggregator.yaml             options from a file: listen: 127.0.0.1:9096
   curl -s http://127.0.0.1:9096/api/v1/status/aggregation

While no Cassandra node answers, it keeps trying. SIGTERM or Ctrl-C drains: it finishes
the current blocks or leaves them for the next run, and releases its leases. A second
signal stops it at once.`,
		Flags:  config.AggregatorFlags(),
		Action: program.Action(config.FromAggregator, app.Aggregate),
	}
}
