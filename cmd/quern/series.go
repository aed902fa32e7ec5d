package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func seriesCommand() *cli.Command {
	return &cli.Command{
		Name:  "series",
		Usage: "find out where series come from",
		Subcommands: []*cli.Command{{
			Name:  "top",
			Usage: "list the metrics, labels, values and sources with the most series",
			Description: `Asks a server which metrics, labels, values and sources have the most series. Use it when the number of
series grows and you want to know why.

Examples:

   quern series top
   quern series top --by value --label pod --limit 50     # the pods with the most series
   quern series top --match '{job="api"}' --days 7        # with the new and the vanished series of each day
   quern series top --url https://metrics.example:9095 --token-file read.token --json`,
			Flags:  config.TopSeriesFlags(),
			Action: asking(program.Action(config.FromTopSeries, commands.TopSeries)),
		}},
	}
}
