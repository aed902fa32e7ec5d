package pebble

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	lsm "github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// damageBlocks compacts the store into one table, closes the store, and flips a bit in each of the
// table's blocks that hold the given keys.
func damageBlocks(t *testing.T, st *Store, fs vfs.FS, keys ...[]byte) {
	t.Helper()
	require.NoError(t, st.db.Compact(t.Context(), []byte{0}, []byte{255}, false))
	names, err := fs.List("/data")
	require.NoError(t, err)
	var table string
	for _, name := range names {
		if fs.PathBase(name) != name || len(name) < 4 || name[len(name)-4:] != tableSuffix {
			continue
		}
		require.Empty(t, table, "there is one table")
		table = fs.PathJoin("/data", name)
	}
	f, err := fs.Open(table)
	require.NoError(t, err)
	readable, err := sstable.NewSimpleReadable(f)
	require.NoError(t, err)
	r, err := sstable.NewReader(t.Context(), readable, st.readerOptions)
	require.NoError(t, err)
	var ends []uint64 // of the blocks, in the file
	for _, k := range keys {
		end, err := r.EstimateDiskUsage([]byte{0}, k, sstable.ReadEnv{})
		require.NoError(t, err)
		ends = append(ends, end)
	}
	require.NoError(t, r.Close())
	require.NoError(t, st.Close())
	f, err = fs.Open(table)
	require.NoError(t, err)
	content, err := io.ReadAll(f)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	for _, end := range ends {
		content[end-200] ^= 0x40
	}
	spoilt, err := fs.Create(table, vfs.WriteCategoryUnspecified)
	require.NoError(t, err)
	_, err = spoilt.Write(content)
	require.NoError(t, err)
	require.NoError(t, spoilt.Close())
}

// damagedOptions has a store on fs whose raw chunks are kept for a day.
func damagedOptions(fs vfs.FS) Options {
	return Options{
		Settings: storagetest.TestSettings(), FS: fs, Clock: newClock(), Logger: quiet(), ReserveBytes: 1,
		Policy: storage.Policy{Retention: storage.Retention{24 * time.Hour}}.Always,
	}
}

// A cache block that lies in a damaged block of a table is deleted, and the blocks around it stay.
// Chunks that come later are there.
func TestDamagedCacheBlockIsDeleted(t *testing.T) {
	noLeaks(t)
	const batches, damaged = 300, 150
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", damagedOptions(fs))
	for n := range batches {
		require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	}
	key := func(n int) []byte { c := crashBatch(n).Cache[0]; return append(cacheBlockKey(c.CacheKey), c.ID[:]...) }
	damageBlocks(t, st, fs, key(damaged))
	st = mustOpen(t, "/data", damagedOptions(fs))
	lease, err := st.AcquireShard(t.Context(), 0, "w", time.Hour)
	require.NoError(t, err)
	_, err = st.CacheBlock(t.Context(), crashKey(damaged))
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorIs(t, st.DeleteCacheBlock(t.Context(), lease.Fence-1, crashKey(damaged)), storage.ErrFenced)

	for range 2 {
		require.NoError(t, st.DeleteCacheBlock(t.Context(), lease.Fence, crashKey(damaged)))
		v, err := st.get(key(damaged))
		require.NoError(t, err)
		require.Nil(t, v)
	}
	for n := range batches {
		if n > damaged-80 && n < damaged+80 {
			continue // it may lie in the same block of the table
		}
		chunks, err := st.CacheBlock(t.Context(), crashKey(n))
		require.NoError(t, err)
		require.Len(t, chunks, 1, "block %d", n)
	}
	later := crashBatch(damaged)
	later.Cache[0].ID[0]++
	require.NoError(t, st.Write(t.Context(), later))
	v, err := st.get(append(cacheBlockKey(crashKey(damaged)), later.Cache[0].ID[:]...))
	require.NoError(t, err)
	require.Equal(t, later.Cache[0].Data, v)
	require.NoError(t, st.Close())
}

// putBeforeRaw puts so much between the settings and the raw chunks that they lie in different blocks.
func putBeforeRaw(t *testing.T, st *Store) {
	t.Helper()
	for n := range 1000 {
		require.NoError(t, st.db.Set(documentKey(keptDocument(n, 1).DocumentKey), make([]byte, 100), lsm.NoSync))
	}
}

