package cache_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestMendOfASliceThatIsGround: a clock that is behind the others takes a slice for open that
// others have ground. Chunks that are then written again get a late mark, even if the others finish
// the slice only during the write.
func TestMendOfASliceThatIsGround(t *testing.T) {
	for name, during := range map[string]bool{"before": false, "meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			c, store, _ := setUp(4)
			w := cache.NewWriter(c)
			g := []cache.Group{group(eleven, blocks.Of(4, 4), 1)}
			require.NoError(t, w.Flush(t.Context(), g))
			store.Fail("Write", blocks.Range{}, 1, storage.ErrTimeout)
			require.ErrorIs(t, w.Flush(t.Context(), g), storage.ErrTimeout)
			ground := func() error {
				k := storage.SliceKey{StartMs: eleven.UnixMilli()}
				if err := store.DeleteMarks(t.Context(), 0, storage.IndexPartition{SliceKey: k}, marksOf(t, store, eleven)); err != nil {
					return err
				}
				return store.CompleteSlice(t.Context(), k)
			}
			if during {
				store.Add(storagetest.Rule{Op: "Write", Times: 1, After: ground})
			} else {
				require.NoError(t, ground())
			}
			require.NoError(t, w.Settle(t.Context()))
			require.Equal(t, 2, rawOf(t, store, blocks.Of(4, 4), eleven))
			require.Empty(t, marksOf(t, store, eleven), "nobody looks there again")
			marks := marksOf(t, store, eleven.Add(time.Hour))
			require.Len(t, marks, 1)
			require.Equal(t, storage.MarkLate, marks[0].Kind)
			require.Equal(t, eleven.UnixMilli(), marks[0].TimeMs)

			// Later data for the slice gets a late mark too.
			require.NoError(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(0, 4), 1)}))
			require.Len(t, marksOf(t, store, eleven.Add(time.Hour)), 2)
		})
	}
}

// TestSealOfASliceThatIsGround: a slice that is ground is not sealed. If that shows only after the
// seal, the marks are taken back.
func TestSealOfASliceThatIsGround(t *testing.T) {
	for name, during := range map[string]bool{"before": false, "meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			require.NoError(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(4, 4), 1)}))
			clk.Set(eleven.Add(time.Hour + time.Minute)) // closed, and not yet due
			ground := func() error {
				k := storage.SliceKey{StartMs: eleven.UnixMilli()}
				if err := store.DeleteMarks(t.Context(), 0, storage.IndexPartition{SliceKey: k}, marksOf(t, store, eleven)); err != nil {
					return err
				}
				return store.CompleteSlice(t.Context(), k)
			}
			if during {
				store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: ground})
			} else {
				require.NoError(t, ground())
			}
			require.NoError(t, w.Seal(t.Context()))
			require.Empty(t, marksOf(t, store, eleven))
			for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
				require.Equal(t, metric.ScheduleID(4), m.Start)
				require.Equal(t, storage.MarkLate, m.Kind)
			}
		})
	}
}
