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
