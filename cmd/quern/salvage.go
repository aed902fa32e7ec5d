package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func salvageCommand() *cli.Command {
	return &cli.Command{
		Name:      "salvage",
		Usage:     "write the readable samples of a damaged store to a file",
		ArgsUsage: "DIR OUT",
		Description: `Reads the embedded store in DIR, which no server may have open, and writes all readable raw samples
to OUT, as lines that 'quern import' accepts, compressed if the name of OUT ends in .gz or .zst. It
changes nothing in DIR. It skips what cannot be read, and names the schedules and slices skipped.

It does not write roll-ups: the server that imports OUT grinds them again. Nor does it write documents and
annotations.

Examples:

   quern salvage /var/lib/quern saved.ndjson.zst
   quern salvage --overwrite ./quern-data saved.ndjson
   quern import saved.ndjson.zst

Its exit code is 1 when something could not be read; OUT then holds all the rest.`,
		Flags:  config.SalvageFlags(),
		Action: program.Action(config.FromSalvage, commands.Salvage),
	}
}
