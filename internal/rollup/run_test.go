package rollup_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// onRows calls f before rows are written.
func onRows(s *storagetest.Faulty, f func() error) {
	s.Add(storagetest.Rule{Op: "WriteRollups", Times: -1, Before: f})
}

var hour = time.Date(2025, time.November, 21, 10, 0, 0, 0, time.UTC)

// setUp returns a store with n schedules in blocks of 4, each with a sample in the hour, which is
// over.
func setUp(t *testing.T, n int, opts rollup.Options) (*rollup.Runner, *storagetest.Faulty, *clock.Simulated, storage.SliceKey) {
	t.Helper()
	return setUpTimed(t, n, opts, cache.DefaultTiming())
}

func setUpTimed(t *testing.T, n int, opts rollup.Options, timing cache.Timing) (*rollup.Runner, *storagetest.Faulty, *clock.Simulated, storage.SliceKey) {
	t.Helper()
	var clk *clock.Simulated
	r, store, k := setUpClocked(t, n, opts, timing, func(perRun *clock.Simulated) clock.Clock { clk = perRun; return perRun })
	return r, store, clk, k
}

// setUpClocked is like setUpTimed. The runner goes by the clock that runs returns.
func setUpClocked(
	t *testing.T, n int, opts rollup.Options, timing cache.Timing, runs func(*clock.Simulated) clock.Clock,
) (*rollup.Runner, *storagetest.Faulty, storage.SliceKey) {
	t.Helper()
	clk := clock.NewSimulated(hour.Add(30 * time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 16, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk))
	c := cache.New(store, clk, 1, timing)
	slice := metric.DefaultLadder().SliceAt(metric.Raw, hour.UnixMilli())
	var groups []cache.BlockSamples
	for i := range n {
		id := metric.ScheduleID(i)
		if i%4 == 0 {
			groups = append(groups, cache.BlockSamples{Slice: slice, Block: blocks.BlockAt(id, 4)})
		}
		g := &groups[len(groups)-1]
		g.Samples = append(g.Samples, metric.Sample{Schedule: id, TimeMs: hour.UnixMilli() + 1, Value: float64(i)})
	}
	require.NoError(t, cache.NewWriter(c).Flush(t.Context(), groups))
	clk.Set(hour.Add(time.Hour + timing.Delay))
	perRun := runs(clk)
	e := engine.New(engine.Options{
		Store: store, Clock: perRun, Policy: storage.Policy{Grace: timing.Grace, Delay: timing.Delay}, Writer: 1,
		Worker: storage.Worker{ID: "one"}, Rollup: &opts,
	})
	return e.Runner, store, storage.SliceKey{StartMs: hour.UnixMilli()}
}

// worker returns an engine that grinds over a store, with a number of its own as a writer.
func worker(store storage.Store, clk clock.Clock, writer uint64, self storage.Worker, opts rollup.Options) *engine.Engine {
	return engine.New(engine.Options{Store: store, Clock: clk, Writer: writer, Worker: self, Rollup: &opts})
}

func rows(t *testing.T, s storage.Store) []metric.RollupRow {
	t.Helper()
	var out []metric.RollupRow
	for r, err := range s.Rollups(t.Context(), 1, blocks.Range{End: 1 << 20}, 0, hour.AddDate(0, 0, 1).UnixMilli()) {
		require.NoError(t, err)
		out = append(out, r)
	}
	return out
}

func open(t *testing.T, s storage.Store, k storage.SliceKey) bool {
	t.Helper()
	states, err := s.Slices(t.Context(), k.Bucket, k.StartMs, k.StartMs+1)
	require.NoError(t, err)
	require.Len(t, states, 1)
	return !states[0].Complete
}

// TestBlocksSideBySide: blocks ground in parallel give the same result as in sequence, and the
// record counts all.
func TestBlocksSideBySide(t *testing.T) {
	for _, parallel := range []int{1, 2, 16} {
		r, store, _, k := setUp(t, 403, rollup.Options{Parallel: parallel})
		rec, err := r.Run(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, 101, rec.Blocks)
		require.Equal(t, 101, rec.BlockQueries)
		require.Equal(t, 403, rec.Schedules)
		got := rows(t, store)
		require.Len(t, got, 403)
		for i, row := range got {
			require.Equal(t, metric.ScheduleID(i), row.Schedule)
			require.InDelta(t, float64(i), row.Sum, 0)
		}
		require.False(t, open(t, store, k))
	}
}

