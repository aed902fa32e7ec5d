package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/program"
)

func exportCommand() *cli.Command {
	return &cli.Command{
		Name:  "export",
		Usage: "write raw samples to a file",
		Description: `Writes the raw samples of the series that match, by default of all of the last seven days, as
lines of JSON that 'quern import' takes.

They are asked for a part of the time at once. Whoever stops it loses the part under way: the
same command goes on behind the last whole one, by what FILE.quern-export says, which is there
until all is done.

Examples:

   quern export --output week.ndjson.zst
   quern export --match 'cpu{source="web-1"}' --start -6h
   quern export --start 2026-11-01T00:00:00Z --end 2026-11-08T00:00:00Z --part 6h --output first.ndjson.gz
   quern export --start -1d | quern import --url http://other.example:9095 -`,
		Flags:  config.ExportFlags(),
		Action: asking(program.Action(config.FromExport, app.Export)),
	}
}

func importCommand() *cli.Command {
	return &cli.Command{
		Name:      "import",
		Usage:     "send files of raw samples to a server",
		ArgsUsage: "FILE…",
		Description: `Sends files that 'quern export' has written, or others of that form, compressed by gzip or zstd or
not, to a server; - is standard input. Samples may be as old as raw samples are kept there.

A server that is busy or away is waited for. Whoever stops it may start it again: the same command
goes on where the server had taken everything, by what FILE.quern-import says, which is there until
all is done. What is sent twice counts once.

Examples:

   quern import week.ndjson.zst
   quern import --url http://other.example:9095 --rate 100000 november.gz december.gz
   zcat week.ndjson.gz | quern import -

It ends with 1 when a sample was rejected or a line is malformed; all else is imported then.`,
		Flags:  config.ImportFlags(),
		Action: program.Action(config.FromImport, app.Import),
	}
}
