package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/quern/quern/internal/config"
)

var rewrite = flag.Bool("rewrite", false, "rewrite docs/flags.md")

// documented is a command with flags.
type documented struct {
	name, usage string
	flags       []cli.Flag
}

// documentedCommands returns all commands of all programs that have flags, in the order of the page.
func documentedCommands() []documented {
	var out []documented
	var walk func(prefix string, commands []*cli.Command)
	walk = func(prefix string, commands []*cli.Command) {
		for _, c := range commands {
			name := prefix + " " + c.Name
			if len(c.Flags) > 0 {
				out = append(out, documented{strings.TrimSpace(name + " " + c.ArgsUsage), c.Usage, c.Flags})
			}
			walk(name, c.Subcommands)
		}
	}
	walk("quern", quern().Commands)
	// These two are programs of their own.
	return slices.Insert(
		out, 1,
		documented{"ingest", "accept measurement reports and answer queries over Cassandra", config.IngestFlags()},
		documented{"aggregator", "grind reports into roll-ups over Cassandra", config.AggregatorFlags()},
	)
}

// row is a flag as the page shows it. Flags of several commands are one row if they are equal.
type row struct{ name, value, usage string }

// rowOf returns a flag's row and its category.
func rowOf(t *testing.T, f cli.Flag) (r row, category string) {
	t.Helper()
	doc, ok := f.(cli.DocGenerationFlag)
	require.True(t, ok, f.Names()[0])
	sorted, ok := f.(cli.CategorizableFlag)
	require.True(t, ok, f.Names()[0])
	value := doc.GetValue()
	if b, ok := f.(*cli.BoolFlag); ok {
		value = strconv.FormatBool(b.Value)
	}
	return row{f.Names()[0], value, doc.GetUsage()}, sorted.GetCategory()
}

const tableHead = "| flag | default | what it sets |\n| --- | --- | --- |\n"

func (r row) String() string {
	value := ""
	if r.value != "" {
		value = "`" + r.value + "` "
	}
	return fmt.Sprintf("| `--%s` | %s| %s |\n", r.name, value, strings.NewReplacer(`\`, `\\`, `|`, `\|`).Replace(r.usage))
}

// quoted returns names as code, separated by commas.
func quoted(names []string) string { return "`" + strings.Join(names, "`, `") + "`" }

// flagsPage returns docs/flags.md.
func flagsPage(t *testing.T) string {
	t.Helper()
	const intro = `# Flags

<!-- Generated: go test ./cmd/quern -run TestFlagsPage -rewrite -->

To look up a setting, find the flag here. Each command has its own flags in its section. Flags that several commands
take are listed once, under [Shared flags](#shared-flags). ` + "`COMMAND --help`" + ` prints the same texts.

Each setting is a flag, an environment variable and a key of the YAML file that ` + "`--config`" + ` names. The names follow
from the flag: ` + "`--block-size`, `QUERN_BLOCK_SIZE`, `block-size`" + `. A flag wins over a variable, a variable over the file, and
the file over the default. [Running Quern](run.md#settings) has the rules for values and for the file.

`
	commands := documentedCommands()
	takers := map[row][]string{}
	categoryOf := map[row]string{} // of the last command that takes it
	var categories []string
	shared := map[string][]row{} // by category, in the order of the definitions
	for _, c := range commands {
		for _, f := range c.flags {
			r, category := rowOf(t, f)
			takers[r], categoryOf[r] = append(takers[r], c.name), category
		}
	}
	for _, c := range commands {
		for _, f := range c.flags {
			r, _ := rowOf(t, f)
			if len(takers[r]) < 2 {
				continue
			}
			category := categoryOf[r]
			if !slices.Contains(categories, category) {
				categories = append(categories, category)
			}
			if !slices.Contains(shared[category], r) {
				shared[category] = append(shared[category], r)
			}
		}
	}

	var page strings.Builder
	page.WriteString(intro)
	for _, c := range commands {
		// Arguments, such as FILE, are not part of the heading, so that its anchor is the command.
		heading := strings.Fields(c.name)
		heading = slices.DeleteFunc(heading, func(word string) bool { return strings.ToUpper(word) == word })
		fmt.Fprintf(&page, "## %s\n\n`%s`: %s.\n\n", strings.Join(heading, " "), c.name, c.usage)
		var particular []row
		others := map[string]bool{}
		for _, f := range c.flags {
			r, _ := rowOf(t, f)
			if len(takers[r]) == 1 {
				particular = append(particular, r)
				continue
			}
			others[categoryOf[r]] = true
		}
		if len(particular) > 0 {
			page.WriteString(tableHead)
			for _, r := range particular {
				page.WriteString(r.String())
			}
			page.WriteString("\n")
		}
		var links []string
		for _, category := range categories {
			if others[category] {
				links = append(links, fmt.Sprintf("[%s](#%s)", category, strings.ToLower(category)))
			}
		}
		if len(links) > 0 {
			fmt.Fprintf(&page, "Shared flags: %s.\n\n", strings.Join(links, ", "))
		}
	}

	page.WriteString("## Shared flags\n")
	for _, category := range categories {
		fmt.Fprintf(&page, "\n### %s\n", category)
		var sets []string // the commands that take the rows of a table
		rows := map[string][]row{}
		for _, r := range shared[category] {
			set := quoted(takers[r])
			if len(takers[r]) == len(commands) {
				set = "every command"
			}
			if rows[set] == nil {
				sets = append(sets, set)
			}
			rows[set] = append(rows[set], r)
		}
		for _, set := range sets {
			fmt.Fprintf(&page, "\nTaken by %s:\n\n%s", set, tableHead)
			for _, r := range rows[set] {
				page.WriteString(r.String())
			}
		}
	}
	return page.String()
}

// TestFlagsPage compares docs/flags.md with the flags of all commands: every flag is there with its
// default and help text, and nothing else.
func TestFlagsPage(t *testing.T) {
	const name = "../../docs/flags.md"
	want := flagsPage(t)
	if *rewrite {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		return
	}
	page, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, want, string(page), "go test ./cmd/quern -run TestFlagsPage -rewrite puts it right")
}
