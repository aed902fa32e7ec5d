package pebble

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// goldenStart is the start of the slice that the golden stores hold.
const goldenStart = benchStart

// TestGoldenStores opens a copy of each store in testdata/stores, which a release wrote, and finds
// all its content. Before a release that changes what is written, make one more store with the
// current code and keep the others:
//
//	go test ./internal/storage/pebble -run TestGoldenStores -golden-store NAME
func TestGoldenStores(t *testing.T) {
	if *goldenStore != "" {
		makeGoldenStore(t, *goldenStore)
	}
	stores, err := filepath.Glob(filepath.Join("testdata", "stores", "*.tar.gz"))
	require.NoError(t, err)
	require.NotEmpty(t, stores)
	for _, path := range stores {
		name := strings.TrimSuffix(filepath.Base(path), ".tar.gz")
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			dir := filepath.Join(t.TempDir(), "data")
			unpackStore(t, path, dir)
			want, err := os.ReadFile(strings.TrimSuffix(path, ".tar.gz") + ".golden")
			require.NoError(t, err)
			for range 2 { // the second time, this code has written to it
				st := mustOpen(t, dir, Options{ReserveBytes: 1})
				require.Empty(t, cmp.Diff(string(want), describe(t, st)))
				require.NoError(t, st.RecordRun(t.Context(), storage.Run{Worker: "now", StartedMs: goldenStart}))
				require.NoError(t, st.db.Flush())
				require.NoError(t, st.Close())
			}
		})
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

// describe returns what a reader of the store sees, as text.
func describe(t *testing.T, st *Store) string {
	t.Helper()
	ctx := t.Context()
	all := blocks.Range{End: 1 << 40}
	var out bytes.Buffer
	settings := st.Settings()
	fmt.Fprintf(&out, "settings %s %d %d %v\n", settings.Ladder, settings.GroupSize, settings.IndexPartitions, settings.Epochs)
	if !settings.Policy.Equal(storage.Policy{}) {
		for _, v := range settings.Policy.Values(settings.Ladder) {
			if v.Text != "" { // what the store's version has
				fmt.Fprintf(&out, "setting %s %s\n", v.Flag, v.Text)
			}
		}
	}
	for s, err := range st.Schedules(ctx, all) {
		require.NoError(t, err)
		fmt.Fprintf(&out, "series %d %s\n", s.ID, s.Labels)
	}
	for c, err := range st.RawChunks(ctx, all, 0, math.MaxInt64) {
		require.NoError(t, err)
		samples, err := blocks.DecodeSamples(nil, c.Data)
		require.NoError(t, err)
		fmt.Fprintf(&out, "raw %d %d %s %v\n", c.Group, c.SliceMs, c.ID, samples)
	}
	for level := metric.Bucket(1); level <= settings.Ladder.Top(); level++ {
		for row, err := range st.Rollups(ctx, level, all, 0, math.MaxInt64) {
			require.NoError(t, err)
			r := row.Rollup
			fmt.Fprintf(&out, "row %d %d %d: %d %v %v %v %v %v %v %v\n", level, row.Schedule, row.TimeMs,
				r.Count, r.Sum, r.Min, r.Max, r.First, r.Last, r.Increase, r.Partial)
		}
	}
	slice := storage.SliceKey{Bucket: metric.Raw, StartMs: goldenStart}
	for shard := range settings.IndexPartitions {
		for m, err := range st.Marks(ctx, storage.IndexPartition{SliceKey: slice, Shard: shard}) {
			require.NoError(t, err)
			fmt.Fprintf(&out, "mark %d %d %d %s %s\n", shard, m.Start, m.TimeMs, m.ID, m.Kind)
		}
	}
	for start := metric.ScheduleID(0); start < 384; start += 128 {
		chunks, err := st.CacheBlock(ctx, storage.CacheKey{SliceKey: slice, Start: start})
		require.NoError(t, err)
		for _, c := range chunks {
			fmt.Fprintf(&out, "cache %d %s %x\n", start, c.ID, c.Data)
		}
	}
	states, err := st.Slices(ctx, metric.Raw, 0, math.MaxInt64)
	require.NoError(t, err)
	for _, state := range states {
		fmt.Fprintf(&out, "slice %d %v\n", state.StartMs, state.Complete)
	}
	for about, err := range st.Metadata(ctx) {
		require.NoError(t, err)
		fmt.Fprintf(&out, "metadata %s %s %q %q\n", about.Name, about.Type, about.Unit, about.Help)
	}
	for _, kind := range []string{"dashboard", "token"} {
		for head, err := range st.Documents(ctx, kind) {
			require.NoError(t, err)
			for h, err := range st.Versions(ctx, head.DocumentKey) {
				require.NoError(t, err)
				d, err := st.Document(ctx, h.DocumentKey, h.Version)
				require.NoError(t, err)
				fmt.Fprintf(&out, "document %s %d %v %d %q %q %d %q\n", h.DocumentKey, h.Version, h.Deleted, h.UpdatedMs, h.Author, h.Title, h.Bytes, d.Body)
			}
		}
	}
	for a, err := range st.Annotations(ctx, math.MinInt64, math.MaxInt64) {
		require.NoError(t, err)
		fmt.Fprintf(&out, "annotation %+v\n", a)
	}
	fmt.Fprintf(&out, "newest %s\n", st.NewestID())
	return out.String()
}

