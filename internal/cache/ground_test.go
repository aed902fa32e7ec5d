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

// grindEleven does at the store what a run of the hour does in the end: it deletes the marks and
// completes the slice.
func grindEleven(t *testing.T, s storage.Store) error {
	t.Helper()
	k := storage.SliceKey{StartMs: eleven.UnixMilli()}
	if err := s.DeleteMarks(t.Context(), 0, storage.IndexPartition{SliceKey: k}, marksOf(t, s, eleven)); err != nil {
		return err
	}
	return s.CompleteSlice(t.Context(), k)
}

// TestRetryInASliceThatIsGround: a clock that is behind the others takes a slice for open that
// others have ground. Chunks that are then written again get a late mark, even if the others finish
// the slice only during the write.
func TestRetryInASliceThatIsGround(t *testing.T) {
	for name, during := range map[string]bool{"before": false, "meanwhile": true} {
		t.Run(name, func(t *testing.T) {
			c, store, _ := setUp(4)
			w := cache.NewWriter(c)
			g := []cache.BlockSamples{group(eleven, blocks.BlockAt(4, 4), 1)}
			require.NoError(t, w.Flush(t.Context(), g))
			store.Fail("Write", blocks.Range{}, 1, storage.ErrTimeout)
			require.ErrorIs(t, w.Flush(t.Context(), g), storage.ErrTimeout)
			if during {
				store.Add(storagetest.Rule{Op: "Write", Times: 1, After: func() error { return grindEleven(t, store) }})
			} else {
				require.NoError(t, grindEleven(t, store))
			}
			require.NoError(t, w.Settle(t.Context()))
			require.Equal(t, 2, rawOf(t, store, blocks.BlockAt(4, 4), eleven))
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
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1)}))
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
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(4, 4), 1)}))
			clk.Set(eleven.Add(time.Hour + time.Minute)) // closed, and not yet due
			if during {
				store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error { return grindEleven(t, store) }})
			} else {
				require.NoError(t, grindEleven(t, store))
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

// What this process has marked in a slice that others have ground long before it is over is marked late, whether it
// looks every second, when it seals, or never before the slice is due: what was late there, too, and what was opened
// after they had read the marks.
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
			return errors.Join(w.Flush(t.Context(), []cache.BlockSamples{group(eleven.Add(time.Hour), blocks.BlockAt(16, 4), 1)}), w.Settle(t.Context()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			before := eleven.Add(-3 * time.Hour)
			flush := func(hour time.Time, start metric.ScheduleID) {
				require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(hour, blocks.BlockAt(start, 4), 1)}))
			}
			flush(eleven, 4)
			flush(before, 8)
			require.NoError(t, grindEleven(t, store))
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
			require.Equal(t, map[late]bool{{eleven.UnixMilli(), 4}: true, {eleven.UnixMilli(), 12}: true, {before.UnixMilli(), 8}: true}, got)

			// Once.
			n := len(marksOf(t, store, eleven.Add(time.Hour)))
			require.NoError(t, w.Settle(t.Context()))
			require.False(t, w.Owes())
			require.Len(t, marksOf(t, store, eleven.Add(time.Hour)), n)
		})
	}
}

// While the store cannot be asked, or takes nothing, what is to be marked late is not forgotten, also when the slice is
// long due.
func TestGroundBeforeItIsOverAndAway(t *testing.T) {
	for _, op := range []string{"Slices", "Write"} {
		t.Run(op, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(4, 4), 1)}))
			require.NoError(t, grindEleven(t, store))
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(4, 4), 1)}))
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
			require.Error(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven.Add(time.Hour), blocks.BlockAt(4, 4), 1)}))
			gone = false
			require.NoError(t, w.Settle(t.Context()))
			var late []int64
			for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
				if m.Kind == storage.MarkLate && m.Start == 4 {
					late = append(late, m.TimeMs)
				}
			}
			require.Contains(t, late, eleven.UnixMilli())
		})
	}
}

// TestGroundBeforeItIsOverInPart: a late mark that the store does not accept delays its own block only.
func TestGroundBeforeItIsOverInPart(t *testing.T) {
	w, store, _ := refusing()
	good, bad := blocks.BlockAt(0, 4), blocks.BlockAt(4, 4)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, good, 1), group(eleven, bad, 1)}))
	require.NoError(t, store.CompleteSlice(t.Context(), storage.SliceKey{StartMs: eleven.UnixMilli()}))
	late := func() (starts []metric.ScheduleID) {
		for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
			starts = append(starts, m.Start)
		}
		return starts
	}
	store.Away(bad.Contains, errGone)
	for range 3 {
		require.ErrorIs(t, w.Settle(t.Context()), errGone)
		require.True(t, w.Owes())
		require.Equal(t, []metric.ScheduleID{good.Start}, late(), "once")
		marks := marksOf(t, store, eleven)
		require.Len(t, marks, 1)
		require.Equal(t, bad.Start, marks[0].Start)
	}
	store.Away(nil, nil)
	require.NoError(t, w.Settle(t.Context()))
	require.False(t, w.Owes())
	require.Equal(t, []metric.ScheduleID{good.Start, bad.Start}, late())
	require.Empty(t, marksOf(t, store, eleven))
}

