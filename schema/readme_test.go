package schema

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var createTable = regexp.MustCompile(`CREATE TABLE IF NOT EXISTS (\S+) \(`)

func TestTablesAreDescribed(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	cql := SettingsTable("quern")
	for _, m := range migrations(t) {
		cql += "\n" + strings.Join(m.For(levels), "\n")
	}
	tables := createTable.FindAllStringSubmatch(cql, -1)
	require.Len(t, tables, 10+len(levels))
	for _, table := range tables {
		require.Regexp(t, `\b`+regexp.QuoteMeta(table[1])+`\b`, string(readme), "README.md says nothing of a table")
	}
}
