package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/client"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:  "verify",
		Usage: "check roll-ups against the raw samples",
		Description: `Reads raw samples and roll-ups from a server, computes the roll-ups itself from the raw
samples, and names each row that differs. It changes nothing, unless --repair has the rows
that differ ground again.

Rows that are not ground yet, or whose samples have expired, are skipped and counted.

Examples:

   quern verify                                    all series of the last two days
   quern verify --match 'cpu_user{source="web-1"}' --start -7d
   quern verify --start 2026-11-20T00:00:00Z --end 2026-11-21T00:00:00Z --repair

Its exit code is 0 when nothing differs, and 1 when a row differs or the command fails.`,
		Flags:  config.VerifyFlags(),
		Action: asking(program.Action(config.FromVerify, commands.Verify)),
	}
}

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

func healthyCommand() *cli.Command {
	return &cli.Command{
		Name:  "healthy",
		Usage: "tell by the exit code whether a server is ready",
		Description: `Asks a server, an ingest or an aggregator whether it is ready, for health checks of containers
without a shell. It does not give up while a server is silent: whoever runs the check must end it.

Examples:

   quern healthy
   quern healthy --url http://metrics.example:9095
   QUERN_URL=https://localhost:9095 quern healthy --ca-file ca.pem

Its exit code is 0 when the server is ready, and 1 when it is not, with the reason in one line.`,
		Flags:  config.HealthyFlags(),
		Action: program.Action(config.FromHealthy, commands.Healthy),
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

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write raw samples and annotations to a file",
		Description: `Writes the raw samples of the matching series, by default of all series over the last seven days,
and the annotations that start in that time, as lines of JSON that 'quern import' accepts.

It asks for one part of the time range after the other. An export that is stopped loses the current
part: the same command continues after the last complete part, which it reads from FILE.quern-export.
That file exists until the export is complete.

Examples:

   quern export --output week.ndjson.zst
   quern export --match 'cpu{source="web-1"}' --start -6h
   quern export --start 2026-11-01T00:00:00Z --end 2026-11-08T00:00:00Z --part 6h --output first.ndjson.gz
   quern export --start -1d | quern import --url http://other.example:9095 -`,
		Flags:  config.ExportFlags(),
		Action: asking(program.Action(config.FromExport, commands.Export)),
	}
}

func importCommand() *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "send files of raw samples and annotations to a server",
		ArgsUsage: "FILE…",
		Description: `Sends files written by 'quern export', or others of that form, plain or compressed with gzip or zstd,
to a server; - is standard input. The server accepts samples that are within its retention of raw.

It waits for a server that is busy or unavailable. After a stop, the same command continues after
the last line that the server has accepted, which it reads from FILE.quern-import. That file exists
until the import is complete. Samples sent twice count once.

Examples:

   quern import week.ndjson.zst
   quern import --url http://other.example:9095 --rate 100000 november.gz december.gz
   zcat week.ndjson.gz | quern import -

Its exit code is 1 when a sample was rejected or a line is malformed; all the rest is imported.`,
		Flags:  config.ImportFlags(),
		Action: program.Action(config.FromImport, commands.Import),
	}
}

func backupCommand() *cli.Command {
	return &cli.Command{
		Name:  "backup",
		Usage: "back up the embedded store while it runs, and restore it (docs/backup.md)",
		Subcommands: []*cli.Command{{
			Name:        "create",
			Usage:       "have a server back its store up",
			Description: "The backup goes to the --backup-dest of the server.\n\nExamples:\n\n   quern backup create --token-file admin.token --rate 50000000",
			Flags:       config.CreateBackupFlags(),
			Action:      asking(program.Action(config.FromCreateBackup, commands.CreateBackup)),
		}, {
			Name: "list", ArgsUsage: "DEST",
			Usage:       "list the backups, oldest first",
			Description: "Examples:\n\n   quern backup list /mnt/backups\n   quern backup list s3://bucket/quern",
			Flags:       config.ListBackupsFlags(),
			Action:      program.Action(config.FromListBackups, commands.ListBackups),
		}, {
			Name: "verify", ArgsUsage: "DEST",
			Usage:       "read a backup and check it",
			Description: "It names each object that is missing or damaged. No server is needed.\n\nExamples:\n\n   quern backup verify s3://bucket/quern",
			Flags:       config.VerifyBackupFlags(),
			Action:      program.Action(config.FromVerifyBackup, commands.ReadBackup),
		}, {
			Name: "restore", ArgsUsage: "DEST",
			Usage:       "write a backup to a new directory",
			Description: "It checks all that it writes. No server is needed.\n\nExamples:\n\n   quern backup restore --to /var/lib/quern-new /mnt/backups",
			Flags:       config.RestoreBackupFlags(),
			Action:      program.Action(config.FromRestoreBackup, commands.ReadBackup),
		}, {
			Name: "prune", ArgsUsage: "DEST",
			Usage:       "remove all but the newest backups",
			Description: "Examples:\n\n   quern backup prune --keep 14 /mnt/backups",
			Flags:       config.PruneBackupsFlags(),
			Action:      program.Action(config.FromPruneBackups, commands.PruneBackups),
		}},
	}
}
