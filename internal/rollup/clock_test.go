package rollup_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func marks(t *testing.T, s storage.Store, k storage.SliceKey) (n int) {
	t.Helper()
	for shard := range s.Settings().IndexPartitions {
		for _, err := range s.Marks(t.Context(), storage.IndexPartition{SliceKey: k, Shard: shard}) {
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
				asked++
				return refuses
			}})
			clk.Jump(9 * 24 * time.Hour)
			_, err := r.RunDue(t.Context())
			before := asked
			require.Positive(t, before)
			runs, rerr := store.RecentRuns(t.Context(), 100)
			require.NoError(t, rerr)
			if refuses == nil {
				require.NoError(t, err)
				require.Equal(t, 20, before, "for each block")
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
			_, err = r.RunDue(t.Context())
			require.NoError(t, err)
			require.Len(t, rows(t, store), 80)
			require.False(t, open(t, store, k))
			require.Equal(t, before, asked, "not where nothing is dropped")
		})
	}
}

// TestClockIsSetDuringARun: the rest of the run is not done by the new time. The next run does it.
func TestClockIsSetDuringARun(t *testing.T) {
	for name, by := range map[string]time.Duration{"ahead": 9 * 24 * time.Hour, "back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			r, store, clk, k := setUp(t, 80, rollup.Options{Parallel: 1})
			require.NoError(t, store.SetPolicy(t.Context(), storage.Policy{Retention: storage.Retention{48 * time.Hour}}))
			ground := 0
			store.Add(storagetest.Rule{Op: "WriteRollups", Times: -1, After: func() error {
				if ground++; ground == 5 {
					clk.Jump(by)
				}
				return nil
			}})
			_, err := r.RunDue(t.Context())
			require.ErrorContains(t, err, "the clock was set by "+by.String())
			require.Equal(t, 5, ground)
			require.Len(t, rows(t, store), 20)
			require.True(t, open(t, store, k))
			clk.Jump(-by)
			_, err = r.RunDue(t.Context())
			require.NoError(t, err)
			require.Len(t, rows(t, store), 80)
			require.False(t, open(t, store, k))
		})
	}
}
