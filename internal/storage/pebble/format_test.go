package pebble

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

var rewrite = flag.Bool("rewrite", false, "write the golden file anew")

// TestFormat pins every key and value that a small store holds to the golden file,
// which docs/format/pebble.md explains.
func TestFormat(t *testing.T) {
	noLeaks(t)
	ctx := t.Context()
	const day = 24 * time.Hour
	st := mustOpen(t, "/data", Options{
		Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: newClock(),
		Policy: storage.Policy{
			Grace: time.Minute, Delay: 2 * time.Minute, AgeCap: day, FutureLimit: 10 * time.Minute,
			Retention: storage.Retention{7 * day, 90 * day, 0, 0}, SourceLabels: metric.SourceLabels{"host", "instance"},
		}.Always,
	})
	const start = benchStart
	slice := storage.SliceKey{Bucket: metric.Raw, StartMs: start}
	id := blocks.NewIDs(0x0102030405).Next(start)
	require.NoError(t, st.Write(ctx, &storage.Batch{Raw: []storage.RawChunk{{SliceMs: start - 10*day.Milliseconds(), Chunk: storage.Chunk{ID: id}}}}))
	require.NoError(t, st.Expire(ctx))
	ids, err := st.LeaseIDs(ctx, 300)
	require.NoError(t, err)
	labels, err := metric.NewLabels(metric.Label{Name: metric.NameLabel, Value: "cpu"}, metric.Label{Name: metric.SourceLabel, Value: "web-1"})
	require.NoError(t, err)
	_, err = st.ClaimSchedules(ctx, storagetest.ClaimsOf("web-1", []storage.Schedule{{ID: ids.Start + 258, Labels: labels}}))
	require.NoError(t, err)
	lease, err := st.AcquireShard(ctx, 2, "w", time.Hour)
	require.NoError(t, err)
	require.NoError(t, st.Write(ctx, &storage.Batch{
		Open: []storage.SliceKey{slice},
		Marks: []storage.PlacedMark{{
			Partition: storage.IndexPartition{SliceKey: slice, Shard: 2},
			Mark: storage.Mark{
				Start: 256, TimeMs: start - 3_600_000, ID: id, Kind: storage.MarkLate, DueMs: start,
				Schedules: []metric.ScheduleID{256, 258, 383}, Attempt: 1, LastError: "boom",
			},
		}},
		Raw:   []storage.RawChunk{{Group: 256, SliceMs: start, Chunk: storage.Chunk{ID: id, Data: []byte("raw")}}},
		Cache: []storage.CacheChunk{{CacheKey: storage.CacheKey{SliceKey: slice, Start: 256}, Chunk: storage.Chunk{ID: id, Data: []byte("cache")}}},
	}))
	row := metric.RollupRow{Schedule: 258, TimeMs: start, Rollup: metric.Rollup{
		Count: 3, Sum: 6, Min: 1, Max: 3, First: 1, Last: math.Inf(-1), FirstMs: start + 10, LastMs: start + 600, Increase: 2, Sketch: []byte("sketch"),
	}}
	partial := row
	partial.Schedule, partial.Partial, partial.NonFinite = 259, true, true
	require.NoError(t, st.WriteRollups(ctx, lease.Fence, 1, []metric.RollupRow{row, partial}))
	require.NoError(t, st.BeginSlice(ctx, slice))
	require.NoError(t, st.CompleteSlice(ctx, slice))
	putDocuments(t, st, start)
	require.NoError(t, storage.RecordRun(ctx, st, storage.Run{SliceKey: slice, Worker: "w", StartedMs: start, Duration: time.Second, Blocks: 1}))
	require.NoError(t, storage.NewErrorLog(st, "aggregator", "w").Record(ctx, storage.ComponentError{TimeMs: start, SliceKey: slice, Start: -1, Message: "boom"}))

	var got bytes.Buffer
	p, err := st.readPage([]byte{0}, []byte{255}, math.MaxInt, nil)
	require.NoError(t, err)
	for i := range p.rows {
		fmt.Fprintf(&got, "%c %x\n  %x\n", p.rows[i].key[0], p.rows[i].key[1:], p.rows[i].value)
	}
	require.NoError(t, st.Close())
	golden := filepath.Join("testdata", "format.golden")
	if *rewrite {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, got.Bytes(), 0o600))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Empty(t, cmp.Diff(string(want), got.String()))
}

// FuzzMark decodes arbitrary bytes as a mark. The result is an error, or a mark that survives
// another round of encoding and decoding.
func FuzzMark(f *testing.F) {
	f.Add(appendMark(nil, &storage.Mark{}), int64(0))
	f.Add(appendMark(nil, &storage.Mark{
		Start: 128, Kind: storage.MarkLate, DueMs: -5, Attempt: 3, LastError: "x",
		Schedules: []metric.ScheduleID{130, 131, 200},
	}), int64(128))
	f.Add([]byte{markVersion, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0x0f}, int64(0))
	f.Fuzz(func(t *testing.T, b []byte, start int64) {
		m := storage.Mark{Start: metric.ScheduleID(start)}
		if err := parseMark(b, &m); err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		again := storage.Mark{Start: m.Start}
		require.NoError(t, parseMark(appendMark(nil, &m), &again))
		require.Equal(t, m, again)
	})
}

