package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/config"
	"github.com/quern/quern/internal/program"
)

func verifyCommand() *cli.Command {
	return &cli.Command{
		Name:  "verify",
		Usage: "hold roll-ups to the raw samples",
		Description: `Reads raw samples and roll-ups from a server, computes by itself what the roll-ups must
be, and names each row that is not. Raw is taken as the truth. Nothing is changed,
unless --repair has what differs ground again.

Rows that are not ground yet, or whose samples have expired, are left out and counted.

Examples:

   quern verify                                    all series of the last two days
   quern verify --match 'cpu_user{source="web-1"}' --start -7d
   quern verify --start 2026-11-20T00:00:00Z --end 2026-11-21T00:00:00Z --repair

It ends with 0 when nothing differs, and with 1 when something does or it failed.`,
		Flags:  config.VerifyFlags(),
		Action: asking(program.Action(config.FromVerify, app.Verify)),
	}
}
