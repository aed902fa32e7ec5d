package rollup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func marks(t *testing.T, s storage.Store, k storage.SliceKey) (n int) {
	t.Helper()
	for shard := range s.Settings().IndexPartitions {
		for _, err := range s.Marks(t.Context(), storage.IndexPartition{SliceKey: k, Shard: shard}, storage.MarkKey{}, 0) {
			require.NoError(t, err)
			n++
		}
	}
	return n
}

// TestNothingIsDroppedUnfit: by the process's clock all input has expired, but the store does not
// confirm the clock. Each block is left, and ground when the clock is right. If the store confirms
// the clock, the blocks are dropped.
func TestNothingIsDroppedUnfit(t *testing.T) {
	for name, refuses := range map[string]error{"another clock": storage.ErrSettings, "no answer": storage.ErrUnavailable, "": nil} {
		t.Run(name, func(t *testing.T) {
			r, store, clk, k := setUp(t, 80, rollup.Options{Parallel: 1})
			require.NoError(t, store.SetPolicy(t.Context(), storage.Policy{Retention: storage.Retention{48 * time.Hour}}))
			asked := 0
			store.Add(storagetest.Rule{Op: "CheckFit", Times: -1, Before: func() error {
				if asked++; asked == 1 { // before the run
					return nil
				}
				return refuses
			}})
			clk.Jump(9 * 24 * time.Hour)
			_, err := r.RunDue(t.Context())
			require.Greater(t, asked, 1)
			runs, rerr := storage.RecentRuns(t.Context(), store, 100)
			require.NoError(t, rerr)
			if refuses == nil {
				require.NoError(t, err)
				require.Equal(t, 1+20+1, asked, "before and after the run, and for each block")
				require.Equal(t, 20, runs[len(runs)-1].Dropped)
				require.False(t, open(t, store, k))
				require.Zero(t, marks(t, store, k))
				return
			}
			require.ErrorIs(t, err, refuses)
			for _, run := range runs {
				require.Zero(t, run.Dropped)
			}
			require.True(t, open(t, store, k))
			require.Equal(t, 20, marks(t, store, k))
			require.Empty(t, rows(t, store))

			clk.Jump(-9 * 24 * time.Hour)
			asked, refuses = 0, nil
			n, err := r.RunDue(t.Context())
			require.NoError(t, err)
			require.Len(t, rows(t, store), 80)
			require.False(t, open(t, store, k))
			require.Equal(t, 2*n, asked, "not for blocks where nothing is dropped")
		})
	}
}

// TestClockAheadForAMoment: one reading of the clock during a run is nine days ahead, each reading
// in turn. Nothing is dropped, and the next run grinds what is left.
func TestClockAheadForAMoment(t *testing.T) {
	for n := 1; ; n++ {
		var clk *momentarily
		r, store, k := setUpClocked(t, 8, rollup.Options{Parallel: 1}, cache.DefaultTiming(), func(right *clock.Simulated) clock.Clock {
			clk = &momentarily{Simulated: right, left: n}
			return clk
		})
		require.NoError(t, store.SetPolicy(t.Context(), storage.Policy{Retention: storage.Retention{48 * time.Hour}}))
		if _, err := r.RunDue(t.Context()); err != nil {
			require.ErrorContains(t, err, "the clock was set")
		}
		if clk.left > 0 { // it was never ahead
			require.Greater(t, n, 10)
			return
		}
		_, err := r.RunDue(t.Context())
		require.NoError(t, err)
		runs, err := storage.RecentRuns(t.Context(), store, 100)
		require.NoError(t, err)
		for _, run := range runs {
			require.Zero(t, run.Dropped, "reading %d", n)
		}
		require.Len(t, rows(t, store), 8, "reading %d", n)
		require.False(t, open(t, store, k))
	}
}

// momentarily is a clock that is ahead at one reading: when left falls to 0.
type momentarily struct {
	*clock.Simulated
	left int
}

// Now implements clock.Clock.
func (m *momentarily) Now() time.Time {
	now := m.Simulated.Now()
	if m.left--; m.left == 0 {
		return now.Add(9 * 24 * time.Hour)
	}
	return now
}

// TestClockIsSetBackBeforeOrAfterARun: a clock that was ahead is put right when the slice has been chosen, or when its
// last block has been ground. The slice is not completed before it is due, nor after a step by which marks may have
// been put into it meanwhile.
func TestClockIsSetBackBeforeOrAfterARun(t *testing.T) {
	short := cache.Timing{Grace: 10 * time.Second, Delay: 30 * time.Second}
	for name, c := range map[string]struct {
		op     string
		at     int // the jump comes after so many of these
		back   time.Duration
		after  time.Duration // how long the slice is due
		timing cache.Timing
		ground int
		fails  string
	}{
		"chosen":                   {"CheckFit", 1, time.Hour, 0, cache.DefaultTiming(), 0, "the clock was set by -1h0m0s"},
		"chosen, by little":        {"CheckFit", 1, time.Second, 0, cache.DefaultTiming(), 0, "is not due at 2025-11-21T11:01:59Z"},
		"ground":                   {"DeleteMarks", 20, time.Minute, 0, cache.DefaultTiming(), 80, "is not due at 2025-11-21T11:01:00Z"},
		"ground, long due":         {"DeleteMarks", 20, time.Minute + time.Second, time.Hour, cache.DefaultTiming(), 80, "the clock was set by -1m1s"},
		"ground, a short delay":    {"DeleteMarks", 20, 21 * time.Second, time.Hour, short, 80, "the clock was set by -21s"},
		"ground, a shorter step":   {"DeleteMarks", 20, 20 * time.Second, time.Hour, short, 80, ""},
		"on the way, a short step": {"DeleteMarks", 5, 21 * time.Second, time.Hour, short, 20, "the clock was set by -21s"},
		"on the way, ahead":        {"DeleteMarks", 5, -9 * 24 * time.Hour, 0, cache.DefaultTiming(), 20, "the clock was set by 216h0m0s"},
	} {
		t.Run(name, func(t *testing.T) {
			r, store, clk, k := setUpTimed(t, 80, rollup.Options{Parallel: 1}, c.timing)
			require.NoError(t, store.SetPolicy(t.Context(), storage.Policy{Retention: storage.Retention{48 * time.Hour}}))
			clk.Set(clk.Now().Add(c.after))
			n := 0
			store.Add(storagetest.Rule{Op: c.op, Times: -1, After: func() error {
				if n++; n == c.at {
					clk.Jump(-c.back)
				}
				return nil
			}})
			_, err := r.RunDue(t.Context())
			require.Len(t, rows(t, store), c.ground)
			if c.fails == "" {
				require.NoError(t, err)
				require.False(t, open(t, store, k))
				return
			}
			require.ErrorContains(t, err, c.fails)
			require.True(t, open(t, store, k))
			clk.Jump(c.back)
			_, err = r.RunDue(t.Context())
			require.NoError(t, err)
			require.Len(t, rows(t, store), 80)
			require.False(t, open(t, store, k))
		})
	}
}
