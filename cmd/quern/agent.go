package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app"
	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/config"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:  "agent",
		Usage: "measure this host and send reports to a server",
		Description: `Reads processor, memory, disk, network and load at a fixed interval and sends the
readings as measurement reports. While the server is unavailable, reports wait in memory,
up to a limit, and are sent later.

Examples:

   quern agent                                     to a server on this machine
   quern agent --url http://metrics.example:9095 --interval 30s
   QUERN_URL=http://metrics.example:9095 quern agent --source db-7`,
		Flags:  config.AgentFlags(),
		Action: program.Action(config.FromAgent, app.Agent),
	}
}
