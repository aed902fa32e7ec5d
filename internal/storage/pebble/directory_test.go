package pebble

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// files maps the names in a directory to their contents.
type files map[string]string

func readFiles(t *testing.T, dir string) files {
	t.Helper()
	return filesIn(t, vfs.Default, dir)
}

func filesIn(t *testing.T, disk vfs.FS, dir string) files {
	t.Helper()
	names, err := disk.List(dir)
	require.NoError(t, err)
	found := files{}
	for _, name := range names {
		f, err := disk.Open(disk.PathJoin(dir, name))
		require.NoError(t, err)
		content, err := io.ReadAll(f)
		require.NoError(t, errors.Join(err, f.Close()))
		found[name] = string(content)
	}
	return found
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

// but returns f with other content in a file.
func (f files) but(name, content string) files {
	g := maps.Clone(f)
	g[name] = content
	return g
}

// without returns f without some files.
func (f files) without(names ...string) files {
	g := maps.Clone(f)
	for _, name := range names {
		delete(g, name)
	}
	return g
}

func (f files) like(t *testing.T, pattern string) []string   { return f.matching(t, pattern, true) }
func (f files) unlike(t *testing.T, pattern string) []string { return f.matching(t, pattern, false) }

func (f files) matching(t *testing.T, pattern string, want bool) (names []string) {
	t.Helper()
	for name := range f {
		ok, err := filepath.Match(pattern, name)
		require.NoError(t, err)
		if ok == want {
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
			all.Write(p.rows[i].key)
			all.Write(p.rows[i].value)
		}
	}
	return all.String()
}

// sweepStore returns the files of a store whose process is killed, and of the same one when it is closed, and its rows.
func sweepStore(t *testing.T) (killed, closed files, rows string) {
	t.Helper()
	disk := vfs.NewCrashableMem()
	opts := sweepOptions()
	opts.FS = disk
	st, err := Open("/data", opts)
	require.NoError(t, err)
	j := &journal{acked: map[int]bool{}}
	for _, part := range [][2]int{{0, 10}, {10, 20}, {30, 5}} {
		require.NoError(t, j.write(t.Context(), st, part[0], 1, part[1]))
		require.NoError(t, st.db.Flush())
	}
	require.NoError(t, j.run(t.Context(), st, 3))
	require.NoError(t, j.write(t.Context(), st, 40, 1, 10))
	rows = everything(t, st)
	// A copy of one moment, whatever is compacted meanwhile.
	killed = liveFiles(t, disk.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 1))}))
	require.NoError(t, st.Close())
	return killed, liveFiles(t, disk), rows
}

// liveFiles returns the files of the store in /data, without tables that it does not need any more and was about to remove.
func liveFiles(t *testing.T, disk vfs.FS) files {
	t.Helper()
	found := filesIn(t, disk, "/data")
	opts := sweepOptions()
	opts.FS = disk
	st := newStore("/data", &opts, nil)
	require.NoError(t, st.openReadOnly(&opts))
	levels, err := st.db.SSTables()
	require.NoError(t, err)
	require.NoError(t, st.closeDB())
	live := map[string]bool{}
	for _, level := range levels {
		for _, table := range level {
			live[fmt.Sprintf("%s%s", table.BackingSSTNum, tableSuffix)] = true
		}
	}
	maps.DeleteFunc(found, func(name, _ string) bool { return strings.HasSuffix(name, tableSuffix) && !live[name] })
	return found
}

