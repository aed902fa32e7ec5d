package rollup_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// counted returns the values of a counter by its label.
func counted(t *testing.T, reg *prometheus.Registry, name string) map[string]int {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	out := map[string]int{}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			out[m.GetLabel()[0].GetValue()] = int(m.GetCounter().GetValue())
		}
	}
	return out
}

// TestDamageDoesNotFlood: however many chunks are damaged, and however often runs meet them, a
// block is reported once with a few names. Each meeting counts all of them.
func TestDamageDoesNotFlood(t *testing.T) {
	reg := prometheus.NewRegistry()
	r, store, _, k := setUp(t, 4, rollup.Options{Metrics: reg})
	const name = "quern_aggregation_damaged_chunks_total"
	require.Equal(t, map[string]int{"raw_metrics": 0, "metrics_cache": 0, "rollups": 0, "metrics_cache_index": 0}, counted(t, reg, name))
	ids := blocks.NewIDs(9)
	batch := &storage.Batch{}
	for range 7 {
		batch.Raw = append(batch.Raw, storage.RawChunk{SliceMs: k.StartMs, Chunk: storage.Chunk{ID: ids.Next(k.StartMs), Data: []byte("damaged")}})
	}
	require.NoError(t, store.Write(t.Context(), batch))
	failures := 2
	onRows(store, func() error {
		if failures--; failures >= 0 {
			return errors.New("once more")
		}
		return nil
	})
	_, err := r.Run(t.Context(), k)
	require.NoError(t, err)
	got := rows(t, store)
	require.Len(t, got, 4)
	for _, row := range got {
		require.True(t, row.Partial)
		require.EqualValues(t, 1, row.Count)
	}
	require.Equal(t, map[string]int{"raw_metrics": 3 * 7, "metrics_cache": 0, "rollups": 0, "metrics_cache_index": 0}, counted(t, reg, name), "in three attempts")
	errs, err := storage.RecentErrors(t.Context(), store)
	require.NoError(t, err)
	require.Len(t, errs, 1)
	said := errs[0].Message
	require.Contains(t, said, "7 raw chunks or columns of slice 2025-11-21T10:00:00Z were skipped")
	require.Contains(t, said, "; and 2 more")
	for i, ch := range batch.Raw {
		require.Equal(t, i < 5, strings.Contains(said, fmt.Sprintf("chunk %s of group 0", ch.ID)), said)
	}
	require.EqualValues(t, 0, errs[0].Start)
}

// TestWhatTheStoreCannotRead: chunks that the store itself cannot read are unknown, and cannot be
// left out. The block is put off.
func TestWhatTheStoreCannotRead(t *testing.T) {
	r, store, _, k := setUp(t, 4, rollup.Options{Attempts: 1})
	store.Fail("RawChunks", blocks.Range{Start: 0, End: 4}, -1, storage.ErrCorrupt)
	rec, err := r.Run(t.Context(), k)
	require.NoError(t, err)
	require.Equal(t, 1, rec.Rescheduled)
	require.Empty(t, rows(t, store))
}

