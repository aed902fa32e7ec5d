package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/quern/quern/internal/config"
)

// packageConfig returns deploy/package/quern.yaml.
func packageConfig(t *testing.T) string {
	t.Helper()
	var file strings.Builder
	file.WriteString(`# Settings of the server, see quern(1). A line such as "#listen: …" shows a default: remove the # to change it.
#
# Generated: go test ./cmd/quern -run TestPackageConfig -rewrite

data-dir: /var/lib/quern
`)
	flags := slices.DeleteFunc(config.ServeFlags(), func(f cli.Flag) bool {
		return f.Names()[0] == "config" || f.Names()[0] == "data-dir"
	})
	slices.SortStableFunc(flags, func(a, b cli.Flag) int { return strings.Compare(rowOf(t, a).category, rowOf(t, b).category) })
	category := ""
	for _, f := range flags {
		r := rowOf(t, f)
		if r.category != category {
			category = r.category
			fmt.Fprintf(&file, "\n# ---- %s\n", category)
		}
		value := f.(cli.DocGenerationFlag).GetValue()
		switch f := f.(type) {
		case *cli.BoolFlag:
			value = fmt.Sprint(f.Value)
		case *cli.StringFlag:
			text, err := yaml.Marshal(value)
			require.NoError(t, err)
			value = strings.TrimSpace(string(text))
		}
		file.WriteString("\n#")
		width := 1
		for word := range strings.FieldsSeq(strings.ReplaceAll(f.(cli.DocGenerationFlag).GetUsage(), "`", "")) {
			if width += len(word) + 1; width > 110 {
				file.WriteString("\n#")
				width = len(word) + 2
			}
			file.WriteString(" " + word)
		}
		fmt.Fprintf(&file, "\n#%s: %s\n", r.name, value)
	}
	return file.String()
}

// TestPackageConfig: the file that packages install has each flag of the server with its default, and a file of all these
// defaults is accepted.
func TestPackageConfig(t *testing.T) {
	const name = "../../deploy/package/quern.yaml"
	want := packageConfig(t)
	if *rewrite {
		require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
	}
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	require.Equal(t, want, string(text), "go test ./cmd/quern -run TestPackageConfig -rewrite puts it right")

	read := func(text string) (got config.Config) {
		file := filepath.Join(t.TempDir(), "quern.yaml")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		app := cli.NewApp()
		app.Commands = []*cli.Command{{Name: "serve", Flags: config.ServeFlags(), Action: func(c *cli.Context) (err error) {
			got, err = config.FromServe(c)
			return err
		}}}
		require.NoError(t, app.Run([]string{"quern", "serve", "--config", file}))
		return got
	}
	got, defaults := read(regexp.MustCompile(`(?m)^#([a-z].*:)`).ReplaceAllString(want, "$1")), read(want)
	require.Equal(t, "/var/lib/quern", got.DataDir)
	require.Equal(t, defaults.Query, got.Query)
	require.Equal(t, defaults.Proxies, got.Proxies)
}
