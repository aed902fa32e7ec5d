package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

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
		}},
	}
}