// TestShardHeldByAnother: if another worker has the lease, nothing is read or written, and the
// slice stays open.
func TestShardHeldByAnother(t *testing.T) {
	r, store, clk, k := setUp(t, 8, rollup.Options{})
	for shard := range 2 {
		_, err := store.AcquireShard(t.Context(), shard, "two", time.Minute)
		require.NoError(t, err)
	}
	_, err := r.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	require.Empty(t, rows(t, store))
	require.True(t, open(t, store, k))
	runs, err := storage.RecentRuns(t.Context(), store, 10)
	require.NoError(t, err)
	require.Empty(t, runs, "waiting is no run")
	errs, err := storage.RecentErrors(t.Context(), store)
	require.NoError(t, err)
	require.Empty(t, errs, "nothing is wrong")

	// The other worker's lease expires.
	clk.Set(clk.Now().Add(2 * time.Minute))
	n, err := r.RunDue(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.Len(t, rows(t, store), 8)
}

// TestFencedOff: a run that is fenced off in the middle leaves the shard at once. It retries
// nothing and puts nothing off.
func TestFencedOff(t *testing.T) {
	r, store, clk, k := setUp(t, 8, rollup.Options{Parallel: 1})
	tries := 0
	onRows(store, func() error {
		if tries++; tries == 1 {
			clk.Set(clk.Now().Add(time.Hour)) // the lease has expired long ago
			for shard := range 2 {
				_, err := store.AcquireShard(t.Context(), shard, "two", time.Minute)
				require.NoError(t, err)
			}
		}
		return nil
	})
	rec, err := r.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	require.Equal(t, 1, tries)
	require.Zero(t, rec.Rescheduled)
	require.Empty(t, rows(t, store))
	require.True(t, open(t, store, k))
}

// TestCancelled: a stopped run is no failure to record, and the next run does the rest.
func TestCancelled(t *testing.T) {
	r, store, _, k := setUp(t, 80, rollup.Options{Parallel: 4})
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("shutting down")
	var n atomic.Int64
	onRows(store, func() error {
		if n.Add(1) == 3 {
			cancel(stop)
		}
		return nil
	})
	_, err := r.Run(ctx, k)
	require.ErrorIs(t, err, stop)
	require.True(t, open(t, store, k))
	runs, err := storage.RecentRuns(t.Context(), store, 10)
	require.NoError(t, err)
	require.Empty(t, runs)
	errs, err := storage.RecentErrors(t.Context(), store)
	require.NoError(t, err)
	require.Empty(t, errs)

	_, err = r.Run(t.Context(), k)
	require.NoError(t, err)
	require.Len(t, rows(t, store), 80)
	require.False(t, open(t, store, k))
}

// TestBlockPutOff: a failing block is tried as often as Attempts says, named among the errors, and
// put off. The record says so.
func TestBlockPutOff(t *testing.T) {
	r, store, _, k := setUp(t, 4, rollup.Options{Attempts: 5})
	tries := 0
	onRows(store, func() error { tries++; return fmt.Errorf("try %d", tries) })
	rec, err := r.Run(t.Context(), k)
	require.NoError(t, err)
	require.Equal(t, 5, tries)
	require.Equal(t, 1, rec.Rescheduled)
	require.False(t, open(t, store, k))
	errs, err := storage.RecentErrors(t.Context(), store)
	require.NoError(t, err)
	require.Len(t, errs, 1)
	require.Contains(t, errs[0].Message, "try 5")
	require.Equal(t, metric.ScheduleID(0), errs[0].Start)
	next := storage.SliceKey{StartMs: hour.Add(time.Hour).UnixMilli()}
	require.True(t, open(t, store, next))
}

// TestIndexIsReadAsBlocksAreGround is invariant 7: a run holds the marks of the blocks under way,
// and stops reading the index until there is room for more.
func TestIndexIsReadAsBlocksAreGround(t *testing.T) {
	r, store, _, k := setUp(t, 400, rollup.Options{Parallel: 2})
	var read, ground, ahead atomic.Int64
	store.Add(storagetest.Rule{Op: "Marks.next", Times: -1, After: func() error {
		read.Add(1)
		for d := read.Load() - ground.Load(); ; {
			most := ahead.Load()
			if d <= most || ahead.CompareAndSwap(most, d) {
				return nil
			}
		}
	}})
	onRows(store, func() error { ground.Add(1); return nil })
	_, err := r.Run(t.Context(), k)
	require.NoError(t, err)
	require.EqualValues(t, 100, ground.Load())
	require.EqualValues(t, 100, read.Load())
	// Two being ground, one about to be, one being collected, and the mark that ended it.
	require.LessOrEqual(t, ahead.Load(), int64(6))
}
