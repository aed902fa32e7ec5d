package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/program"
)

func migrateCommand() *cli.Command {
	return &cli.Command{
		Name:  "migrate",
		Usage: "copy the metrics of an RHQ keyspace into a store",
		Description: `Copies raw samples and roll-ups out of the Cassandra keyspace of an RHQ server, and has ground
what that had not yet aggregated. Stop the RHQ server first, and make the tables to copy into
by 'quern schema apply'. The processes of Quern may run.

It may be stopped at any time, and repeated: what is there is not written again. In the end
it compares what it has read with what it finds in the store, and fails if they differ. The legacy
tables stay as they are, unless --drop is given.

Examples:

   quern migrate                                   keyspace rhq into keyspace quern
   quern migrate --names names.csv --rate 100000
   quern migrate --from-hosts 10.0.0.9 --cassandra-hosts 10.0.0.1,10.0.0.2
   quern migrate --store pebble --data-dir /var/lib/quern`,
		Flags:  config.MigrateFlags(),
		Action: program.Action(config.FromMigrate, app.Migrate),
	}
}
