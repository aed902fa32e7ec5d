package cache_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
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
			late := func() map[metric.ScheduleID]bool {
				blocks := make(map[metric.ScheduleID]bool)
				for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
					require.Equal(t, storage.MarkLate, m.Kind)
					require.Equal(t, eleven.UnixMilli(), m.TimeMs)
					blocks[m.Start] = true
				}
				return blocks
			}
			require.Equal(t, map[metric.ScheduleID]bool{4: true}, late())

			// Later data for the slice gets a late mark too.
			require.NoError(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(0, 4), 1)}))
			require.Equal(t, map[metric.ScheduleID]bool{0: true, 4: true}, late())
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

// What this process has marked in a slice that others have ground long before it is over is marked late, whether it looks
// every second, when it seals, or never before the slice is due: what was late there, too, and what was opened after they had read the marks.
func TestGroundBeforeItIsOver(t *testing.T) {
	for name, look := range map[string]func(*cache.Writer, *clock.Simulated) error{
		"settle": func(w *cache.Writer, _ *clock.Simulated) error { return w.Settle(t.Context()) },
		"seal":   func(w *cache.Writer, _ *clock.Simulated) error { return w.Seal(t.Context()) },
		"sealed when it is closed": func(w *cache.Writer, clk *clock.Simulated) error {
			clk.Set(eleven.Add(time.Hour + time.Minute))
			return w.Seal(t.Context())
		},
		"due": func(w *cache.Writer, clk *clock.Simulated) error {
			clk.Set(eleven.Add(time.Hour + 2*time.Minute))
			return errors.Join(w.Flush(t.Context(), []cache.Group{group(eleven.Add(time.Hour), blocks.Of(16, 4), 1)}), w.Settle(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			before := eleven.Add(-3 * time.Hour)
			flush := func(hour time.Time, start metric.ScheduleID) {
				require.NoError(t, w.Flush(t.Context(), []cache.Group{group(hour, blocks.Of(start, 4), 1)}))
			}
			flush(eleven, 4)
			flush(before, 8)
			k := storage.SliceKey{StartMs: eleven.UnixMilli()}
			require.NoError(t, store.DeleteMarks(t.Context(), 0, storage.IndexPartition{SliceKey: k}, marksOf(t, store, eleven)))
			require.NoError(t, store.CompleteSlice(t.Context(), k))
			flush(eleven, 4)
			flush(before, 8)
			flush(eleven, 12)
			require.NoError(t, look(w, clk))
			require.Empty(t, marksOf(t, store, eleven), "nobody looks there again")
			type late struct {
				hour  int64
				start metric.ScheduleID
			}
			got := make(map[late]bool)
			for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
				if m.Kind == storage.MarkLate {
					got[late{m.TimeMs, m.Start}] = true
					require.Equal(t, m.TimeMs == eleven.UnixMilli(), len(m.Schedules) == 0, "whole blocks, but what was late before")
				}
			}
			require.Equal(t, map[late]bool{{k.StartMs, 4}: true, {k.StartMs, 12}: true, {before.UnixMilli(), 8}: true}, got)

			// Once.
			n := len(marksOf(t, store, eleven.Add(time.Hour)))
			require.NoError(t, w.Settle(t.Context()))
			require.False(t, w.Owes())
			require.Len(t, marksOf(t, store, eleven.Add(time.Hour)), n)
		})
	}
}

// While the store cannot be asked, or takes nothing, what is to be marked late is not forgotten, also when the slice is long due.
func TestGroundBeforeItIsOverAndAway(t *testing.T) {
	for _, op := range []string{"Slices", "Write"} {
		t.Run(op, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			require.NoError(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(4, 4), 1)}))
			k := storage.SliceKey{StartMs: eleven.UnixMilli()}
			require.NoError(t, store.DeleteMarks(t.Context(), 0, storage.IndexPartition{SliceKey: k}, marksOf(t, store, eleven)))
			require.NoError(t, store.CompleteSlice(t.Context(), k))
			require.NoError(t, w.Flush(t.Context(), []cache.Group{group(eleven, blocks.Of(4, 4), 1)}))
			gone := true
			store.Add(storagetest.Rule{Op: op, Times: -1, Before: func() error {
				if gone {
					return storage.ErrUnavailable
				}
				return nil
			}})
			for _, after := range []time.Duration{61 * time.Minute, 63 * time.Minute} {
				clk.Set(eleven.Add(after))
				require.ErrorIs(t, w.Settle(t.Context()), storage.ErrUnavailable)
				require.ErrorIs(t, w.Seal(t.Context()), storage.ErrUnavailable)
				require.Equal(t, op == "Write", w.Owes())
			}
			require.Error(t, w.Flush(t.Context(), []cache.Group{group(eleven.Add(time.Hour), blocks.Of(4, 4), 1)}))
			gone = false
			require.NoError(t, w.Settle(t.Context()))
			var late []int64
			for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
				if m.Kind == storage.MarkLate && m.Start == 4 {
					late = append(late, m.TimeMs)
				}
			}
			require.Contains(t, late, k.StartMs)
		})
	}
}

// A run that was begun before the slice was over, and aborted, has deleted marks of a slice that stays open. Sealing writes them
// again: those of late data too, and of blocks whose cache is not to be used.
func TestSealAfterAnAbortedRun(t *testing.T) {
	c, store, clk := setUp(4)
	w := cache.NewWriter(c)
	before := eleven.Add(-3 * time.Hour)
	all := []cache.Group{group(eleven, blocks.Of(0, 4), 1), group(eleven, blocks.Of(4, 4), 1), group(before, blocks.Of(8, 4), 1)}
	require.NoError(t, w.Flush(t.Context(), all))
	store.Fail("Write", blocks.Of(4, 4), 1, storage.ErrTimeout)
	require.ErrorIs(t, w.Flush(t.Context(), all[1:2]), storage.ErrTimeout)
	require.NoError(t, w.Settle(t.Context()))
	k := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: eleven.UnixMilli()}}
	require.NoError(t, store.DeleteMarks(t.Context(), 0, k, marksOf(t, store, eleven)))
	require.NoError(t, w.Flush(t.Context(), all))
	require.Empty(t, marksOf(t, store, eleven), "each is known to be there")
	clk.Set(eleven.Add(time.Hour + time.Minute))
	require.NoError(t, w.Seal(t.Context()))
	kinds := make(map[metric.ScheduleID]storage.MarkKind)
	for _, m := range marksOf(t, store, eleven) {
		kinds[m.Start] = m.Kind
	}
	require.Equal(t, map[metric.ScheduleID]storage.MarkKind{0: storage.MarkFresh, 4: storage.MarkOpen, 8: storage.MarkLate}, kinds)
}
