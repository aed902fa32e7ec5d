package pebble

import (
	"bytes"
	"errors"
	"log/slog"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage/storagetest"
)

// files maps the names in a directory to their contents.
type files map[string]string

func readFiles(t *testing.T, dir string) files {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	f := files{}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		require.NoError(t, err)
		f[e.Name()] = string(b)
	}
	return f
}

// write writes the files to a directory. Its name must not contain the names of files, which the
// tests look for in errors.
func (f files) write(t *testing.T) (dir string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "quern-test") //nolint:usetesting // TempDir has the test's name in its own
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, os.RemoveAll(dir)) })
	for name, content := range f {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}

// but returns f with some files replaced. A nil content removes the file.
func (f files) but(changes map[string]*string) files {
	g := maps.Clone(f)
	for name, content := range changes {
		if content == nil {
			delete(g, name)
		} else {
			g[name] = *content
		}
	}
	return g
}

func (f files) like(t *testing.T, pattern string) (names []string) {
	t.Helper()
	for name := range f {
		ok, err := filepath.Match(pattern, name)
		require.NoError(t, err)
		if ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func sweepOptions() Options {
	return Options{
		Settings: storagetest.TestSettings(), Logger: quiet(), MemTableBytes: 64 << 10, CacheBytes: 1 << 20,
		ReserveBytes: 4096,
	}
}

// everything returns all rows of a store, except the time that Close stores.
func everything(t *testing.T, st *Store) string {
	t.Helper()
	var all strings.Builder
	clock := metaKey(metaClock)
	for _, part := range [][2][]byte{{{0}, clock}, {after(clock), {255}}} {
		p, err := st.readPage(part[0], part[1], math.MaxInt, nil)
		require.NoError(t, err)
		for i := range p.rows {
			all.Write(p.key(i))
			all.Write(p.value(i))
		}
	}
	return all.String()
}

// sweepStore returns a store of several tables and a log, as a killed process and as an orderly
// Close leave it, and all its rows.
func sweepStore(t *testing.T) (killed, closed files, rows string) {
	t.Helper()
	dir := t.TempDir()
	st, err := Open(dir, sweepOptions())
	require.NoError(t, err)
	j := &journal{acked: map[int]bool{}}
	for _, part := range [][2]int{{0, 10}, {10, 20}, {30, 5}} {
		require.NoError(t, j.write(t.Context(), st, part[0], 1, part[1]))
		require.NoError(t, st.db.Flush())
	}
	require.NoError(t, j.run(t.Context(), st, 3))
	require.NoError(t, j.write(t.Context(), st, 40, 1, 10))
	rows = everything(t, st)
	killed = readFiles(t, dir)
	require.NoError(t, st.Close())
	return killed, readFiles(t, dir), rows
}

// TestEachFileOfAStore removes, empties, cuts, spoils or exchanges each file of a store, and adds
// files to it. Open must either find all the data, or refuse with an error that names the file and
// leave the directory unchanged. It must delete no file that is not the store's.
func TestEachFileOfAStore(t *testing.T) {
	noLeaks(t)
	killed, closed, rows := sweepStore(t)
	require.Greater(t, len(killed.like(t, "*.sst")), 1)
	for state, store := range map[string]files{"killed": killed, "closed": closed, "without inventory": closed.but(map[string]*string{inventoryName: nil})} {
		opened, refused := 0, 0
		try := func(what string, changed files, about ...string) {
			t.Run(state+"/"+what, func(t *testing.T) {
				dir := changed.write(t)
				st, err := Open(dir, sweepOptions())
				if err != nil {
					refused++
					require.Truef(t, slices.ContainsFunc(about, func(name string) bool { return strings.Contains(err.Error(), name) }), "names none of %v: %v", about, err)
					require.NotContains(t, err.Error(), "carrier")
					require.Equal(t, changed, readFiles(t, dir), "changed although it was refused")
					return
				}
				opened++
				require.Equal(t, rows, everything(t, st), "rows are missing, or others are there")
				require.NoError(t, st.Close())
				after := readFiles(t, dir)
				for name, content := range changed {
					if _, own := store[name]; !own {
						require.Equal(t, content, after[name], "a file that is not the store's")
					}
				}
				st = mustOpen(t, dir, sweepOptions())
				require.Equal(t, rows, everything(t, st), "rows are missing, or others are there")
				require.NoError(t, st.Close())
			})
		}
		try("untouched", store)
		for _, name := range slices.Sorted(maps.Keys(store)) {
			if _, listed := store[inventoryName]; !listed && (strings.HasSuffix(name, ".log") || strings.HasPrefix(name, manifestPrefix)) {
				continue // only the inventory reveals this damage
			}
			content := store[name]
			names := []string{name}
			if state == "without inventory" && strings.HasPrefix(name, "marker.format-version") {
				names = append(names, "marker.format-version")
			}
			try("remove "+name, store.but(map[string]*string{name: nil}), names...)
			if content != "" {
				none, half, zeros := "", content[:len(content)/2], strings.Repeat("\x00", len(content))
				try("empty "+name, store.but(map[string]*string{name: &none}), name)
				try("half of "+name, store.but(map[string]*string{name: &half}), name)
				if !strings.HasSuffix(name, tableSuffix) { // a table is read only when its rows are
					try("zeros in "+name, store.but(map[string]*string{name: &zeros}), name)
				}
			}
			for _, other := range store.like(t, "*"+filepath.Ext(name)) {
				if filepath.Ext(name) != "" && !strings.HasPrefix(name, markerPrefix) && name < other {
					theirs := store[other]
					try("swap "+name+" and "+other, store.but(map[string]*string{name: &theirs, other: &content}), name, other)
				}
			}
		}
		foreign, empty := "not of this store\n", ""
		for _, name := range []string{
			"000001.sst", "999999.sst", "000001.log", "999999.log", "2026.log", "000002.blob", "MANIFEST-000000", "MANIFEST-999999",
			"OPTIONS-000001", "temporary.000009.dbtmp", "README", "CURRENT.bak", "data.sst",
		} {
			try("add "+name, store.but(map[string]*string{name: &foreign}), name)
		}
		for _, name := range []string{"999999.log", "999999.sst", "marker.manifest.999999.MANIFEST-999999", "marker.format-version.999999.023", "marker.other"} {
			try("add empty "+name, store.but(map[string]*string{name: &empty}), name, "999999")
		}
		assert.Greater(t, opened, 10, state)
		assert.Greater(t, refused, 10, state)
	}
}

// TestNewStoreOnlyInAnEmptyDirectory shows that Open makes no store in a directory with other
// files.
func TestNewStoreOnlyInAnEmptyDirectory(t *testing.T) {
	noLeaks(t)
	closed := func() files { _, closed, _ := sweepStore(t); return closed }()
	tables := files{}
	for _, name := range closed.like(t, "*.sst") {
		tables[name] = closed[name]
	}
	for what, tc := range map[string]struct {
		files files
		says  []string
	}{
		"a log of somebody":      {files{"000001.log": "x", "000005.sst": "y"}, []string{"000001.log, 000005.sst", "marker.manifest.…"}},
		"a log with a year":      {files{"2026.log": "x"}, []string{"2026.log"}},
		"documents":              {files{"a": "", "b": "", "c": "", "d": "", "e": "", "f": "", "g": ""}, []string{"holds no store", "a, b, c, d, e and 2 more", "choose an empty directory"}},
		"somebody's lock":        {files{"LOCK": "pid 17"}, []string{"LOCK"}},
		"somebody's ballast":     {files{"BALLAST": "mine"}, []string{"BALLAST"}},
		"tables and no manifest": {tables, []string{".sst", "restore the directory from a backup"}},
	} {
		t.Run(what, func(t *testing.T) {
			dir := tc.files.write(t)
			_, err := Open(dir, sweepOptions())
			for _, says := range append(tc.says, dir) {
				require.ErrorContains(t, err, says)
			}
			require.Equal(t, tc.files, readFiles(t, dir))
		})
	}

	t.Run("what is no store's data", func(t *testing.T) {
		dir := files{"LOCK": "", "BALLAST": ballastText}.write(t)
		require.NoError(t, os.Mkdir(filepath.Join(dir, "lost+found"), 0o700))
		require.NoError(t, mustOpen(t, filepath.Join(dir, "demo"), sweepOptions()).Close())
		var said bytes.Buffer
		opts := sweepOptions()
		opts.Logger = slog.New(slog.NewTextHandler(&said, nil))
		st, err := Open(dir, opts)
		require.NoError(t, err)
		require.NoError(t, st.Close())
		require.Contains(t, said.String(), `msg="created a new store" dir=`+dir)
		said.Reset()
		st, err = Open(dir, opts)
		require.NoError(t, err)
		require.NoError(t, st.Close())
		require.NotContains(t, said.String(), "new store")
	})

	t.Run("another program's database", func(t *testing.T) {
		f := closed.but(map[string]*string{inventoryName: nil})
		dir := f.write(t)
		st := mustOpen(t, dir, sweepOptions())
		require.NoError(t, st.db.Delete(metaKey(metaSettings), nil))
		require.NoError(t, st.Close())
		require.NoError(t, os.Remove(filepath.Join(dir, inventoryName)))
		before := readFiles(t, dir)
		_, err := Open(dir, sweepOptions())
		require.ErrorContains(t, err, "holds a Pebble database that is not Quern's")
		require.Equal(t, before, readFiles(t, dir))
	})
}

// TestLeftoverTables shows that a table which a crash left behind is deleted once the inventory
// lists it.
func TestLeftoverTables(t *testing.T) {
	noLeaks(t)
	killed, _, rows := sweepStore(t)
	half := "half a table"
	const name = "000099.sst"
	listed := killed[inventoryName] + string(appendedLine(name, extent{}))
	dir := killed.but(map[string]*string{name: &half, inventoryName: &listed}).write(t)
	st := mustOpen(t, dir, sweepOptions())
	require.Equal(t, rows, everything(t, st), "rows are missing, or others are there")
	require.NoError(t, st.Close())
	require.NotContains(t, readFiles(t, dir), name)
}

// TestInventoryOfAnOlderProgram covers an inventory that is out of date: a program that knows no
// inventory has written to the store since.
func TestInventoryOfAnOlderProgram(t *testing.T) {
	noLeaks(t)
	_, closed, _ := sweepStore(t)
	dir := closed.write(t)
	old := closed[inventoryName]
	st := mustOpen(t, dir, sweepOptions())
	require.NoError(t, st.Write(t.Context(), crashBatch(77)))
	rows := everything(t, st)
	require.NoError(t, st.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, inventoryName), []byte(old), 0o600))
	st = mustOpen(t, dir, sweepOptions())
	require.Equal(t, rows, everything(t, st), "rows are missing, or others are there")
	require.NoError(t, st.Close())
}

