package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
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