// makeGoldenStore writes a store with rows in tables of two levels and in the log.
func makeGoldenStore(t *testing.T, name string) {
	t.Helper()
	ctx := t.Context()
	dir := t.TempDir()
	policy := storage.Policy{
		Grace: time.Minute, Delay: 2 * time.Minute, AgeCap: 24 * time.Hour, FutureLimit: 10 * time.Minute,
		Retention:    storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 0, 0},
		SourceLabels: metric.SourceLabels{"host", "instance"},
	}
	st := mustOpen(t, dir, Options{Settings: storagetest.TestSettings(), Policy: policy.Always, Clock: newClock(), ReserveBytes: 1})
	ids, err := st.LeaseIDs(ctx, 300)
	require.NoError(t, err)
	lease, err := st.AcquireShard(ctx, 0, "w", time.Hour)
	require.NoError(t, err)
	chunkIDs := blocks.NewIDs(1)
	slice := storage.SliceKey{Bucket: metric.Raw, StartMs: goldenStart}
	for block := range 3 {
		start := ids.Start + metric.ScheduleID(128*block)
		var series []storage.Schedule
		var samples []metric.Sample
		var rows []metric.RollupRow
		for k := range 4 {
			id := start + metric.ScheduleID(k)
			labels, err := metric.NewLabels(
				metric.Label{Name: metric.NameLabel, Value: "cpu"},
				metric.Label{Name: metric.SourceLabel, Value: fmt.Sprintf("web-%d", block)},
				metric.Label{Name: "core", Value: fmt.Sprint(k)})
			require.NoError(t, err)
			series = append(series, storage.Schedule{ID: id, Labels: labels})
			for n := range 30 {
				samples = append(samples, metric.Sample{Schedule: id, TimeMs: goldenStart + int64(n)*10_000, Value: float64(block*100+k) + float64(n)/8})
			}
			rows = append(rows, metric.RollupRow{
				Schedule: id, TimeMs: goldenStart - benchHourMs,
				Rollup: metric.Rollup{Count: 3, Sum: 6, Min: 1, Max: 3, First: 1, Last: 3, Increase: 2, Partial: k == 3},
			})
		}
		_, err := st.ClaimSchedules(ctx, storagetest.ClaimsOf(fmt.Sprintf("web-%d", block), series))
		require.NoError(t, err)
		c := storage.Chunk{ID: chunkIDs.Next(goldenStart), Data: blocks.AppendSamples(nil, samples)}
		require.NoError(t, st.Write(ctx, &storage.Batch{
			Open: []storage.SliceKey{slice},
			Marks: []storage.PlacedMark{{
				Partition: storage.IndexPartition{SliceKey: slice, Shard: blocks.ShardOf(start, 4)},
				Mark:      storage.Mark{Start: start, TimeMs: goldenStart, ID: c.ID, Kind: storage.MarkFresh},
			}},
			Raw:   []storage.RawChunk{{Group: blocks.Of(start, 256).Start, SliceMs: goldenStart, Chunk: c}},
			Cache: []storage.CacheChunk{{CacheKey: storage.CacheKey{SliceKey: slice, Start: start}, Chunk: c}},
		}))
		require.NoError(t, st.WriteRollups(ctx, lease.Fence, 1, rows))
		switch block {
		case 0:
			require.NoError(t, st.PutMetadata(ctx, []metric.Metadata{{Name: "cpu", Type: metric.TypeGauge, Help: "How busy.", Unit: "ratio"}}))
			require.NoError(t, st.CompleteSlice(ctx, storage.SliceKey{Bucket: metric.Raw, StartMs: goldenStart - benchHourMs}))
			putDocuments(t, st, goldenStart)
			require.NoError(t, st.db.Flush())
			require.NoError(t, st.db.Compact(ctx, []byte{0}, []byte{255}, false))
		case 1:
			putAnnotations(t, st, goldenStart)
			require.NoError(t, st.db.Flush())
		}
	}
	tables, err := st.db.SSTables()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(slices.DeleteFunc(tables, func(level []lsm.SSTableInfo) bool { return len(level) == 0 })), 2)
	require.NoError(t, st.Close())
	path := filepath.Join("testdata", "stores", name)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	packStore(t, dir, path+".tar.gz")
	st = mustOpen(t, dir, Options{ReserveBytes: 1})
	require.NoError(t, os.WriteFile(path+".golden", []byte(describe(t, st)), 0o600))
	require.NoError(t, st.Close())
}

func packStore(t *testing.T, dir, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	z := gzip.NewWriter(f)
	w := tar.NewWriter(z)
	require.NoError(t, w.AddFS(os.DirFS(dir)))
	require.NoError(t, errors.Join(w.Close(), z.Close(), f.Close()))
}

func unpackStore(t *testing.T, path, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(t, err)
		require.True(t, filepath.IsLocal(h.Name))
		b, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, h.Name), b, 0o600))
	}
}
