package cassandratest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKeyspaceName(t *testing.T) {
	require.Equal(t, "quern_test_stores_2", keyspaceName("/tmp/go-build1/b001/stores.test", 2))
	require.Equal(t, "quern_test___debug_bin_1_1", keyspaceName("__debug_bin-1", 1))
}

// TestKeyspaceIsEmptied: what was written, and what was deleted with a time to come, is gone, and
// the version of the schema stays. Tables that a caller leaves out keep what they have.
func TestKeyspaceIsEmptied(t *testing.T) {
	k := SharedKeyspace(t, "1h")
	for _, table := range []string{"settings (name text PRIMARY KEY, value text)", "rows (id int PRIMARY KEY)", "runs (id int PRIMARY KEY)", "untouched (id int PRIMARY KEY)"} {
		require.NoError(t, k.exec("CREATE TABLE IF NOT EXISTS %s."+table))
	}
	count := func(table string) (n int) {
		require.NoError(t, k.session.Query("SELECT count(*) FROM "+k.Name+"."+table).Scan(&n))
		return n
	}
	require.NoError(t, k.exec("INSERT INTO %s.settings (name, value) VALUES ('schema_version', '4')"))
	for range 3 {
		require.NoError(t, k.exec("INSERT INTO %s.settings (name, value) VALUES ('other', 'x')"))
		require.NoError(t, k.exec("INSERT INTO %s.rows (id) VALUES (1)"))
		require.NoError(t, k.exec("INSERT INTO %s.runs (id) VALUES (1)"))
		require.Equal(t, 1, count("rows"), "nothing that was deleted hides it")
		require.NoError(t, k.exec("DELETE FROM %s.rows USING TIMESTAMP 9000000000000000 WHERE id = 1"))
		require.NoError(t, k.Empty("runs"))
		require.Zero(t, count("rows"))
		require.Equal(t, 1, count("runs"))
		require.Equal(t, 1, count("settings"))
		var version string
		require.NoError(t, k.session.Query("SELECT value FROM "+k.Name+".settings WHERE name = 'schema_version'").Scan(&version))
		require.Equal(t, "4", version)
	}
	if k.alone {
		dirty, err := k.dirty(nil)
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"runs", "settings"}, dirty)
	}
}

// TestKeyspacesAreUsedAgain: a keyspace that is emptied serves a later test.
func TestKeyspacesAreUsedAgain(t *testing.T) {
	used := map[string]bool{}
	for range 2 * enoughKeyspaces {
		t.Run("", func(t *testing.T) {
			k := SharedKeyspace(t, "1h")
			require.NoError(t, k.exec("CREATE TABLE IF NOT EXISTS %s.settings (name text PRIMARY KEY, value text)"))
			used[k.Name] = true
		})
	}
	require.LessOrEqual(t, len(used), enoughKeyspaces)
}
