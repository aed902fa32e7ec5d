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

// process is a command whose flags the page lists.
type process struct {
	letter, name string
	flags        []cli.Flag
}

// processes returns what runs a server or an agent, and what sets a store.
func processes() []process {
	flagsOf := func(path ...string) []cli.Flag {
		command := &cli.Command{Subcommands: quern().Commands}
		for _, name := range path {
			i := slices.IndexFunc(command.Subcommands, func(c *cli.Command) bool { return c.Name == name })
			command = command.Subcommands[i]
		}
		return command.Flags
	}
	return []process{
		{"S", "quern serve", flagsOf("serve")},
		{"I", "ingest", config.IngestFlags()},
		{"G", "aggregator", config.AggregatorFlags()},
		{"A", "quern agent", flagsOf("agent")},
		{"C", "quern schema apply", flagsOf("schema", "apply")},
		{"T", "quern settings set", flagsOf("settings", "set")},
	}
}

// row is a flag as the page shows it. Flags of several programs are one row if they are equal.
type row struct{ category, name, value, usage string }

func rowOf(t *testing.T, f cli.Flag) row {
	t.Helper()
	doc, ok := f.(cli.DocGenerationFlag)
	require.True(t, ok, f.Names()[0])
	sorted, ok := f.(cli.CategorizableFlag)
	require.True(t, ok, f.Names()[0])
	value := doc.GetValue()
	if b, ok := f.(*cli.BoolFlag); ok {
		value = strconv.FormatBool(b.Value)
	}
	if value != "" {
		value = "`" + value + "` "
	}
	return row{sorted.GetCategory(), f.Names()[0], value, strings.NewReplacer(`\`, `\\`, `|`, `\|`).Replace(doc.GetUsage())}
}

// flagsPage returns docs/flags.md.
func flagsPage(t *testing.T) string {
	t.Helper()
	const intro = `# Flags

<!-- Generated: go test ./cmd/quern -run TestFlagsPage -rewrite -->

The flags of the programs that serve, and of those that set up a store. ` + "`COMMAND --help`" + ` prints those of any command.

Each setting is a flag, an environment variable and a key of the YAML file that ` + "`--config`" + ` names. The names follow
from the flag: ` + "`--block-size`, `QUERN_BLOCK_SIZE`, `block-size`" + `. A flag wins over a variable, a variable over the file, and
the file over the default. [Running Quern](run.md#settings) has the rules for values and for the file.

`
	var rows []row
	takers := map[row]string{}
	var page strings.Builder
	page.WriteString(intro)
	for i, p := range processes() {
		if i > 0 {
			page.WriteString(", ")
		}
		fmt.Fprintf(&page, "**%s** `%s`", p.letter, p.name)
		for _, f := range p.flags {
			r := rowOf(t, f)
			if takers[r] == "" {
				rows = append(rows, r)
			}
			takers[r] += p.letter
		}
	}
	page.WriteString(".\n")
	slices.SortStableFunc(rows, func(a, b row) int { return strings.Compare(a.category, b.category) })
	for i, r := range rows {
		if i == 0 || rows[i-1].category != r.category {
			fmt.Fprintf(&page, "\n## %s\n\n| flag | for | default | what it sets |\n| --- | --- | --- | --- |\n", r.category)
		}
		fmt.Fprintf(&page, "| `--%s` | %s | %s| %s |\n", r.name, takers[r], r.value, r.usage)
	}
	return page.String()
}

// TestFlagsPage compares docs/flags.md with the flags of the programs: every flag is there with its
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
