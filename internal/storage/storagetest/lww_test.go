package storagetest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

func TestLWWModelConformance(t *testing.T) {
	Run(t, openLWWModel, MissingExpire, MissingNewestID)
}

// TestLWWModel checks what the LWWModel has and the Model has not.
func TestLWWModel(t *testing.T) {
	ctx := t.Context()
	clk := clock.NewSimulated(day0)
	m := NewLWWModel(TestSettings(), nil, clk)
	other := m.Session(clk)
	part := storage.IndexPartition{SliceKey: rawSlice(0)}
	mark := func(due int64) *storage.Batch {
		return &storage.Batch{Marks: []storage.PlacedMark{{Partition: part, Mark: storage.Mark{TimeMs: at(0), DueMs: due}}}}
	}
	lease, err := m.AcquireShard(ctx, 0, "a", 1)
	require.NoError(t, err)

	// A process that has not seen the fence, and whose clock is equal to it, writes at the same
	// timestamp; the delete wins.
	require.NoError(t, other.Write(ctx, mark(1)))
	require.NoError(t, m.DeleteMarks(ctx, lease.Fence, part, []storage.Mark{{TimeMs: at(0)}}))
	require.Empty(t, all(t, m.Marks(ctx, part, storage.MarkKey{}, 0)))
	// What that process writes later is there, and no delete with the old fence removes it.
	require.NoError(t, other.Write(ctx, mark(2)))
	require.NoError(t, m.DeleteMarks(ctx, lease.Fence, part, []storage.Mark{{TimeMs: at(0)}}))
	require.Len(t, all(t, m.Marks(ctx, part, storage.MarkKey{}, 0)), 1)

	// A delete of a partition hides what arrives later with a lower timestamp.
	key := storage.CacheKey{SliceKey: rawSlice(0)}
	chunk := func(f storage.Fence) *storage.Batch {
		return &storage.Batch{Fence: f, Cache: []storage.CacheChunk{{CacheKey: key, Chunk: storage.Chunk{Data: []byte{1}}}}}
	}
	newer, err := m.AcquireShard(ctx, 0, "a", 1)
	require.NoError(t, err)
	require.NoError(t, m.DeleteCacheBlock(ctx, newer.Fence, key))
	require.NoError(t, m.Write(ctx, chunk(lease.Fence)))
	found, err := m.CacheBlock(ctx, key)
	require.NoError(t, err)
	require.Empty(t, found)

	// Two writes with one fence: in each cell the greater value wins.
	row := func(count uint64, low float64) []metric.RollupRow {
		return []metric.RollupRow{{Schedule: 1, TimeMs: at(0), Rollup: metric.Rollup{Count: count, Min: low}}}
	}
	require.NoError(t, m.WriteRollups(ctx, newer.Fence, 1, row(1, 7)))
	require.NoError(t, m.WriteRollups(ctx, newer.Fence, 1, row(2, 5)))
	require.NoError(t, m.WriteRollups(ctx, lease.Fence, 1, row(9, 9)))
	seq := m.Rollups(ctx, 1, blocks.Range{End: 10}, at(0), at(1))
	require.Equal(t, row(2, 7), all(t, seq))
}
