package rollup_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
)

var errAway = fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)

// A block whose data is out of reach is put off, and holds up no other.
func TestBlockOutOfReachIsPutOff(t *testing.T) {
	for _, op := range []string{"RawChunks", "WriteRollups", "DeleteCacheBlock"} {
		t.Run(op, func(t *testing.T) {
			r, store, clk, k := setUp(t, 80, rollup.Options{})
			store.Fail(op, blocks.Of(8, 4), -1, errAway)
			n, err := r.RunDue(t.Context())
			require.NoError(t, err)
			require.Equal(t, 1, n)
			require.False(t, open(t, store, k))
			runs, err := store.RecentRuns(t.Context(), 1)
			require.NoError(t, err)
			require.Equal(t, 1, runs[0].Rescheduled)
			require.Equal(t, 19, runs[0].Blocks)

			store.Heal()
			clk.Set(clk.Now().Add(time.Hour))
			_, err = r.RunDue(t.Context())
			require.NoError(t, err)
			require.Len(t, rows(t, store), 80)
		})
	}
}

// Where its mark cannot be put off either, it stays, and the slice stays open. Other blocks, slices and shards go on.
func TestBlockThatCannotBePutOffIsLeft(t *testing.T) {
	r, store, clk, k := setUp(t, 80, rollup.Options{})
	bad := blocks.Of(8, 4)
	store.Fail("WriteRollups", bad, -1, errAway)
	store.Fail("Write", bad, -1, errAway)
	next := storage.SliceKey{StartMs: hour.Add(time.Hour).UnixMilli()}
	require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{next}}))
	clk.Set(clk.Now().Add(time.Hour))

	n, err := r.RunDue(t.Context())
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.ErrorContains(t, err, "is left for a later run")
	require.Equal(t, 1, n, "the slice after it")
	require.True(t, open(t, store, k))
	require.False(t, open(t, store, next))
	require.Len(t, rows(t, store), 76)
	var marks []storage.Mark
	for shard := range 2 {
		for m, err := range store.Marks(t.Context(), storage.IndexPartition{SliceKey: k, Shard: shard}) {
			require.NoError(t, err)
			marks = append(marks, m)
		}
	}
	require.Len(t, marks, 1)
	require.Equal(t, bad.Start, marks[0].Start)

	store.Heal()
	_, err = r.RunDue(t.Context())
	require.NoError(t, err)
	require.False(t, open(t, store, k))
	require.Len(t, rows(t, store), 80)
}

// A shard whose index is out of reach leaves the slice open, and the other shard is ground.
func TestIndexOutOfReach(t *testing.T) {
	r, store, _, k := setUp(t, 80, rollup.Options{Parallel: 1})
	store.Fail("Marks", blocks.Range{}, 1, errAway)
	_, err := r.Run(t.Context(), k)
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.True(t, open(t, store, k))
	require.NotEmpty(t, rows(t, store))
	require.Less(t, len(rows(t, store)), 80)
	_, err = r.Run(t.Context(), k)
	require.NoError(t, err)
	require.Len(t, rows(t, store), 80)
}

// Where nothing is in reach, a run ends after a few blocks, however many there are.
func TestStoreThatIsAwayIsNotHammered(t *testing.T) {
	cost := func(series int) int {
		r, store, _, k := setUp(t, series, rollup.Options{Parallel: 2})
		all := blocks.Range{End: 1 << 20}
		for _, op := range []string{"CacheBlock", "RawChunks", "Write"} {
			store.Fail(op, all, -1, errAway)
		}
		store.Forget()
		_, err := r.Run(t.Context(), k)
		require.ErrorIs(t, err, storage.ErrUnavailable)
		require.True(t, open(t, store, k))
		return store.Count("RawChunks") + store.Count("Write")
	}
	require.Less(t, cost(4000), 2*cost(200))
}