// Rows expire although the first block that holds any is damaged, in each table. What is younger
// stays.
func TestDamagedBlocksExpire(t *testing.T) {
	noLeaks(t)
	const slices = 8000
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", damagedOptions(fs))
	batch := st.db.NewBatch()
	for n := range 100 {
		require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	}
	at := func(n int) storage.SliceKey {
		return storage.SliceKey{StartMs: crashStart - int64(slices-n)*benchHourMs}
	}
	for n := range slices {
		require.NoError(t, batch.Set(sliceKey(at(n), sliceOpen), nil, nil))
		require.NoError(t, batch.Set(sliceKey(at(n), sliceBegun), nil, nil))
		require.NoError(t, batch.Set(sliceKey(at(n), sliceComplete), nil, nil))
	}
	require.NoError(t, closed(batch, batch.Commit(lsm.Sync)))
	putBeforeRaw(t, st)
	firstRaw := rawKey(&crashBatch(0).Raw[0])
	damageBlocks(t, st, fs, firstRaw, sliceKey(at(slices/2), sliceOpen))

	opts := damagedOptions(fs)
	clk := opts.Clock.(interface{ Set(time.Time) })
	st = mustOpen(t, "/data", opts)
	_, err := st.firstKey([]byte{tableRaw}, []byte{tableRaw + 1})
	require.True(t, lsm.IsCorruptionError(err), "%v", err)
	_, err = st.Slices(t.Context(), 0, at(0).StartMs, crashStart)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	clk.Set(time.UnixMilli(crashStart).Add(10 * 24 * time.Hour))
	young := crashBatch(500)
	young.Raw[0].SliceMs = st.clk.Now().UnixMilli()
	require.NoError(t, st.Write(t.Context(), young))

	for range 2 {
		require.NoError(t, st.Expire(t.Context()))
		k, err := st.firstKey([]byte{tableRaw}, []byte{tableRaw + 1})
		require.NoError(t, err)
		require.True(t, bytes.Equal(rawKey(&young.Raw[0]), k), "%x", k)
		left := 0
		for _, span := range [][2]int{{0, slices / 4}, {slices * 3 / 4, slices - 30*24}} {
			states, err := st.Slices(t.Context(), 0, at(span[0]).StartMs, at(span[1]).StartMs)
			require.NoError(t, err)
			left += len(states)
		}
		require.Zero(t, left, "slices that can be read")
		require.NoError(t, st.db.Flush())
	}
	require.NoError(t, st.Close())
}

// Marks in a damaged block of a table are not passed over: their partition cannot be read, and the error names the file.
// Other partitions can.
func TestDamagedBlockOfMarks(t *testing.T) {
	noLeaks(t)
	const slices, each = 100, 100
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", damagedOptions(fs))
	partition := func(n int) storage.IndexPartition {
		return storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: crashStart + int64(n)*benchHourMs}}
	}
	for n := range slices {
		var b storage.Batch
		for i := range each {
			b.Marks = append(b.Marks, storage.PlacedMark{Partition: partition(n), Mark: storage.Mark{
				Start: metric.ScheduleID(i * 128), TimeMs: partition(n).StartMs, ID: blocks.KeyID(1, rand.Uint64()),
			}})
		}
		require.NoError(t, st.Write(t.Context(), &b))
	}
	damageBlocks(t, st, fs, indexPartitionKey(partition(slices/2)))
	st = mustOpen(t, "/data", damagedOptions(fs))
	damaged := 0
	for n := range slices {
		read := 0
		var failed error
		for _, err := range st.Marks(t.Context(), partition(n), storage.MarkKey{}, 0) {
			if failed = err; err == nil {
				read++
			}
		}
		if failed == nil {
			require.Equal(t, each, read)
			continue
		}
		damaged++
		require.ErrorIs(t, failed, storage.ErrCorrupt)
		require.ErrorContains(t, failed, tableSuffix+" is damaged")
	}
	require.Positive(t, damaged)
	require.Less(t, damaged, slices/4)
	require.NoError(t, st.Close())
}

