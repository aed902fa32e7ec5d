package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/app/hostagent"
	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
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

func agentCommand() *cli.Command {
	c := hostagent.Command("quern agent")
	c.Name = "agent"
	c.Subcommands = append(c.Subcommands, []*cli.Command{{
		Name: "list", Usage: "list what a running agent reads, how much, and what went wrong last",
		Description: "Asks an agent that was started with --control.\n\nExamples:\n\n   quern agent list\n   quern agent list --agent http://db-7.example:9097 --token-file token",
		Flags:       config.AgentListFlags(),
		Action:      program.Action(config.FromAgentList, commands.ListAdaptors),
	}, {
		Name: "status", Usage: "say what became of the samples of a running agent, and how far each stream is",
		Description: "A stream counts bytes, or samples. What the server has acknowledged is not read again after a crash.\n\nExamples:\n\n   quern agent status",
		Flags:       config.AgentListFlags(),
		Action:      program.Action(config.FromAgentList, commands.AgentStatus),
	}, {
		Name: "add", Usage: "have a running agent read something more", ArgsUsage: "ADAPTOR",
		Description: "The adaptor is written as in the agent's file. The agent keeps it in its data directory, and also runs it after a restart.\n\nExamples:\n\n   quern agent add '{type: tail, path: /var/log/app.log, format: json}'",
		Flags:       config.AgentAddFlags(),
		Action:      program.Action(config.FromAgentAdd, commands.AddAdaptor),
	}, {
		Name: "stop", Usage: "end what was added to a running agent", ArgsUsage: "ID",
		Description: "What is in the agent's file is removed there; then SIGHUP ends it.\n\nExamples:\n\n   quern agent stop 9c2f01ab",
		Flags:       config.AgentStopFlags(),
		Action:      program.Action(config.FromAgentStop, commands.StopAdaptor),
	}}...)
	return c
}

func schemaCommand() *cli.Command {
	return &cli.Command{
		Name:  "schema",
		Usage: "prepare a Cassandra cluster for Quern",
		Subcommands: []*cli.Command{{
			Name:  "apply",
			Usage: "create or update the keyspace and its tables",
			Description: `Creates the keyspace and its tables if they are missing, and updates those of an older
version. It may be repeated, and run while processes serve. While no Cassandra node answers,
it keeps trying.

The ladder, the group size and the number of index partitions are fixed when the schema is
created; processes read them from the keyspace. The retention shapes the tables; it and the
timing, such as --age-cap, are recorded by the first process, which needs the same flags.

Examples:

   quern schema apply                              on 127.0.0.1:9042, keyspace quern
   quern schema apply --cassandra-hosts 10.0.0.1,10.0.0.2 --local-dc dc1
   quern schema apply --replication dc1=3,dc2=3
   quern schema apply --keyspace trial --rollups 10s,1m,5m
   quern schema apply --retention raw=3h --age-cap 30m`,
			Flags:  config.SchemaFlags(),
			Action: program.Action(config.FromSchema, commands.ApplySchema),
		}, {
			Name:        "restored",
			Usage:       "prepare restored tables for use",
			Description: "Raises the counter of ids above all ids that restored tables have. Run it before any process starts.\n\nExamples:\n\n   quern schema restored --cassandra-hosts 10.0.0.1,10.0.0.2 --keyspace quern",
			Flags:       config.RestoredFlags(),
			Action:      program.Action(config.FromRestored, commands.SchemaRestored),
		}},
	}
}

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

func migrateCommand() *cli.Command {
	return &cli.Command{
		Name:  "migrate",
		Usage: "copy the metrics of an RHQ keyspace into a store",
		Description: `Copies raw samples and roll-ups from the Cassandra keyspace of an RHQ server, and marks what
that server had not yet aggregated so that it is ground. First stop the RHQ server and create the
tables to copy into with 'quern schema apply'. The processes of Quern may keep running.

It may be stopped at any time and repeated: rows already in the store are not written again. At
the end it compares the rows it has read with those in the store, and fails if they differ. The
legacy tables stay unchanged unless --drop is given.

Examples:

   quern migrate                                   keyspace rhq into keyspace quern
   quern migrate --names names.csv --rate 100000
   quern migrate --from-hosts 10.0.0.9 --cassandra-hosts 10.0.0.1,10.0.0.2
   quern migrate --store pebble --data-dir /var/lib/quern`,
		Flags:  config.MigrateFlags(),
		Action: program.Action(config.FromMigrate, commands.Migrate),
	}
}
