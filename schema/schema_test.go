package schema

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files of migrations that are not released yet")

// The default ladder, with retentions that make windows of different sizes.
var levels = []Level{
	{Table: TableOf("1h"), Retention: 14 * 24 * time.Hour},
	{Table: TableOf("6h"), Retention: 60 * 24 * time.Hour},
	{Table: TableOf("24h")},
}

func migrations(t *testing.T) []Migration {
	t.Helper()
	all, err := Migrations()
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func TestMigrationsAreNumberedWithoutGaps(t *testing.T) {
	for i, m := range migrations(t) {
		require.Equal(t, i+1, m.Version)
		require.Regexp(t, `^[a-z_]+$`, m.Name)
		require.NotEmpty(t, m.For(levels), m.Name)
	}
}

// TestReleasedMigrations pins what each migration has a server do: a store that has been through it
// never sees it again, so that a change belongs into a new file.
func TestReleasedMigrations(t *testing.T) {
	golden := map[string]bool{}
	for _, m := range migrations(t) {
		path := filepath.Join("testdata", fmt.Sprintf("%04d_%s.golden", m.Version, m.Name))
		golden[path] = true
		text := strings.Join(m.For(levels), ";\n\n") + ";\n"
		if *rewrite {
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		}
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, string(want), text, "migration %d has changed: what has been released stays, and a change is a new file", m.Version)
	}
	paths, err := filepath.Glob(filepath.Join("testdata", "*.golden"))
	require.NoError(t, err)
	for _, path := range paths {
		require.True(t, golden[path], "%s is of a migration that is gone", path)
	}
}

func TestSplit(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"nothing", "", nil},
		{"comments only", "-- one\n  -- two\n", nil},
		{"one", "CREATE TABLE a (x int);\n", []string{"CREATE TABLE a (x int)"}},
		{"the last without an end of line", "A;\nB;", []string{"A", "B"}},
		{"over lines", "A (\n  x int\n)\n  WITH y;\n\n\nB;\n", []string{"A (\n  x int\n)\n  WITH y", "B"}},
		{"a comment within", "A (\n-- of x; and more;\n  x int);\n", []string{"A (\n  x int)"}},
		{"a semicolon within a line", "A WITH comment = 'x; y';\nB;\n", []string{"A WITH comment = 'x; y'", "B"}},
		{"dashes within a line", "A WITH comment = 'x -- y';\n", []string{"A WITH comment = 'x -- y'"}},
	} {
		t.Run(c.name, func(t *testing.T) { require.Equal(t, c.want, split(c.text)) })
	}
}

func TestForMakesATableForEachLevel(t *testing.T) {
	m := Migration{statements: []string{
		"CREATE TABLE other (x int)",
		"CREATE TABLE {rollup_table} (x int) WITH window = {rollup_window_days}",
		"ALTER TABLE {rollup_table} ADD y int",
	}}
	require.Equal(t, []string{
		"CREATE TABLE IF NOT EXISTS other (x int)",
		"CREATE TABLE IF NOT EXISTS one_hour_metrics (x int) WITH window = 1",
		"CREATE TABLE IF NOT EXISTS rollup_90s_metrics (x int) WITH window = 3",
		"ALTER TABLE one_hour_metrics ADD y int",
		"ALTER TABLE rollup_90s_metrics ADD y int",
	}, m.For([]Level{
		{Table: TableOf("1h"), Retention: time.Hour},
		{Table: TableOf("90s"), Retention: 100 * 24 * time.Hour},
	}))
}

func TestWindowDays(t *testing.T) {
	const day = 24 * time.Hour
	for _, c := range []struct {
		retention time.Duration
		want      int
	}{
		{time.Hour, 1},
		{30 * day, 1},
		{59 * day, 1},
		{60 * day, 2},
		{365 * day, 12},
		{0, 12}, // for ever
		{10 * 365 * day, 121},
	} {
		require.Equal(t, c.want, windowDays(c.retention), c.retention)
	}
}

// What a ladder is like does not matter: each level has a table of its own, and its name is one
// that CQL takes without quotes.
func TestTableOf(t *testing.T) {
	identifier := regexp.MustCompile(`^[a-z][a-z0-9_]{0,47}$`)
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		widths := []time.Duration{time.Duration(1+rng.Int64N(7200)) * time.Second}
		for range rng.IntN(5) {
			widths = append(widths, widths[len(widths)-1]*time.Duration(2+rng.IntN(30)))
		}
		l, err := metric.NewLadder(widths...)
		require.NoError(t, err)
		levelOf := map[string]metric.Bucket{}
		for _, b := range l.Levels() {
			table := TableOf(l.Name(b))
			require.Regexp(t, identifier, table, l)
			require.NotContains(t, levelOf, table, l)
			levelOf[table] = b
		}
	}
	for level, want := range map[string]string{
		"1h": "one_hour_metrics", "6h": "six_hour_metrics", "24h": "twenty_four_hour_metrics", "5m": "rollup_5m_metrics",
	} {
		require.Equal(t, want, TableOf(level))
	}
}

// Two processes that make the table at the same moment make the same one; those of two keyspaces are two.
func TestSettingsTable(t *testing.T) {
	first, second := SettingsTable("a"), SettingsTable("a")
	require.Equal(t, first, second)
	id := regexp.MustCompile(`WITH ID = ([0-9a-f-]{36}) `)
	a, b := id.FindStringSubmatch(SettingsTable("a")), id.FindStringSubmatch(SettingsTable("b"))
	require.Len(t, a, 2)
	require.Len(t, b, 2)
	require.NotEqual(t, a[1], b[1])
	// It is part of what other versions of the program rely on.
	require.Equal(t, "7c9cd730-9a34-59e6-a331-f42db20684cc", id.FindStringSubmatch(SettingsTable("quern"))[1])
}
