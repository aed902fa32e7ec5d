package rollup_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

// TestSecondReadIsRecorded is invariant 6: a block whose cache lacks chunks that its marks count is
// read a second time, and the record says so.
func TestSecondReadIsRecorded(t *testing.T) {
	r, store, _, k := setUp(t, 16, rollup.Options{})
	sealed := &storage.Batch{}
	for shard := range 2 {
		p := storage.IndexPartition{SliceKey: k, Shard: shard}
		for m, err := range store.Marks(t.Context(), p) {
			require.NoError(t, err)
			m.Kind, m.Chunks = storage.MarkFresh, 1
			sealed.Marks = append(sealed.Marks, storage.PlacedMark{Partition: p, Mark: m})
		}
	}
	require.NoError(t, store.Write(t.Context(), sealed))
	lease, err := store.AcquireShard(t.Context(), 0, "one", 1)
	require.NoError(t, err)
	require.NoError(t, store.DeleteCacheBlock(t.Context(), lease.Fence, storage.CacheKey{SliceKey: k, Start: 4}))

	store.Forget()
	rec, err := r.Run(t.Context(), k)
	require.NoError(t, err)
	require.Equal(t, 4, rec.Blocks)
	require.Equal(t, 5, rec.BlockQueries)
	require.Equal(t, 4, store.Count("CacheBlock"))
	require.Equal(t, 1, store.Count("RawChunks"))
	require.Len(t, rows(t, store), 16)
}