// The store yields a row whose value is damaged on disk as damaged, and reads the rows after it.
func TestDamagedRollup(t *testing.T) {
	noLeaks(t)
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: newClock()})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	lease, err := st.AcquireShard(t.Context(), 0, "w", time.Hour)
	require.NoError(t, err)
	var rows []metric.RollupRow
	for id := range metric.ScheduleID(3) {
		rows = append(rows, metric.RollupRow{Schedule: id, TimeMs: benchStart, Rollup: metric.Rollup{Count: 1, Sum: 2}})
	}
	require.NoError(t, st.WriteRollups(t.Context(), lease.Fence, 1, rows))
	for _, bad := range [][]byte{{}, {rollupVersion}, {77, 0, 0, 0, 0, 0}} {
		scanned := 0
		it, err := st.db.NewIter(nil)
		require.NoError(t, err)
		for it.First(); it.Valid(); it.Next() {
			if k := it.Key(); k[0] == tableRollups {
				if scanned++; scanned == 2 {
					require.NoError(t, st.db.Set(bytes.Clone(k), bad, nil))
				}
			}
		}
		require.NoError(t, it.Close())
		require.Equal(t, 3, scanned)
		var got []metric.RollupRow
		for row, err := range st.Rollups(t.Context(), 1, blocks.Range{End: 10}, benchStart, benchStart+1) {
			require.NoError(t, err)
			got = append(got, row)
		}
		require.Equal(t, []metric.RollupRow{rows[0], {Schedule: 1, TimeMs: benchStart, Damaged: true}, rows[2]}, got)
	}
}

// The store yields a mark whose value is damaged on disk as damaged, and reads the marks after it.
func TestDamagedMark(t *testing.T) {
	noLeaks(t)
	st := mustOpen(t, "/data", Options{Settings: storagetest.TestSettings(), FS: vfs.NewMem(), Clock: newClock()})
	t.Cleanup(func() { require.NoError(t, st.Close()) })
	part := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: benchStart}, Shard: 1}
	b := &storage.Batch{}
	var want []storage.Mark
	for i := range 3 {
		m := storage.Mark{Start: metric.ScheduleID(128 * i), TimeMs: benchStart, ID: blocks.KeyID(benchStart, uint64(i)), Kind: storage.MarkRetry, DueMs: 5}
		b.Marks, want = append(b.Marks, storage.PlacedMark{Partition: part, Mark: m}), append(want, m)
	}
	require.NoError(t, st.Write(t.Context(), b))
	want[1] = storage.DamagedMark(want[1].Key())
	key := indexKey(indexPartitionKey(part), &want[1])
	for _, bad := range [][]byte{
		{}, {markVersion}, appendMark(nil, &storage.Mark{Kind: storage.MarkTakeBack + 1}), append(appendMark(nil, &storage.Mark{}), 0xff),
	} {
		require.NoError(t, st.db.Set(key, bad, nil))
		var got []storage.Mark
		for m, err := range st.Marks(t.Context(), part, storage.MarkKey{}, 0) {
			require.NoError(t, err)
			got = append(got, m)
		}
		require.Equal(t, want, got)
	}
}

// FuzzRollup decodes arbitrary bytes as a roll-up. The result is an error, or a roll-up that
// is the same after it is encoded.
func FuzzRollup(f *testing.F) {
	const timeMs = 3_600_000
	f.Add(appendRollup(nil, &metric.RollupRow{TimeMs: timeMs, Rollup: metric.Rollup{Count: 1, Sum: 2, FirstMs: timeMs, LastMs: timeMs + 9, Sketch: []byte("s")}}))
	f.Add(appendRollup(nil, &metric.RollupRow{TimeMs: timeMs, Rollup: metric.Rollup{Count: 1, Sum: 2, Partial: true}}))
	f.Add(appendRollup(nil, &metric.RollupRow{TimeMs: timeMs, Rollup: metric.Rollup{NonFinite: true}}))
	f.Add([]byte{rollupVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := parseRollup(b, timeMs)
		if err != nil {
			require.ErrorIs(t, err, storage.ErrCorrupt)
			return
		}
		again, err := parseRollup(appendRollup(nil, &metric.RollupRow{TimeMs: timeMs, Rollup: r}), timeMs)
		require.NoError(t, err)
		require.Equal(t, appendRollup(nil, &metric.RollupRow{Rollup: r}), appendRollup(nil, &metric.RollupRow{Rollup: again}))
	})
}

// FuzzInt checks that keys order as their numbers do.
func FuzzInt(f *testing.F) {
	f.Add(int64(-1), int64(0))
	f.Add(int64(math.MinInt64), int64(math.MaxInt64))
	f.Fuzz(func(t *testing.T, a, b int64) {
		ka, kb := appendInt(nil, a), appendInt(nil, b)
		require.Equal(t, a, getInt(ka))
		require.Equal(t, a < b, bytes.Compare(ka, kb) < 0)
	})
}
