package rollup_test

import (
	"context"
	"iter"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// join returns another worker on the store, after its first heartbeat.
func join(t *testing.T, store *storagetest.Faulty, clk clock.Clock, id string) *rollup.Runner {
	t.Helper()
	e := worker(store, clk, 7, storage.Worker{ID: id, Aggregates: true}, rollup.Options{})
	require.NoError(t, e.Member.Beat(t.Context()))
	return e.Runner
}

// TestTwoWorkers: two workers share a slice. Each grinds its own shards, no block is read twice,
// and the one that ends last completes the slice.
func TestTwoWorkers(t *testing.T) {
	_, store, clk, k := setUp(t, 400, rollup.Options{})
	a, b := join(t, store, clk, "a"), join(t, store, clk, "b")
	first, err := a.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	require.Empty(t, first.Err)
	require.True(t, open(t, store, k))

	again, err := a.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	require.Zero(t, again.Blocks)
	require.Equal(t, 1, again.IndexQueries, "it looks at what is not its own, and no more")

	second, err := b.Run(t.Context(), k)
	require.NoError(t, err)
	require.False(t, open(t, store, k))
	require.Len(t, rows(t, store), 400)
	require.Positive(t, first.Blocks)
	require.Positive(t, second.Blocks)
	require.Equal(t, 100, first.Blocks+second.Blocks)
	require.Equal(t, 100, first.BlockQueries+second.BlockQueries)

	runs, err := storage.RecentRuns(t.Context(), store, 10)
	require.NoError(t, err)
	require.Len(t, runs, 2, "each of its own part")
	leases, err := store.Leases(t.Context())
	require.NoError(t, err)
	require.Empty(t, leases)
}

// TestWorkersDoNotWaitForEachOther: a writer that stalled and died left marks after two workers had
// each ended their shards. The workers do not wait for each other for ever.
func TestWorkersDoNotWaitForEachOther(t *testing.T) {
	_, store, clk, k := setUp(t, 40, rollup.Options{})
	a, b := join(t, store, clk, "a"), join(t, store, clk, "b")
	store.Add(storagetest.Rule{Op: "ReleaseShard", Times: 2, After: func() error {
		stray := &storage.Batch{}
		for shard := range 2 {
			stray.Marks = append(stray.Marks, storage.PlacedMark{
				Partition: storage.IndexPartition{SliceKey: k, Shard: shard},
				Mark:      storage.Mark{TimeMs: k.StartMs, Kind: storage.MarkOpen, DueMs: clk.Now().UnixMilli()},
			})
		}
		return store.Write(t.Context(), stray)
	}})
	err := rollup.ErrShared
	for n := 0; err != nil; n++ {
		require.ErrorIs(t, err, rollup.ErrShared)
		require.Less(t, n, 100, "each waits for the other")
		if _, err = a.Run(t.Context(), k); err != nil {
			_, err = b.Run(t.Context(), k)
		}
	}
	require.Len(t, rows(t, store), 40)
	require.False(t, open(t, store, k))
}

// looks records from which mark the shards of others are searched.
type looks struct {
	storage.Store
	from []storage.MarkKey
}

func (l *looks) Marks(ctx context.Context, p storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error] {
	if most > 0 {
		l.from = append(l.from, from)
	}
	return l.Store.Marks(ctx, p, from, most)
}

// TestLooksGoOn: a worker that waits for another continues its look from the last mark that it has
// seen, until that mark is gone. So marks deleted before it cost nothing.
func TestLooksGoOn(t *testing.T) {
	_, store, clk, k := setUp(t, 400, rollup.Options{})
	l := &looks{Store: store}
	start := func(id string, s storage.Store) *rollup.Runner {
		e := worker(s, clk, 8, storage.Worker{ID: id, Aggregates: true}, rollup.Options{Parallel: 1})
		require.NoError(t, e.Member.Beat(t.Context()))
		return e.Runner
	}
	a, b := start("a", l), start("b", store)
	wait := func() error {
		_, err := a.Run(t.Context(), k)
		require.ErrorIs(t, err, rollup.ErrShared)
		return nil
	}
	require.NoError(t, wait())
	require.NoError(t, wait())
	require.NotZero(t, l.from[1])
	require.NoError(t, wait())
	require.Equal(t, l.from[1], l.from[2], "it is still there")

	var seen []storage.MarkKey
	store.Add(storagetest.Rule{Op: "DeleteMarks", Times: 20, Before: func() error {
		seen = append(seen, l.from[len(l.from)-1])
		return wait()
	}})
	_, err := b.Run(t.Context(), k)
	require.NoError(t, err)
	require.True(t, slices.IsSortedFunc(seen, storage.MarkKey.Compare))
	require.Greater(t, len(slices.Compact(seen)), 5)
	require.Len(t, rows(t, store), 400)
	require.False(t, open(t, store, k))
}

// TestUnfitWorker: a worker whose clock or settings are wrong grinds nothing, and that is no failed run.
func TestUnfitWorker(t *testing.T) {
	_, store, clk, k := setUp(t, 40, rollup.Options{})
	e := worker(store, clk, 7, storage.Worker{ID: "unfit", Aggregates: true}, rollup.Options{})
	store.Fail("CheckFit", blocks.Range{}, 1, storage.ErrSettings)
	require.ErrorIs(t, e.Member.Beat(t.Context()), storage.ErrSettings)
	_, err := e.Runner.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	require.Empty(t, rows(t, store))
	runs, err := storage.RecentRuns(t.Context(), store, 10)
	require.NoError(t, err)
	require.Empty(t, runs)
}

// TestSliceCompletedMeanwhile: a worker finds a slice due, waits for a lease, and meanwhile others
// complete the slice. It then leaves the slice alone: marks in it came too late, and the slices
// around it may have been run.
func TestSliceCompletedMeanwhile(t *testing.T) {
	one, store, clk, k := setUp(t, 40, rollup.Options{})
	waited := false
	store.Add(storagetest.Rule{Op: "AcquireShard", Times: 1, Before: func() error {
		waited = true
		_, err := worker(store, clk, 7, storage.Worker{ID: "other"}, rollup.Options{}).Runner.Run(t.Context(), k)
		require.NoError(t, err)
		// A stalled writer, which deletes its mark in a moment.
		return store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{k}, Marks: []storage.PlacedMark{
			{Partition: storage.IndexPartition{SliceKey: k}, Mark: storage.Mark{TimeMs: k.StartMs, Kind: storage.MarkOpen}},
		}})
	}})
	rec, err := one.Run(t.Context(), k)
	require.NoError(t, err)
	require.True(t, waited)
	require.Zero(t, rec.Blocks)
}

