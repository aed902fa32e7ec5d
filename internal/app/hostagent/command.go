package hostagent

import (
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/config"
)

// Command returns the command that runs an agent, and under it the one that checks its file.
func Command(name string) *cli.Command {
	named := strings.NewReplacer("NAME", name).Replace
	return &cli.Command{
		Name:  name,
		Usage: "read this host, its log files and the output of commands, and send that to a server",
		Description: named(`Reads what the adaptors of its file name: the host, log files, the output of commands, targets for
Prometheus, and what StatsD, Graphite and Influx clients send. Without adaptors it reads processor,
memory, disk, network and load of the host. While the server is unavailable, what was read waits in
a directory, up to a limit, and is sent later, also by the next process.

Examples:

   NAME                                     to a server on this machine
   NAME --url http://metrics.example:9095 --interval 30s
   QUERN_URL=http://metrics.example:9095 NAME --source db-7
   NAME --config agent.yaml                 with its adaptors, such as
                                                   adaptors:
                                                     - {type: host}
                                                     - {type: tail, path: /var/log/nginx/*.log, format: access}
                                                     - {type: exec, command: [/usr/lib/nagios/plugins/check_load], format: nagios}`),
		Flags:  config.AgentFlags(),
		Action: program.Action(config.FromAgent, Run),
		Subcommands: []*cli.Command{{
			Name:        "check",
			Usage:       "check the file of an agent",
			ArgsUsage:   "FILE",
			Description: named("Names each mistake in a file for --config with its line, or lists what the agent would read.\n\nExamples:\n\n   NAME check agent.yaml"),
			Flags:       config.AgentFlags(),
			Action:      program.Action(config.FromAgentFile, Check),
		}},
	}
}
