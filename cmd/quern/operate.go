package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/program"
)

func reaggregateCommand() *cli.Command {
	return &cli.Command{
		Name:  "reaggregate",
		Usage: "have a server compute roll-up rows again",
		Description: `Marks the slices between --start and --end of all series that match, so that the next run
computes their rows again from the raw samples, and then those of the coarser levels. Slices
that are not closed yet are ground anyway; slices whose samples have expired in part keep
the rows that they have. It may be repeated.

Examples:

   quern reaggregate --match 'cpu{source="web-1"}' --start -6h
   quern reaggregate --match '{__name__!=""}' --start 2025-11-21T08:00:00Z --end 2025-11-21T12:00:00Z
   quern reaggregate --url http://metrics.example:9095 --match cpu --match mem --start -2d

It ends with 1 when no series match.`,
		Flags:  config.ReaggregateFlags(),
		Action: asking(program.Action(config.FromReaggregate, app.Reaggregate)),
	}
}

func statusCommand() *cli.Command {
	return &cli.Command{
		Name:  "status",
		Usage: "show how far aggregation is, who does it, and what went wrong",
		Description: `Asks a server, an ingest or an aggregator: what is outstanding and how far behind each bucket is, the
workers with their shards and last heartbeats, the last runs, the last errors of each component.

Examples:

   quern status
   quern status --url http://metrics.example:9096
   quern status --json`,
		Flags:  config.StatusFlags(),
		Action: asking(program.Action(config.FromStatus, app.Status)),
	}
}

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:  "explain",
		Usage: "say why a roll-up row is there, missing or late",
		Description: `Asks a server about the rows around a time: for each level whose slice contains it, what there
is to make the row of, the row itself, what is still to be done and when, and what went wrong.

Examples:

   quern explain --match 'cpu{source="web-1"}' --time -3h
   quern explain --match 'cpu{source="web-1"}' --time 2025-11-21T10:30:00Z
   quern explain --url http://metrics.example:9095 --match cpu --limit 100 --json

It ends with 1 when no series match.`,
		Flags:  config.ExplainFlags(),
		Action: asking(program.Action(config.FromExplain, app.Explain)),
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
