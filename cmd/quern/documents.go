package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
	"github.com/quern/quern/internal/commands"
	"github.com/quern/quern/internal/config"
)

func annotateCommand() *cli.Command {
	return &cli.Command{
		Name:      "annotate",
		Usage:     "make, list and delete annotations: remarks about a time",
		ArgsUsage: "TEXT",
		Description: `Makes an annotation of a moment, by default now, or of a span. Charts show it. It prints the id.

Examples:

   quern annotate --tag release --tag team=web "Release 1.4"
   quern annotate --at 2026-11-21T12:00:00Z --selector '{source="web-1"}' "Disk replaced"
   quern annotate --from -2h --to -30m --tag maintenance "Switch upgrade"
   quern annotate --id build-5121 --tag release "Build 5121"    # sent twice, it counts once`,
		Flags:  config.AnnotateFlags(),
		Action: program.Action(config.FromAnnotate, commands.Annotate),
		Subcommands: []*cli.Command{{
			Name:  "list",
			Usage: "list the annotations of a time",
			Description: `Lists the last annotations that overlap the time and have all the tags.

Examples:

   quern annotate list --start -30d --tag release
   quern annotate list --text disk`,
			Flags:  config.FindAnnotationsFlags(),
			Action: asking(program.Action(config.FromFindAnnotations, commands.ListAnnotations)),
		}, {
			Name:      "delete",
			ArgsUsage: "ID",
			Usage:     "delete an annotation",
			Description: `Deletes the annotation with an id and a start, as 'quern annotate list' shows them.

Example:

   quern annotate delete --start 2026-11-21T12:00:00Z build-5121`,
			Flags:  config.DeleteAnnotationFlags(),
			Action: program.Action(config.FromDeleteAnnotation, commands.DeleteAnnotation),
		}},
	}
}

func dashboardCommand() *cli.Command {
	return &cli.Command{
		Name:  "dashboard",
		Usage: "list, read, store and delete dashboards, and convert those of Grafana",
		Description: `Dashboards are the pages of panels at /dashboards (see docs/dashboards.md). They are JSON: these commands
keep them in files, as backups or under version control, and bring those of Grafana to Quern:

   quern dashboard get hosts > hosts.json
   quern dashboard put --id my-hosts hosts.json`,
		Subcommands: []*cli.Command{{
			Name:  "list",
			Usage: "list the dashboards",
			Description: `Lists those that are stored, those of the files of --dashboards, and those that are built in.

Examples:

   quern dashboard list
   quern dashboard list --deleted --url https://metrics.example:9095 --token-file read.token`,
			Flags:  config.ListDashboardsFlags(),
			Action: asking(program.Action(config.FromListDashboards, commands.ListDashboards)),
		}, {
			Name:      "get",
			Usage:     "print a dashboard as JSON",
			ArgsUsage: "ID",
			Description: `Prints the newest version, or that of --at-version, in the form that 'quern dashboard put' takes.

Examples:

   quern dashboard get hosts > hosts.json
   quern dashboard get --at-version 3 shop | quern dashboard put --id shop -    # back to version 3`,
			Flags:  config.GetDashboardFlags(),
			Action: asking(program.Action(config.FromGetDashboard, commands.GetDashboard)),
		}, {
			Name:      "put",
			Usage:     "store a dashboard of a file, of Quern or of Grafana",
			ArgsUsage: "FILE",
			Description: `Stores the dashboard as the next version, and prints its number. One of Grafana is converted; what has no
counterpart is named on standard error. - is standard input. The last 20 versions are kept.

Examples:

   quern dashboard put shop.json                 # with the id shop
   quern dashboard put --base 7 shop.json        # only if nobody has changed version 7
   quern dashboard put --id nodes node-exporter-full.json`,
			Flags:  config.PutDashboardFlags(),
			Action: asking(program.Action(config.FromPutDashboard, commands.PutDashboard)),
		}, {
			Name:      "delete",
			Usage:     "delete a dashboard; its versions stay",
			ArgsUsage: "ID",
			Description: `Deletes the dashboard. The versions that are kept can be stored again.

Examples:

   quern dashboard delete shop
   quern dashboard get --at-version 7 shop | quern dashboard put --id shop -    # undo it`,
			Flags:  config.DeleteDashboardFlags(),
			Action: asking(program.Action(config.FromDeleteDashboard, commands.DeleteDashboard)),
		}, {
			Name:      "versions",
			Usage:     "list the versions that are kept of a dashboard",
			ArgsUsage: "ID",
			Description: `Lists the versions, newest first, with when and by whom each was made.

Example:

   quern dashboard versions shop`,
			Flags:  config.DashboardFlags(),
			Action: asking(program.Action(config.FromDashboard, commands.DashboardVersions)),
		}, {
			Name:      "convert",
			Usage:     "print a dashboard of Grafana in Quern's form",
			ArgsUsage: "FILE",
			Description: `Prints the dashboard, and names on standard error what has no counterpart. It asks no server and stores
nothing. - is standard input. Of a dashboard of Quern it checks the form.

Examples:

   quern dashboard convert node-exporter-full.json > nodes.json
   curl -s https://grafana.example/api/dashboards/uid/abc | quern dashboard convert -`,
			Action: asking(program.Action(config.FromConvertDashboard, commands.ConvertDashboard)),
		}},
	}
}
