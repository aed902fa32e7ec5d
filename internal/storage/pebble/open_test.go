package pebble

import (
	"bytes"
	"cmp"
	"fmt"
	"io/fs"
	"log/slog"
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
	opts.Logger = cmp.Or(opts.Logger, quiet())
	st, err := Open(dir, opts)
	require.NoError(t, err)
	return st
}

// TestPrivateDirectory: no other user of the machine may enter what Open makes.
func TestPrivateDirectory(t *testing.T) {
	noLeaks(t)
	above := filepath.Join(t.TempDir(), "a")
	require.NoError(t, mustOpen(t, filepath.Join(above, "b"), Options{Settings: storagetest.TestSettings()}).Close())
	for _, dir := range []string{above, filepath.Join(above, "b")} {
		info, err := os.Stat(dir)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o700), info.Mode().Perm(), dir)
	}
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
		{otherLadder, []string{"was created with roll-ups 1h,6h,24h", "not the requested 1h", "leave the option out, or use another data directory"}},
		{otherGroup, []string{"group size of 256", "512"}},
		{otherShards, []string{"index partitions 4", "16"}},
	} {
		_, err := Open(dir, Options{Settings: tc.settings, Logger: quiet()})
		require.ErrorIs(t, err, storage.ErrSettings)
		for _, m := range append(tc.message, dir) {
			require.ErrorContains(t, err, m)
		}
	}

	// A different block size is no conflict: the store's epochs apply.
	otherBlocks := made
	otherBlocks.Epochs = blocks.Epochs{{BlockSize: 64}}
	st := mustOpen(t, dir, Options{Settings: otherBlocks})
	require.Equal(t, made.Epochs, st.Settings().Epochs)
	require.NoError(t, st.Close())

	// A tool that gives no settings gets the recorded ones.
	st = mustOpen(t, dir, Options{})
	require.Equal(t, made, st.Settings())
	require.NoError(t, st.Close())
}

func TestOtherSchemaIsRefused(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: fs})
	v, err := st.get(metaKey(metaSettings))
	require.NoError(t, err)
	require.NoError(t, st.Close())
	for other, want := range map[string]string{
		`"schema":5,"version":"0.3.0"`: "schema version 5, this program knows 4: serve it with Quern 0.3.0, or copy its data",
		`"schema":3`:                   "schema version 3, this program knows 4: serve it with Quern of an unknown version, or copy its data to a new store",
	} {
		db, err := lsm.Open("/data", &lsm.Options{FS: fs, FormatMajorVersion: formatVersion, Logger: &pebbleLogger{log: quiet()}})
		require.NoError(t, err)
		require.NoError(t, db.Set(metaKey(metaSettings), bytes.Replace(v, []byte(`"schema":4`), []byte(other), 1), lsm.Sync))
		require.NoError(t, db.Close())
		_, err = Open("/data", Options{FS: fs, Logger: quiet(), Version: "0.1.0"})
		require.ErrorIs(t, err, storage.ErrSettings)
		require.ErrorContains(t, err, want)
	}
}

