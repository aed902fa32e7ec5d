package pebble

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func mustOpen(t *testing.T, dir string, opts Options) *Store {
	t.Helper()
	opts.Logger = quiet()
	st, err := Open(dir, opts)
	require.NoError(t, err)
	return st
}

func TestSettingsAreChecked(t *testing.T) {
	noLeaks(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	_, err := Open(dir, Options{Logger: quiet()})
	require.ErrorContains(t, err, "there is no store in")
	made := storagetest.TestSettings()
	require.NoError(t, mustOpen(t, dir, Options{Settings: made}).Close())

	otherLadder := made
	otherLadder.Ladder, err = metric.NewLadder(time.Hour)
	require.NoError(t, err)
	otherGroup := made
	otherGroup.GroupSize = 512
	otherShards := made
	otherShards.IndexPartitions = 16
	for _, tc := range []struct {
		settings storage.Settings
		message  []string
	}{
		{otherLadder, []string{"was made with roll-ups 1h,6h,24h", "and 1h is asked for", "start with 1h,6h,24h, or use another data directory"}},
		{otherGroup, []string{"group size of 256", "512"}},
		{otherShards, []string{"index partitions 4", "16"}},
	} {
		_, err := Open(dir, Options{Settings: tc.settings, Logger: quiet()})
		require.ErrorIs(t, err, storage.ErrSettings)
		for _, m := range append(tc.message, dir) {
			require.ErrorContains(t, err, m)
		}
	}

	// Another block size is no difference: the store's epochs count.
	otherBlocks := made
	otherBlocks.Epochs = blocks.Epochs{{BlockSize: 64}}
	st := mustOpen(t, dir, Options{Settings: otherBlocks})
	require.Equal(t, made.Epochs, st.Settings().Epochs)
	require.NoError(t, st.Close())

	// A tool takes what is recorded.
	st = mustOpen(t, dir, Options{})
	require.Equal(t, made, st.Settings())
	require.NoError(t, st.Close())
}

func TestNewerSchemaIsRefused(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: fs})
	v, err := st.get(metaKey(metaSettings))
	require.NoError(t, err)
	newer := strings.Replace(string(v), `"schema":1`, `"schema":2`, 1)
	require.NoError(t, st.db.Set(metaKey(metaSettings), []byte(newer), lsm.Sync))
	require.NoError(t, st.Close())
	_, err = Open("/data", Options{FS: fs, Logger: quiet()})
	require.ErrorIs(t, err, storage.ErrSettings)
	require.ErrorContains(t, err, "schema version 2, this program knows 1")
}

func TestOptionsAreValidated(t *testing.T) {
	for name, change := range map[string]func(o *Options){
		"no block size":      func(o *Options) { o.Settings.Epochs = nil },
		"block size 0":       func(o *Options) { o.Settings.Epochs = blocks.Epochs{{}} },
		"group size 0":       func(o *Options) { o.Settings.GroupSize = 0 },
		"no shards":          func(o *Options) { o.Settings.IndexPartitions = 0 },
		"no roll-up":         func(o *Options) { o.Settings.Ladder = metric.Ladder{} },
		"negative retention": func(o *Options) { o.Retention = storage.Retention{0, -1} },
		"negative cache":     func(o *Options) { o.CacheBytes = -1 },
		"huge memtable":      func(o *Options) { o.MemTableBytes = 1 << 40 },
	} {
		o := Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Logger: quiet()}
		change(&o)
		_, err := Open("/data", o)
		require.Error(t, err, name)
	}
}

func TestDirectoryInUse(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	opts := Options{Settings: storagetest.TestSettings()}
	st := mustOpen(t, dir, opts)
	_, err := Open(dir, Options{Settings: opts.Settings, Logger: quiet()})
	require.ErrorIs(t, err, storage.ErrConflict)
	require.ErrorContains(t, err, "data directory "+dir+" is in use by another process")
	require.NoError(t, st.Close())
	require.NoError(t, mustOpen(t, dir, opts).Close())

	// A directory that cannot be made is not in use.
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(filepath.Join(file, "data"), Options{Settings: opts.Settings, Logger: quiet()})
	require.NotErrorIs(t, err, storage.ErrConflict)
	require.ErrorAs(t, err, new(*fs.PathError))
}

