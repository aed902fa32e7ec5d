package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/program"
)

func settingsCommand() *cli.Command {
	return &cli.Command{
		Name:  "settings",
		Usage: "show what is stored with a store, and change it for all its processes",
		Description: `Shows what the store was made with, and what all its processes agree on: the grace, the delay, the
age cap, the future limit and the retention. The embedded store is opened for that, so no
process may serve it; over Cassandra they may go on.

Examples:

   quern settings --keyspace trial
   quern settings --store pebble --data-dir /var/lib/quern
   quern settings set --keyspace trial --retention raw=14d`,
		Flags:  config.SettingsFlags(),
		Action: program.Action(config.FromSettings, app.Settings),
		Subcommands: []*cli.Command{{
			Name:  "set",
			Usage: "change settings for all processes of a store",
			Description: `Changes what is given and leaves the rest as it is. All processes of the store must be stopped
first: it names those that run and changes nothing.

Examples:

   quern settings set --retention raw=14d,1h=180d
   quern settings set --keyspace trial --late-grace 30s --aggregation-delay 90s`,
			Flags:  config.SetSettingsFlags(),
			Action: program.Action(config.FromSetSettings, app.SetSettings),
		}, {
			Name:  "confirm-clock",
			Usage: "have a server of the embedded store believe its clock",
			Description: `A server whose clock has jumped ahead by more than a day, or that was off for longer, removes
nothing that has expired until its clock is right, has run on for 24 hours, over restarts too, or
is confirmed.
It is confirmed from the server's own machine; from others with --enable-admin-api only.

Example:

   quern settings confirm-clock --url http://127.0.0.1:9095`,
			Flags:  config.ConfirmClockFlags(),
			Action: asking(program.Action(config.FromConfirmClock, app.ConfirmClock)),
		}},
	}
}
