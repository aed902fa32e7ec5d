// Package schema holds the CQL of Quern's tables as numbered migrations. README.md says
// of every table what its partitions are bounded by and which queries it serves.
//
// A migration that has been released is never changed: the next change is a new file.
package schema

import (
	"embed"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

//go:embed *.cql
var files embed.FS

// SettingsTable makes the table that comes before all migrations: it holds the number of the last
// one that was applied, and the lock of the one who applies. Its id follows from the keyspace's
// name, so that two who create it at the same moment create the same table.
func SettingsTable(keyspace string) string {
	id := uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/quern/quern/schema/"+keyspace))
	return `CREATE TABLE IF NOT EXISTS settings (name text PRIMARY KEY, value text)
WITH ID = ` + id.String() + ` AND comment = 'what all processes agree on; written conditionally'`
}

// Migration is one step from a version of the schema to the next.
type Migration struct {
	// Version is the number of the schema after this step, from 1.
	Version int
	// Name is what the file calls it.
	Name string

	statements []string
}

// Level is one level of a ladder that has a table of its own.
type Level struct {
	// Table is its name; see TableOf.
	Table string
	// Retention is how long its rows are kept; 0 is for ever.
	Retention time.Duration
}

// Migrations are all steps, by version.
func Migrations() ([]Migration, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, err
	}
	var out []Migration
	for i, e := range entries { // in order of their names
		number, name, ok := strings.Cut(strings.TrimSuffix(e.Name(), ".cql"), "_")
		version, err := strconv.Atoi(number)
		if !ok || err != nil || version != i+1 {
			return nil, fmt.Errorf("migration %s: the file after number %d must be called %04d_NAME.cql", e.Name(), i, i+1)
		}
		text, err := files.ReadFile(e.Name())
		if err != nil {
			return nil, err
		}
		out = append(out, Migration{Version: version, Name: name, statements: split(string(text))})
	}
	return out, nil
}

// split cuts a file into its statements, each of which ends a line, and leaves out whole
// lines of comment.
func split(text string) []string {
	var code strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			code.WriteString(line)
		}
	}
	var out []string
	for s := range strings.SplitSeq(code.String()+"\n", ";\n") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// For are the step's statements for a store with the given levels: those that name a
// roll-up table once for each. They may be repeated after a step that was broken off.
func (m Migration) For(levels []Level) []string {
	var out []string
	for _, s := range m.statements {
		s = strings.Replace(s, "CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
		if !strings.Contains(s, "{rollup_table}") {
			out = append(out, s)
			continue
		}
		for _, l := range levels {
			out = append(out, strings.NewReplacer(
				"{rollup_table}", l.Table,
				"{rollup_window_days}", strconv.Itoa(windowDays(l.Retention)),
			).Replace(s))
		}
	}
	return out
}

// windowDays are the days of a window of time-window compaction: as many as make about
// 30 windows of the whole retention, as its authors advise; a year's share when it is for ever.
func windowDays(retention time.Duration) int {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	if retention == 0 {
		retention = year
	}
	return max(1, int(retention/(30*day)))
}

// TableOf is the name of the table of a level, which is named by its width, as in 1h.
func TableOf(level string) string {
	switch level {
	case "1h":
		return "one_hour_metrics"
	case "6h":
		return "six_hour_metrics"
	case "24h":
		return "twenty_four_hour_metrics"
	}
	return "rollup_" + level + "_metrics"
}