// TestFencesAheadOfTheClock: a worker with its clock ahead for a moment took a lease, so later
// fences are ahead too. Even so, what ingest writes is deleted once it is ground, and two workers
// come to an end.
func TestFencesAheadOfTheClock(t *testing.T) {
	clk := clock.NewSimulated(hour.Add(30 * time.Minute))
	place := storagetest.NewLWWModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 16, IndexPartitions: 2, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk)
	ahead := place.Session(clock.NewSimulated(hour.Add(10 * time.Hour)))
	require.NoError(t, ahead.Write(t.Context(), &storage.Batch{Marks: []storage.PlacedMark{{}}})) // fences lie above what their process wrote
	lease, err := ahead.AcquireShard(t.Context(), 0, "ahead", time.Second)
	require.NoError(t, err)
	require.Greater(t, int64(lease.Fence), hour.Add(9*time.Hour).UnixMicro())
	require.NoError(t, ahead.ReleaseShard(t.Context(), 0, "ahead"))

	slice := metric.DefaultLadder().SliceAt(metric.Raw, hour.UnixMilli())
	w := cache.NewWriter(cache.New(place.Session(clk), clk, 1, cache.DefaultTiming()))
	for i := range 100 {
		id := metric.ScheduleID(i)
		require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{{Slice: slice, Block: blocks.BlockAt(id, 4), Samples: []metric.Sample{
			{Schedule: id, TimeMs: hour.UnixMilli(), Value: 1},
		}}}))
	}
	clk.Set(hour.Add(time.Hour + 2*time.Minute))
	a := join(t, storagetest.NewFaulty(place.Session(clk)), clk, "a")
	b := join(t, storagetest.NewFaulty(place.Session(clk)), clk, "b")
	k := storage.SliceKey{StartMs: hour.UnixMilli()}
	_, err = a.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	_, err = b.Run(t.Context(), k)
	require.NoError(t, err)
	require.Len(t, rows(t, place), 100)
	for shard := range 2 {
		for m, err := range place.Marks(t.Context(), storage.IndexPartition{SliceKey: k, Shard: shard}, storage.MarkKey{}, 0) {
			require.NoError(t, err)
			require.Fail(t, "a mark is left", "of block %d", m.Start)
		}
	}
}

// TestLookBeforeTheBeginning: a worker without shards looks at a slice before anybody has begun it, by a clock that is
// ahead, and finds no mark in one shard. Marks come there afterwards, since the slice is not over. The worker must not
// complete the slice by what it saw.
func TestLookBeforeTheBeginning(t *testing.T) {
	_, store, clk, k := setUp(t, 4, rollup.Options{})
	all, idle := []storage.Worker{{ID: "all", Aggregates: true}}, "idle"
	for slices.Contains(shards.Assign(append(all, storage.Worker{ID: idle, Aggregates: true}), 2), idle) {
		idle += "+"
	}
	join(t, store, clk, "all")
	r := join(t, store, clk, idle)
	_, err := r.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)

	begins := clk.Now()
	clk.Set(hour.Add(40 * time.Minute)) // the right time
	first, other := blocks.ShardOf(0, 2), metric.ScheduleID(4)
	for blocks.ShardOf(other, 2) == first {
		other += 4
	}
	c := cache.New(store, clk, 2, cache.DefaultTiming())
	require.NoError(t, cache.NewWriter(c).Flush(t.Context(), []cache.BlockSamples{{
		Slice: metric.DefaultLadder().SliceAt(metric.Raw, k.StartMs), Block: blocks.BlockAt(other, 4),
		Samples: []metric.Sample{{Schedule: other, TimeMs: k.StartMs + 1}},
	}}))
	clk.Set(begins)
	require.NoError(t, store.BeginSlice(t.Context(), k)) // as the other worker does, which is done with one of its shards
	p := storage.IndexPartition{SliceKey: k, Shard: first}
	var done []storage.Mark
	for m, err := range store.Marks(t.Context(), p, storage.MarkKey{}, 0) {
		require.NoError(t, err)
		done = append(done, m)
	}
	require.NoError(t, store.DeleteMarks(t.Context(), 0, p, done))
	_, err = r.Run(t.Context(), k)
	require.ErrorIs(t, err, rollup.ErrShared)
	require.True(t, open(t, store, k))
}
