// Command quern stores measurement reports and grinds them into roll-ups.
package main

import (
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/app/program"
)

func main() { program.Main(quern()) }

func quern() *cli.App {
	return &cli.App{
		Name:  "quern",
		Usage: "a metrics store that grinds reports into roll-ups by block",
		Description: `Start with

   quern serve --demo

to fill a store with 26 hours of generated data and serve it, together with
this host's own metrics, on http://127.0.0.1:9095.`,
		Commands: []*cli.Command{serveCommand(), agentCommand(), schemaCommand(), verifyCommand(), migrateCommand(), exportCommand(), importCommand(), backupCommand(), reaggregateCommand(), explainCommand(), statusCommand(), healthyCommand(), seriesCommand(), settingsCommand(), annotateCommand(), dashboardCommand(), tokenCommand()},
	}
}