// TestDamagedRows: a row that cannot be read, or whose sketch cannot, makes the row above partial, which
// lacks its samples or their percentiles. Other series of the block are not affected.
func TestDamagedRows(t *testing.T) {
	damage := func(t *testing.T, change func(row metric.RollupRow) []metric.RollupRow) (above map[metric.ScheduleID]metric.RollupRow, message string, counts map[string]int) {
		reg := prometheus.NewRegistry()
		r, store, clk, k := setUp(t, 8, rollup.Options{Metrics: reg})
		_, err := r.Run(t.Context(), k)
		require.NoError(t, err)
		six := metric.DefaultLadder().SliceAt(1, k.StartMs)
		around := storage.SliceKey{Bucket: 1, StartMs: six.StartMs}
		lease, err := store.AcquireShard(t.Context(), 0, "by hand", time.Minute)
		require.NoError(t, err)
		require.NoError(t, store.WriteRollups(t.Context(), lease.Fence, 1, change(rows(t, store)[2])))
		// This makes the run read the table.
		require.NoError(t, store.DeleteCacheBlock(t.Context(), lease.Fence, storage.CacheKey{SliceKey: around}))
		require.NoError(t, store.ReleaseShard(t.Context(), 0, "by hand"))
		clk.Set(time.UnixMilli(six.EndMs).Add(10 * time.Minute))
		rec, err := r.Run(t.Context(), around)
		require.NoError(t, err)
		require.Zero(t, rec.Rescheduled)
		above = map[metric.ScheduleID]metric.RollupRow{}
		for row, err := range store.Rollups(t.Context(), 2, blocks.Range{End: 8}, six.StartMs, six.EndMs) {
			require.NoError(t, err)
			above[row.Schedule] = row
		}
		require.Len(t, above, 8)
		errs, err := storage.RecentErrors(t.Context(), store)
		require.NoError(t, err)
		require.Len(t, errs, 1)
		return above, errs[0].Message, counted(t, reg, "quern_aggregation_damaged_chunks_total")
	}
	t.Run("sketch", func(t *testing.T) {
		above, message, counts := damage(t, func(row metric.RollupRow) []metric.RollupRow {
			row.Sketch = []byte("damaged")
			return []metric.RollupRow{row}
		})
		for id, row := range above {
			require.EqualValues(t, 1, row.Count)
			require.EqualValues(t, id, row.Sum)
			require.Equal(t, id == 2, row.Partial)
		}
		require.Equal(t, 1, counts["rollups"])
		require.Contains(t, message, "1 rows or sketches of rows were skipped in slice 2025-11-21T06:00:00Z, so its rows are partial: schedule 2 at")
	})
	t.Run("row", func(t *testing.T) {
		above, message, _ := damage(t, func(row metric.RollupRow) []metric.RollupRow {
			return []metric.RollupRow{
				{Schedule: 2, TimeMs: row.TimeMs, Damaged: true},
				{Schedule: 3, TimeMs: row.TimeMs + 3_600_000, Damaged: true},
			}
		})
		for id, row := range above {
			require.Equal(t, id != 2, row.Count == 1, "%+v", row)
			require.Equal(t, id == 2 || id == 3, row.Partial, "%+v", row)
		}
		require.Contains(t, message, "2 rows or sketches of rows were skipped in slice 2025-11-21T06:00:00Z")
		require.Contains(t, message, fmt.Sprintf("the 1h row of schedule 2 at %d", hour.UnixMilli()))
	})
}

// TestDamagedRowKeepsTheRowAbove: late data of other hours has a row computed again, and by now a
// row below cannot be read. The stored row has more samples: it stays, and says that it is partial.
func TestDamagedRowKeepsTheRowAbove(t *testing.T) {
	r, store, clk, k := setUp(t, 8, rollup.Options{})
	_, err := r.Run(t.Context(), k)
	require.NoError(t, err)
	six := metric.DefaultLadder().SliceAt(1, k.StartMs)
	clk.Set(time.UnixMilli(six.EndMs).Add(10 * time.Minute))
	_, err = r.Run(t.Context(), storage.SliceKey{Bucket: 1, StartMs: six.StartMs})
	require.NoError(t, err)

	lease, err := store.AcquireShard(t.Context(), 0, "by hand", time.Minute)
	require.NoError(t, err)
	require.NoError(t, store.WriteRollups(t.Context(), lease.Fence, 1, []metric.RollupRow{{Schedule: 2, TimeMs: k.StartMs, Damaged: true}}))
	require.NoError(t, store.ReleaseShard(t.Context(), 0, "by hand"))
	next := storage.SliceKey{Bucket: 1, StartMs: six.EndMs}
	late := storage.Mark{Start: 0, TimeMs: six.StartMs, ID: blocks.KeyID(six.EndMs, 1), Kind: storage.MarkLate, Schedules: []metric.ScheduleID{1, 2}, DueMs: six.EndMs}
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{next}, Marks: []storage.PlacedMark{
		{Partition: storage.IndexPartition{SliceKey: next, Shard: blocks.ShardOf(0, 2)}, Mark: late},
	}}))
	clk.Set(time.UnixMilli(metric.DefaultLadder().SliceAt(1, six.EndMs).EndMs).Add(10 * time.Minute))
	_, err = r.Run(t.Context(), next)
	require.NoError(t, err)
	n := 0
	for row, err := range store.Rollups(t.Context(), 2, blocks.Range{End: 8}, six.StartMs, six.EndMs) {
		require.NoError(t, err)
		require.EqualValues(t, 1, row.Count, "%+v", row)
		require.Equal(t, row.Schedule == 2, row.Partial, "%+v", row)
		n++
	}
	require.Equal(t, 8, n)
}