// FuzzInventory decodes arbitrary bytes as an inventory. The result is an error, or content that
// survives another round of encoding and decoding.
func FuzzInventory(f *testing.F) {
	c := inventoryContent{made: true, files: map[string]extent{"000004.log": {17, 0xdeadbeef}, "000005.sst": {}}}
	f.Add(c.encode())
	f.Add(append(append(c.encode(), appendedLine("000006.log", extent{})...), "000006.log 12 0000"...))
	f.Add([]byte(inventoryHead + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := decodeInventory(b)
		if err != nil {
			return
		}
		again, err := decodeInventory(c.encode())
		require.NoError(t, err)
		require.Equal(t, c, again)
	})
}

// TestInventoryWithHoles puts zeros anywhere into lines that were not synced, as a power cut does.
// Only the lines before the first zero count. The end of a line never counts as a line.
func TestInventoryWithHoles(t *testing.T) {
	c := inventoryContent{made: true, files: map[string]extent{"MANIFEST-000001": {17, 0xdeadbeef}, "000004.log": {}}}
	whole := c.encode()
	synced := len(whole)
	want := map[int]inventoryContent{} // by the number of intact bytes
	for i, name := range []string{"MANIFEST-000007", "000004.log", "MANIFEST-000001"} {
		before := len(whole)
		whole = append(whole, appendedLine(name, extent{int64(i) * 100, uint32(i)})...)
		for n := before; n < len(whole); n++ {
			want[n], _ = decodeInventory(whole[:before])
		}
	}
	for begin := synced; begin < len(whole); begin++ {
		for end := begin + 1; end <= len(whole); end++ {
			b := slices.Clone(whole)
			clear(b[begin:end])
			got, err := decodeInventory(b)
			require.NoError(t, err)
			require.Equal(t, want[begin], got, "zeros from %d to %d", begin-synced, end-synced)
		}
	}
}

// TestInventoryIsWrittenAnew shows that the inventory is rewritten when many lines have been
// appended, and after a failed line.
func TestInventoryIsWrittenAnew(t *testing.T) {
	dir := t.TempDir()
	st, err := Open(dir, sweepOptions())
	require.NoError(t, err)
	v := st.disk.inventory
	for i := range int64(2 * maxAppended / 24) {
		v.grown("000004.log", extent{i, 1})
	}
	require.NoError(t, v.add("000044.sst"))
	c, whyNot := readInventory(dir, st.disk.base)
	require.NoError(t, whyNot)
	require.True(t, c.made)
	require.Equal(t, v.files, c.files)
	info, err := os.Stat(filepath.Join(dir, inventoryName))
	require.NoError(t, err)
	require.Less(t, info.Size(), int64(maxAppended+1000))
	require.NoError(t, errors.Join(v.file.Close()))
	require.Error(t, v.add("000045.sst"), "the file is closed")
	require.NoError(t, v.add("000046.sst"))
	c, whyNot = readInventory(dir, st.disk.base)
	require.NoError(t, whyNot)
	require.Contains(t, c.files, "000045.sst")
	require.Contains(t, c.files, "000046.sst")
	require.NoError(t, st.Close())
}