// A run that began before the slice was over, and was aborted, has deleted marks of a slice that stays open. The next
// look finds that it has begun, and all blocks get late marks in a later slice, until that succeeds. The slice gets no
// more marks.
func TestAfterAnAbortedRun(t *testing.T) {
	c, store, _ := setUp(4)
	w := cache.NewWriter(c)
	before := eleven.Add(-3 * time.Hour)
	all := []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1), group(before, blocks.BlockAt(8, 4), 1)}
	require.NoError(t, w.Flush(t.Context(), all))
	k := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: eleven.UnixMilli()}}
	require.NoError(t, store.BeginSlice(t.Context(), k.SliceKey))
	require.NoError(t, store.DeleteMarks(t.Context(), 0, k, marksOf(t, store, eleven)))
	require.NoError(t, w.Flush(t.Context(), all))
	store.Fail("Write", blocks.Range{}, 1, storage.ErrUnavailable)
	require.ErrorIs(t, w.Settle(t.Context()), storage.ErrUnavailable)
	require.True(t, w.Owes())
	require.NoError(t, w.Settle(t.Context()))
	require.False(t, w.Owes())
	late := func() map[metric.ScheduleID]int64 {
		out := make(map[metric.ScheduleID]int64)
		for _, m := range marksOf(t, store, eleven.Add(time.Hour)) {
			require.Equal(t, storage.MarkLate, m.Kind)
			out[m.Start] = m.TimeMs
		}
		return out
	}
	require.Equal(t, map[metric.ScheduleID]int64{0: eleven.UnixMilli(), 8: before.UnixMilli()}, late())
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(4, 4), 1)}))
	require.Equal(t, map[metric.ScheduleID]int64{0: eleven.UnixMilli(), 4: eleven.UnixMilli(), 8: before.UnixMilli()}, late())
	require.Empty(t, marksOf(t, store, eleven))
}

// After a later slice was ground, by a clock that was ahead, blocks are not sealed: the run of that slice may have
// ground late data that the cache lacks. The same holds while nobody can say.
func TestSealBehindALaterRun(t *testing.T) {
	for name, tc := range map[string]struct {
		ahead time.Duration
		away  bool
		want  storage.MarkKind
	}{
		"none":           {0, false, storage.MarkFresh},
		"the next":       {time.Hour, false, storage.MarkOpen},
		"years later":    {5 * 365 * 24 * time.Hour, false, storage.MarkOpen},
		"out of reach":   {0, true, storage.MarkOpen},
		"the one before": {-time.Hour, false, storage.MarkFresh},
	} {
		t.Run(name, func(t *testing.T) {
			c, store, clk := setUp(4)
			w := cache.NewWriter(c)
			require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1)}))
			if tc.ahead != 0 {
				require.NoError(t, store.BeginSlice(t.Context(), storage.SliceKey{StartMs: eleven.Add(tc.ahead).UnixMilli()}))
			}
			if tc.away {
				store.Fail("NewestBegun", blocks.Range{}, 1, storage.ErrUnavailable)
			}
			clk.Set(eleven.Add(time.Hour + time.Minute))
			require.NoError(t, w.Seal(t.Context()))
			marks := marksOf(t, store, eleven)
			require.Len(t, marks, 1)
			require.Equal(t, tc.want, marks[0].Kind)
		})
	}
}

// TestSealThatCannotAsk: a seal whose question fails leaves its blocks open and says so.
func TestSealThatCannotAsk(t *testing.T) {
	c, store, clk := setUp(4)
	w := cache.NewWriter(c)
	require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{group(eleven, blocks.BlockAt(0, 4), 1)}))
	clk.Set(eleven.Add(time.Hour + time.Minute))
	store.Fail("NewestBegun", blocks.Range{}, 1, storage.ErrCorrupt)
	require.ErrorIs(t, w.Seal(t.Context()), storage.ErrCorrupt)
	require.Equal(t, storage.MarkOpen, marksOf(t, store, eleven)[0].Kind)
}
