package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func reaggregateCommand() *cli.Command {
	return &cli.Command{
		Name:  "reaggregate",
		Usage: "have a server recompute roll-up rows",
		Description: `Marks the slices between --start and --end of all matching series, so that the next run
recomputes their rows from the raw samples, and then the rows of the coarser levels. Open slices
need no mark: they are ground when they close. Slices whose samples have partly expired keep
their rows. The command may be repeated.

Examples:

   quern reaggregate --match 'cpu{source="web-1"}' --start -6h
   quern reaggregate --match '{__name__!=""}' --start 2025-11-21T08:00:00Z --end 2025-11-21T12:00:00Z
   quern reaggregate --url http://metrics.example:9095 --match cpu --match mem --start -2d

Its exit code is 1 when no series match.`,
		Flags:  config.ReaggregateFlags(),
		Action: asking(program.Action(config.FromReaggregate, commands.Reaggregate)),
	}
}

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show the progress, workers and errors of aggregation",
		Description: `Asks a server, an ingest or an aggregator for the outstanding slices and the lag of each bucket, the
workers with their shards and last heartbeats, the last runs, and the last errors of each component.

Examples:

   quern status
   quern status --url http://metrics.example:9096
   quern status --json`,
		Flags:  config.StatusFlags(),
		Action: asking(program.Action(config.FromStatus, commands.Status)),
	}
}

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:  "explain",
		Usage: "explain why a roll-up row is there, missing or late",
		Description: `Asks a server about the rows around a time. For each level whose slice contains that time, it shows
the row's input, the row itself, the outstanding work and when it is due, and the errors.

Examples:

   quern explain --match 'cpu{source="web-1"}' --time -3h
   quern explain --match 'cpu{source="web-1"}' --time 2025-11-21T10:30:00Z
   quern explain --url http://metrics.example:9095 --match cpu --limit 100 --json

Its exit code is 1 when no series match.`,
		Flags:  config.ExplainFlags(),
		Action: asking(program.Action(config.FromExplain, commands.Explain)),
	}
}

// asking turns a request that the server refuses into a usage error: the server parses selectors
// and times.
func asking(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		err := action(c)
		if client.Refused(err) {
			return program.BadUsage(c, err)
		}
		return err
	}
}