// TestLeasesOfADeadProcessAreVoid: whoever has the directory is alone with it.
func TestLeasesOfADeadProcessAreVoid(t *testing.T) {
	noLeaks(t)
	opts := Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: newClock()}
	st := mustOpen(t, "/data", opts)
	before, err := st.AcquireShard(t.Context(), 0, "first", time.Hour)
	require.NoError(t, err)
	require.NoError(t, st.Close())
	st = mustOpen(t, "/data", opts)
	leases, err := st.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases)
	after, err := st.AcquireShard(t.Context(), 0, "second", time.Hour)
	require.NoError(t, err)
	require.Greater(t, after.Fence, before.Fence)
	part := storage.IndexPartition{}
	require.ErrorIs(t, st.DeleteMarks(t.Context(), before.Fence, part, nil), storage.ErrFenced)
	require.NoError(t, st.DeleteMarks(t.Context(), after.Fence, part, nil))
	require.NoError(t, st.Close())
	require.ErrorIs(t, st.DeleteMarks(t.Context(), after.Fence, part, nil), storage.ErrUnavailable)
}

// TestDamageIsTold spoils a value of each table, and then a table file.
func TestDamageIsTold(t *testing.T) {
	noLeaks(t)
	ctx := t.Context()
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem()})
	everything := blocks.Range{End: 100}
	spoil := func(k []byte) { require.NoError(t, st.db.Set(k, []byte{9, 9}, lsm.NoSync)) }
	spoil(appendRollupKey(nil, 1, st.periodMs(1), 1, 0))
	spoil(indexKey(indexPartitionKey(storage.IndexPartition{}), &storage.Mark{}))
	spoil(scheduleKey(1))
	spoil(sourcePrefix("s"))
	spoil(runKey(&storage.Run{}))
	spoil(append([]byte{tableErrors}, "x"...))
	spoil([]byte{tableRaw, 1})
	for name, err := range map[string]error{
		"roll-ups":  first(st.Rollups(ctx, 1, everything, 0, 1)),
		"marks":     first(st.Marks(ctx, storage.IndexPartition{})),
		"schedules": first(st.Schedules(ctx, everything)),
		"source":    first(st.SourceSchedules(ctx, "s")),
		"runs":      second(st.RecentRuns(ctx, 1)),
		"errors":    second(st.RecentErrors(ctx)),
	} {
		require.ErrorIs(t, err, storage.ErrCorrupt, name)
	}
	require.NoError(t, st.Close())
}

func first[T any](seq func(func(T, error) bool)) (err error) {
	seq(func(_ T, e error) bool { err = e; return err == nil })
	return err
}

func second[T any](_ T, err error) error { return err }

// TestDamagedFile flips bits in the cached and the raw chunks on disk, to both sides of
// the settings: a read tells, and does not make up data.
func TestDamagedFile(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	opts := Options{Settings: storagetest.TestSettings(), MemTableBytes: 256 << 10}
	st := mustOpen(t, dir, opts)
	for n := range 300 {
		require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	}
	require.NoError(t, st.db.Compact(t.Context(), []byte{0}, []byte{255}, false))
	require.NoError(t, st.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	for i := range b {
		if part := i * 100 / len(b); i%10_000 == 0 && (part < 40 || part > 65 && part < 85) {
			b[i] ^= 0x40
		}
	}
	require.NoError(t, os.WriteFile(files[0], b, 0o600))
	st = mustOpen(t, dir, opts)
	err = first(st.RawChunks(t.Context(), blocks.Range{End: 1 << 40}, crashStart, crashStart+1))
	require.ErrorIs(t, err, storage.ErrCorrupt)
	_, err = st.CacheBlock(t.Context(), crashKey(5))
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.NoError(t, st.Close())
}

func TestCollector(t *testing.T) {
	noLeaks(t)
	st := mustOpen(t, t.TempDir(), Options{Settings: storagetest.TestSettings()})
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(st.Collector())
	require.NoError(t, st.Write(t.Context(), crashBatch(1)))
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			values[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	require.Len(t, values, len(figures())+3)
	require.Less(t, values["quern_pebble_filesystem_free_bytes"], values["quern_pebble_filesystem_size_bytes"])
	require.Positive(t, values["quern_pebble_wal_bytes"])
	require.Positive(t, values["quern_pebble_disk_bytes"])
	require.NoError(t, st.Close())
	families, err = registry.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "a closed store shows nothing")
}