// TestVersionIsRecorded: a program records its version in a store, and says so; a tool without one leaves it.
func TestVersionIsRecorded(t *testing.T) {
	noLeaks(t)
	fs := vfs.NewMem()
	var log bytes.Buffer
	for _, c := range []struct{ version, recorded, logged string }{
		{"", "", ""},
		{"0.1.0", "0.1.0", "last_opened_by=unknown version=0.1.0"},
		{"0.1.0", "0.1.0", ""},
		{"", "0.1.0", ""},
		{"0.2.0", "0.2.0", "last_opened_by=0.1.0 version=0.2.0"},
	} {
		log.Reset()
		st, err := Open("/data", Options{Settings: storagetest.TestSettings(), FS: fs, Version: c.version, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		require.NoError(t, err)
		require.NoError(t, st.SetPolicy(t.Context(), st.Settings().Policy), "the settings are written again")
		v, err := st.get(metaKey(metaSettings))
		require.NoError(t, err)
		_, recorded, err := decodeSettings(v)
		require.NoError(t, err)
		require.Equal(t, c.recorded, recorded)
		require.NoError(t, st.Close())
		require.Contains(t, log.String(), c.logged)
		require.Equal(t, c.logged != "", strings.Contains(log.String(), "for the first time"))
	}
}

// TestFormatVersion checks that the files have the documented version, even with a newer Pebble,
// and that a store of an unknown version is left unchanged.
func TestFormatVersion(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	opts := Options{Settings: storagetest.TestSettings(), ReserveBytes: 1}
	st := mustOpen(t, dir, opts)
	require.Equal(t, lsm.FormatMajorVersion(24), st.db.FormatMajorVersion())
	require.NoError(t, st.Close())
	marker, err := filepath.Glob(filepath.Join(dir, "marker.format-version.*.024"))
	require.NoError(t, err)
	require.Len(t, marker, 1)
	newer := strings.TrimSuffix(marker[0], "024") + "999"
	require.NoError(t, os.Rename(marker[0], newer))
	opts.Logger = quiet()
	_, err = Open(dir, opts)
	require.ErrorIs(t, err, storage.ErrSettings)
	require.ErrorContains(t, err, "the store in "+dir+" was written by a newer version of Quern: its files are of version 999, this program knows 24")
	require.NoError(t, os.Rename(newer, marker[0]))
	require.NoError(t, mustOpen(t, dir, opts).Close())
}

func TestOptionsAreValidated(t *testing.T) {
	for name, change := range map[string]func(o *Options){
		"block size 0":       func(o *Options) { o.Settings.Epochs = blocks.Epochs{{}} },
		"group size -1":      func(o *Options) { o.Settings.GroupSize = -1 },
		"no shards":          func(o *Options) { o.Settings.IndexPartitions = -1 },
		"negative retention": func(o *Options) { o.Policy = storage.Policy{Retention: storage.Retention{0, -1}}.Always },
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

	// Open must not report a directory that cannot be made as in use.
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(filepath.Join(file, "data"), Options{Settings: opts.Settings, Logger: quiet()})
	require.NotErrorIs(t, err, storage.ErrConflict)
	require.ErrorAs(t, err, new(*fs.PathError))
}

// TestLeasesOfADeadProcessAreVoid: opening the directory voids the leases of the process before,
// since only one process can have it open.
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

// TestDamageIsTold spoils a value of each table whose readers get an error for it. Marks and
// roll-ups have TestDamagedMark and TestDamagedRollup.
func TestDamageIsTold(t *testing.T) {
	noLeaks(t)
	ctx := t.Context()
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem()})
	everything := blocks.Range{End: 100}
	spoil := func(k []byte) { require.NoError(t, st.db.Set(k, []byte{9, 9}, lsm.NoSync)) }
	spoil(scheduleKey(1))
	spoil(sourcePrefix("s"))
	spoil([]byte{tableRaw, 1})
	for name, err := range map[string]error{
		"schedules": first(st.Schedules(ctx, everything)),
		"source":    first(st.SourceSchedules(ctx, "s")),
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

// TestDamagedBlock flips a byte in one block of a table after another. Data outside the block is
// read as before. Data in the block is reported as lost and never read wrong.
func TestDamagedBlock(t *testing.T) {
	noLeaks(t)
	ctx := t.Context()
	dir := t.TempDir()
	opts := Options{Settings: storagetest.TestSettings(), ReserveBytes: 1}
	st := mustOpen(t, dir, opts)
	const batches = 300
	for n := range batches {
		require.NoError(t, st.Write(ctx, crashBatch(n)))
	}
	ids, err := st.LeaseIDs(ctx, 128*batches)
	require.NoError(t, err)
	for n := range 40 {
		source := fmt.Sprintf("web-%02d", n)
		var series []storage.Schedule
		for k := range 64 {
			labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: fmt.Sprintf("metric_%d_%d", n*7919, k*104729)},
				metric.Label{Name: metric.SourceLabel, Value: source})
			require.NoError(t, err)
			series = append(series, storage.Schedule{ID: ids.Start + metric.ScheduleID(n*64+k), Labels: labels})
		}
		_, err := st.ClaimSchedules(ctx, storagetest.ClaimsOf(source, series))
		require.NoError(t, err)
	}
	require.NoError(t, st.db.Compact(ctx, []byte{0}, []byte{255}, false))
	want := map[blocks.ID]string{}
	all := blocks.Range{End: 128 * batches}
	for c, err := range st.RawChunks(ctx, all, crashStart, crashStart+1) {
		require.NoError(t, err)
		want[c.ID] = string(c.Data)
	}
	require.Len(t, want, batches)
	labels := map[metric.ScheduleID]string{}
	for s, err := range st.Schedules(ctx, all) {
		require.NoError(t, err)
		labels[s.ID] = s.Labels.String()
	}
	require.Len(t, labels, 40*64)
	require.NoError(t, st.Close())
	whole := readFiles(t, dir)
	tables := whole.like(t, "*.sst")
	require.Len(t, tables, 1)

	lostChunks, lostBlocks, lostSeries := 0, 0, 0
	step := 60 << 10
	for at := 5 << 10; at < len(whole[tables[0]]); at += step {
		if len(whole[tables[0]])-at < 50<<10 {
			step = 10 << 10 // the series, which take less space
		}
		spoilt := []byte(whole[tables[0]])
		spoilt[at] ^= 0x40
		lost := &lostLog{}
		st, err := Open(whole.but(tables[0], string(spoilt)).write(t), Options{ReserveBytes: 1, Logger: slog.New(lost)})
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			require.ErrorContains(t, err, tables[0])
			require.NotContains(t, err.Error(), "carrier")
			continue // the byte hit the settings or the table's index
		}
		found, placeholders := 0, map[metric.ScheduleID]bool{}
		for c, err := range st.RawChunks(ctx, all, crashStart, crashStart+1) {
			require.NoError(t, err)
			if c.Data == nil {
				require.Equal(t, crashStart, c.SliceMs)
				placeholders[c.Group] = true
				continue
			}
			require.Equal(t, want[c.ID], string(c.Data))
			found++
		}
		if found < batches {
			lostBlocks++
			lostChunks += batches - found
			require.NotEmpty(t, placeholders)
			require.NotEmpty(t, lost.what)
			require.Contains(t, lost.what[0], "raw chunks of the schedules")
			require.Contains(t, lost.what[0], "2025-11-21T00:00:00Z")
			require.Less(t, batches-found, 80, "more than a block holds")
			for n := range batches {
				k := crashBatch(n).Raw[0]
				if !placeholders[k.Group] {
					require.NoError(t, first(st.RawChunks(ctx, blocks.Range{Start: k.Group, End: k.Group + 1}, crashStart, crashStart+1)))
				}
			}
		}
		var failed error
		seen := 0
		note := func(sc storage.Schedule, err error) {
			if failed = cmp.Or(failed, err); err == nil {
				require.Equal(t, labels[sc.ID], sc.Labels.String())
				seen++
			}
		}
		for sc, err := range st.Schedules(ctx, all) {
			note(sc, err)
		}
		for n := range 40 {
			for sc, err := range st.SourceSchedules(ctx, fmt.Sprintf("web-%02d", n)) {
				note(sc, err)
			}
		}
		if failed == nil {
			require.Equal(t, 2*len(labels), seen)
		} else {
			require.ErrorIs(t, failed, storage.ErrCorrupt)
			require.ErrorContains(t, failed, tables[0]+" is damaged")
			require.ErrorContains(t, failed, "restore the directory from a backup")
			lostSeries++
		}
		require.NoError(t, st.Close())
	}
	require.Greater(t, lostBlocks, 3)
	require.Less(t, lostChunks, lostBlocks*80)
	require.Positive(t, lostSeries, "no labels were damaged")
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
	require.Len(t, values, len(figures())+4)
	require.Less(t, values["quern_pebble_filesystem_free_bytes"], values["quern_pebble_filesystem_size_bytes"])
	require.Positive(t, values["quern_pebble_wal_bytes"])
	require.Positive(t, values["quern_pebble_disk_bytes"])
	require.NoError(t, st.Close())
	families, err = registry.Gather()
	require.NoError(t, err)
	require.Empty(t, families, "a closed store shows nothing")
}