// TestRefusals: Open refuses a directory that is no store, or not all of one, with one line that says what it found and what
// to do. It changes nothing there.
func TestRefusals(t *testing.T) {
	noLeaks(t)
	killed, closed, _ := sweepStore(t)
	foreign := func() files {
		dir := closed.write(t)
		st := mustOpen(t, dir, sweepOptions())
		require.NoError(t, st.db.Delete(metaKey(metaSettings), nil))
		require.NoError(t, st.Close())
		return readFiles(t, dir)
	}()
	type refusal struct {
		files files
		says  []string
	}
	emptyDirectory, backup := "choose an empty directory", "restore the directory from a backup"
	cases := map[string]refusal{
		"documents":                   {files{"a": "", "b": "", "c": "", "d": "", "e": "", "f": "", "g": ""}, []string{"holds no store", "a, b, c, d, e and 2 more", emptyDirectory}},
		"somebody's log":              {files{"000001.log": "x"}, []string{"000001.log", emptyDirectory}},
		"somebody's lock":             {files{lockName: "pid 17"}, []string{lockName, emptyDirectory}},
		"another program's database":  {foreign, []string{"holds a Pebble database without Quern's settings", emptyDirectory, "restore this one from a backup"}},
		"no tables":                   {closed.without(closed.like(t, "*.sst")...), []string{"is incomplete", "more like it", backup}},
		"tables alone":                {closed.without(closed.unlike(t, "*.sst")...), []string{".sst", "no file marker.manifest.…", backup}},
		"no log":                      {closed.without(closed.like(t, "*.log")...), []string{"is incomplete", "no *.log", backup}},
		"no log, of a killed process": {killed.without(killed.like(t, "*.log")...), []string{"is incomplete", "no *.log", backup}},
	}
	for state, store := range map[string]files{"killed": killed, "closed": closed} {
		require.Greater(t, len(store.like(t, "*.sst")), 1)
		for _, name := range store.like(t, "*.sst") {
			half, number := store[name][:len(store[name])/2], strings.TrimSuffix(name, tableSuffix)
			cases[state+", without "+name] = refusal{store.without(name), []string{"is incomplete", number, backup}}
			cases[state+", half of "+name] = refusal{store.but(name, half), []string{"is incomplete", number, backup}}
		}
		manifests := store.like(t, "MANIFEST-*")
		current := manifests[len(manifests)-1]
		cases[state+", without the manifest"] = refusal{store.without(current), []string{"is incomplete", current, backup}}
		cases[state+", with an empty manifest"] = refusal{store.but(current, ""), []string{"is incomplete", current, backup}}
		for _, marker := range []string{manifestMarker, versionMarker} {
			cases[state+", without the marker "+marker] = refusal{store.without(store.like(t, "marker."+marker+".*")...), []string{"is incomplete", "no file marker." + marker, backup}}
		}
	}
	for what, tc := range cases {
		t.Run(what, func(t *testing.T) {
			dir := tc.files.write(t)
			_, err := Open(dir, sweepOptions())
			for _, says := range append(tc.says, dir, "nothing in") {
				require.ErrorContains(t, err, says)
			}
			require.NotContains(t, err.Error(), "\n")
			if slices.Contains(tc.says, backup) {
				require.ErrorIs(t, err, storage.ErrCorrupt)
			}
			require.Equal(t, tc.files, readFiles(t, dir))
		})
	}
}

// TestDamagedLog: a log with a damaged record is refused, and nothing behind the record is lost in silence. Pebble finds that out by what
// later blocks of the log, of 32 KiB each, say was synced before: so not in the last blocks.
func TestDamagedLog(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	opts := sweepOptions()
	opts.MemTableBytes = 8 << 20
	st := mustOpen(t, dir, opts)
	j := &journal{acked: map[int]bool{}}
	require.NoError(t, j.write(t.Context(), st, 0, 1, 200))
	killed := readFiles(t, dir)
	require.NoError(t, st.Close())
	logs := killed.like(t, "*.log")
	last := logs[len(logs)-1]
	require.Greater(t, len(killed[last]), 200<<10)
	for _, at := range []int{100, 50_000, 100_000} {
		spoilt := []byte(killed[last])
		spoilt[at] ^= 0x40
		damaged := killed.but(last, string(spoilt))
		dir := damaged.write(t)
		_, err := Open(dir, opts)
		require.ErrorIs(t, err, storage.ErrCorrupt)
		require.ErrorContains(t, err, "the store in "+dir+" is incomplete")
		require.NotContains(t, err.Error(), "\n")
		require.Equal(t, damaged, readFiles(t, dir))
	}
}

// TestFilesThatMayBeMissing: Open finds all rows without the files that hold none.
func TestFilesThatMayBeMissing(t *testing.T) {
	noLeaks(t)
	killed, closed, rows := sweepStore(t)
	for _, store := range []files{killed, closed} {
		for _, name := range append(store.like(t, "OPTIONS-*"), lockName) {
			st := mustOpen(t, store.without(name).write(t), sweepOptions())
			require.Equal(t, rows, everything(t, st), name)
			require.NoError(t, st.Close())
		}
	}
}

// TestNewStoreInADirectory: Open makes a store beside what is no data of anybody.
func TestNewStoreInADirectory(t *testing.T) {
	noLeaks(t)
	dir := files{lockName: "", firstManifest: "half"}.write(t)
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
}

// TestOldLogsAreRemoved: the logs that Open has replayed are removed once there is a new one.
func TestOldLogsAreRemoved(t *testing.T) {
	noLeaks(t)
	killed, _, _ := sweepStore(t)
	dir := killed.write(t)
	require.NoError(t, mustOpen(t, dir, sweepOptions()).Close())
	after := readFiles(t, dir)
	require.NotEmpty(t, after.like(t, "*.log"))
	for _, name := range killed.like(t, "*.log") {
		require.NotContains(t, after, name)
	}
}
