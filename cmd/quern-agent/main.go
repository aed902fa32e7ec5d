// Command quern-agent is `quern agent` in a program of its own, for hosts that only send: without a store it takes half the memory.
package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/hostagent"
	"github.com/quern/quern/internal/app/program"
)

func main() { program.Main(agent()) }

func agent() *cli.App {
	c := hostagent.Command("quern-agent")
	return &cli.App{Name: c.Name, Usage: c.Usage, Description: c.Description, Flags: c.Flags, Action: c.Action, Commands: c.Subcommands}
}