// Roll-up rows around a damaged block of a table are read as before. Those that may lie in it come
// as damaged, each once, and the message says which they are.
func TestDamagedBlockOfRollups(t *testing.T) {
	noLeaks(t)
	const schedules, hours = 100, 48
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", damagedOptions(fs))
	_, err := st.LeaseIDs(t.Context(), schedules)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 2))
	want := map[[2]int64]metric.RollupRow{}
	var all []metric.RollupRow
	for id := range metric.ScheduleID(schedules) {
		for h := range int64(hours) {
			sketch := make([]byte, 100)
			for i := range sketch {
				sketch[i] = byte(rng.Uint32())
			}
			r := metric.RollupRow{Schedule: id, TimeMs: crashStart + h*benchHourMs, Rollup: metric.Rollup{Count: 1, Sum: float64(h), Sketch: sketch}}
			all = append(all, r)
			want[[2]int64{int64(id), r.TimeMs}] = r
		}
	}
	require.NoError(t, st.WriteRollups(t.Context(), 1, 1, all))
	damageBlocks(t, st, fs, appendRollupKey(nil, 1, st.periodMs(1), schedules/2, crashStart+hours/2*benchHourMs))

	opts, said := damagedOptions(fs), &lostLog{}
	opts.Logger = slog.New(said)
	st = mustOpen(t, "/data", opts)
	read := func(ids blocks.Range) (whole, damaged []metric.RollupRow) {
		seen := map[[2]int64]bool{}
		for r, err := range st.Rollups(t.Context(), 1, ids, crashStart, crashStart+hours*benchHourMs) {
			require.NoError(t, err)
			k := [2]int64{int64(r.Schedule), r.TimeMs}
			require.False(t, seen[k], "%v comes twice", k)
			seen[k] = true
			if r.Damaged {
				damaged = append(damaged, r)
				continue
			}
			require.Equal(t, want[k], r)
			whole = append(whole, r)
		}
		require.Len(t, seen, ids.Len()*hours)
		return whole, damaged
	}
	_, lost := read(blocks.Range{End: schedules})
	require.NotEmpty(t, lost)
	require.Less(t, len(lost), 400, "more than a block holds")
	require.Len(t, said.what, 1)
	first, last := lost[0].Schedule, lost[len(lost)-1].Schedule
	require.Contains(t, said.what[0], fmt.Sprintf("1h rows of the schedules %d to %d from 2025-11-21T", first, last))
	for id := range metric.ScheduleID(schedules) {
		_, damaged := read(blocks.Range{Start: id, End: id + 1})
		if id < first || id > last {
			require.Empty(t, damaged, "schedule %d", id)
		}
	}
	require.NoError(t, st.Close())
}

// Whatever time is asked for, a damaged first block of raw chunks costs what is in it.
func TestDamagedFirstBlockOfRaw(t *testing.T) {
	noLeaks(t)
	const batches = 200
	fs := vfs.NewMem()
	st := mustOpen(t, "/data", damagedOptions(fs))
	_, err := st.LeaseIDs(t.Context(), 128*batches)
	require.NoError(t, err)
	for n := range batches {
		require.NoError(t, st.Write(t.Context(), crashBatch(n)))
	}
	putBeforeRaw(t, st)
	damageBlocks(t, st, fs, rawKey(&crashBatch(0).Raw[0]))
	st = mustOpen(t, "/data", damagedOptions(fs))
	read := func(ids blocks.Range, fromMs, toMs int64) (found, damaged int) {
		for c, err := range st.RawChunks(t.Context(), ids, fromMs, toMs) {
			require.NoError(t, err)
			if c.Data != nil {
				found++
			} else {
				damaged++
			}
		}
		return found, damaged
	}
	found, damaged := read(blocks.Range{End: 128 * batches}, crashStart, crashStart+dayMs)
	require.Greater(t, found, batches-80)
	require.Less(t, found, batches)
	require.Positive(t, damaged)
	found, damaged = read(blocks.Range{End: 1}, math.MinInt64, math.MaxInt64)
	require.Zero(t, found)
	require.Positive(t, damaged)
	require.NoError(t, st.Close())
}
