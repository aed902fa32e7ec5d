package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

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
