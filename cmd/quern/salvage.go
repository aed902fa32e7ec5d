package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/program"
)

func salvageCommand() *cli.Command {
	return &cli.Command{
		Name:      "salvage",
		Usage:     "write what can be read of a damaged store to a file",
		ArgsUsage: "DIR OUT",
		Description: `Reads the embedded store in DIR, which no server may have open, and writes all raw samples that can
be read to OUT, as lines that 'quern import' takes, compressed if it is called .gz or .zst. Nothing
in DIR is changed. What cannot be read is left out and named: schedules and slices.

Roll-ups are not written: the import grinds them again.

Examples:

   quern salvage /var/lib/quern saved.ndjson.zst
   quern salvage --overwrite ./quern-data saved.ndjson
   quern import saved.ndjson.zst

It ends with 1 when something could not be read; all else is in OUT then.`,
		Flags:  config.SalvageFlags(),
		Action: program.Action(config.FromSalvage, app.Salvage),
	}
}
