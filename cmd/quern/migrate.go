package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

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
