package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func settingsCommand() *cli.Command {
	return &cli.Command{
		Name:  "settings",
		Usage: "show the settings of a store, and change them for all its processes",
		Description: `Shows the settings that were fixed when the store was created, and those that all its processes
share: the grace, the delay, the age cap, the future limit and the retention. The command opens
an embedded store, so no process may be serving it; over Cassandra the processes may keep running.

Examples:

   quern settings --keyspace trial
   quern settings --store pebble --data-dir /var/lib/quern
   quern settings set --keyspace trial --retention raw=14d`,
		Flags:  config.SettingsFlags(),
		Action: program.Action(config.FromSettings, commands.Settings),
		Subcommands: []*cli.Command{{
			Name:  "set",
			Usage: "change settings for all processes of a store",
			Description: `Changes the settings that are given, and no others. First stop all processes of the store: while
any of them run, the command names them and changes nothing.

Examples:

   quern settings set --retention raw=14d,1h=180d
   quern settings set --keyspace trial --late-grace 30s --aggregation-delay 90s`,
			Flags:  config.SetSettingsFlags(),
			Action: program.Action(config.FromSetSettings, commands.SetSettings),
		}},
	}
}
