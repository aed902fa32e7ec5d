package rollup_test

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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

var errAway = fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)

// TestStoreThatIsAwayIsNotHammered: if nothing is available, a run ends after a few blocks, however
// many there are.
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

// part is a store with one index partition that cannot be read: reading fails with err, or returns
// damaged marks if err is nil.
type part struct {
	storage.Store

	at   storage.IndexPartition
	err  error
	back bool
}

func (p *part) Marks(ctx context.Context, at storage.IndexPartition, from storage.MarkKey, most int) iter.Seq2[storage.Mark, error] {
	marks := p.Store.Marks(ctx, at, from, most)
	if at != p.at || p.back {
		return marks
	}
	return func(yield func(storage.Mark, error) bool) {
		if p.err != nil {
			yield(storage.Mark{}, p.err)
			return
		}
		for m, err := range marks {
			if !yield(storage.DamagedMark(m.Key()), err) {
				return
			}
		}
	}
}

const hoursOfWorkers = 6

// workers are several workers on one store. 50 blocks have a sample in each of six hours, from ten
// on, all of which are over.
type workers struct {
	*testing.T
	store   *storagetest.Faulty
	clk     *clock.Simulated
	members []*shards.Member
	runners []*rollup.Runner
	reg     *prometheus.Registry
}

// startWorkers starts the named workers over a store that wrap changes.
func startWorkers(t *testing.T, names []string, wrap func(storage.Store) storage.Store) *workers {
	t.Helper()
	w := &workers{T: t, clk: clock.NewSimulated(hour.Add(30 * time.Minute)), reg: prometheus.NewRegistry()}
	w.store = storagetest.NewFaulty(wrap(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 16, IndexPartitions: 8, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, w.clk)))
	writer := cache.NewWriter(cache.New(w.store, w.clk, 1, cache.DefaultTiming()))
	for range hoursOfWorkers {
		s := metric.DefaultLadder().SliceAt(metric.Raw, w.clk.Now().UnixMilli())
		var groups []cache.BlockSamples
		for b := range 50 {
			id := metric.ScheduleID(4 * b)
			groups = append(groups, cache.BlockSamples{Slice: s, Block: blocks.BlockAt(id, 4), Samples: []metric.Sample{{Schedule: id, TimeMs: s.StartMs + 1, Value: 1}}})
		}
		require.NoError(t, writer.Flush(t.Context(), groups))
		w.clk.Set(w.clk.Now().Add(time.Hour))
	}
	for i, name := range names {
		opts := rollup.Options{Parallel: 1}
		if i == 0 {
			opts.Metrics = w.reg
		}
		e := worker(w.store, w.clk, uint64(i+2), storage.Worker{ID: name, Aggregates: true}, opts)
		w.members = append(w.members, e.Member)
		w.runners = append(w.runners, e.Runner)
	}
	w.beat()
	return w
}

func (w *workers) beat() {
	w.Helper()
	for _, m := range w.members {
		require.NoError(w, m.Beat(w.Context()))
	}
}

// pass makes each worker run what is due, and returns the error of the last one.
func (w *workers) pass() (err error) {
	w.Helper()
	w.beat()
	for _, r := range w.runners {
		_, err = r.RunDue(w.Context())
	}
	w.clk.Set(w.clk.Now().Add(time.Second))
	return err
}

// opened returns the hours that are not complete.
func (w *workers) opened() (out []int) {
	w.Helper()
	states, err := w.store.Slices(w.Context(), metric.Raw, 0, w.clk.Now().UnixMilli())
	require.NoError(w, err)
	require.Len(w, states, hoursOfWorkers)
	for i, s := range states {
		if !s.Complete {
			out = append(out, i)
		}
	}
	return out
}

// catchUp runs what is due until everything is ground.
func (w *workers) catchUp() {
	w.Helper()
	for range 3 {
		_ = w.pass()
	}
	require.NoError(w, w.pass())
	require.Empty(w, w.opened())
	require.Len(w, rows(w.T, w.store), 50*hoursOfWorkers)
}

var severalWorkers = [][]string{{"a"}, {"a", "b"}, {"a", "b", "c"}}

// TestWorkersAndAnIndexOutOfReach: however many workers there are, an unreadable index partition
// holds up only its own slice and the slices around it.
func TestWorkersAndAnIndexOutOfReach(t *testing.T) {
	gone := storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: hour.Add(time.Hour).UnixMilli()}, Shard: 3}
	for _, names := range severalWorkers {
		for _, why := range []error{errAway, storage.ErrTimeout, storage.ErrCorrupt} {
			t.Run(fmt.Sprintf("%d %v", len(names), why), func(t *testing.T) {
				var p *part
				w := startWorkers(t, names, func(s storage.Store) storage.Store { p = &part{Store: s, at: gone, err: why}; return p })
				for range 3 {
					require.ErrorIs(t, w.pass(), why)
				}
				require.Equal(t, []int{1}, w.opened())
				require.True(t, open(t, w.store, storage.SliceKey{Bucket: 1, StartMs: hour.Truncate(6 * time.Hour).UnixMilli()}), "the slice around it")
				got := len(rows(t, w.store))
				require.Greater(t, got, 50*(hoursOfWorkers-1), "its other shards are ground")
				require.Less(t, got, 50*hoursOfWorkers)

				p.back = true
				w.catchUp()
			})
		}
	}
}

// block is a store that accepts no rows of one block and hour, and no marks for them.
type block struct {
	storage.Store

	block blocks.Range
	ms    int64
	back  bool
}

func (b *block) WriteRollups(ctx context.Context, f storage.Fence, level metric.Bucket, rows []metric.RollupRow) error {
	for _, r := range rows {
		if level == 1 && b.block.Contains(r.Schedule) && r.TimeMs == b.ms && !b.back {
			return errAway
		}
	}
	return b.Store.WriteRollups(ctx, f, level, rows)
}

func (b *block) Write(ctx context.Context, batch *storage.Batch) error {
	for _, m := range batch.Marks {
		if m.Kind == storage.MarkRetry && b.block.Start == m.Start && m.TimeMs == b.ms && !b.back {
			return errAway
		}
	}
	return b.Store.Write(ctx, batch)
}

// TestWorkersAndABlockThatIsLeft: other workers wait for a block that can be neither ground nor put
// off. It holds up no other slice.
func TestWorkersAndABlockThatIsLeft(t *testing.T) {
	for _, names := range severalWorkers {
		t.Run(fmt.Sprint(len(names)), func(t *testing.T) {
			var bad *block
			w := startWorkers(t, names, func(s storage.Store) storage.Store {
				bad = &block{Store: s, block: blocks.BlockAt(8, 4), ms: hour.UnixMilli()}
				return bad
			})
			for range 3 {
				require.Error(t, w.pass())
			}
			require.Equal(t, []int{0}, w.opened())
			require.Len(t, rows(t, w.store), 50*hoursOfWorkers-1)

			bad.back = true
			w.catchUp()
		})
	}
}

// TestWorkersAndDamagedMarks: damaged marks are reported, and stand for their blocks.
func TestWorkersAndDamagedMarks(t *testing.T) {
	for _, names := range severalWorkers {
		t.Run(fmt.Sprint(len(names)), func(t *testing.T) {
			w := startWorkers(t, names, func(s storage.Store) storage.Store {
				return &part{Store: s, at: storage.IndexPartition{SliceKey: storage.SliceKey{StartMs: hour.UnixMilli()}, Shard: 3}}
			})
			_ = w.pass()
			require.NoError(t, w.pass())
			require.Empty(t, w.opened())
			require.Len(t, rows(t, w.store), 50*hoursOfWorkers)
			errs, err := storage.RecentErrors(t.Context(), w.store)
			require.NoError(t, err)
			require.NotEmpty(t, errs)
			for _, e := range errs {
				require.Contains(t, e.Message, "1 marks of slice 2025-11-21T10:00:00Z are damaged")
			}
			if len(names) == 1 {
				require.Equal(t, len(errs), counted(t, w.reg, "quern_aggregation_damaged_chunks_total")["metrics_cache_index"])
			}
		})
	}
}

// TestFewBlocksOutOfReachAreTriedAgain: only a few unavailable blocks are retried, however many
// there are, so that the others do not wait. A block with another error is always retried.
func TestFewBlocksOutOfReachAreTriedAgain(t *testing.T) {
	tries := func(series int, err error) int {
		r, store, _, k := setUp(t, series, rollup.Options{Parallel: 2})
		store.Fail("WriteRollups", blocks.Range{}, -1, err)
		store.Forget()
		rec, err := r.Run(t.Context(), k)
		require.NoError(t, err)
		require.Equal(t, series/4, rec.Rescheduled)
		return store.Count("WriteRollups")
	}
	require.Equal(t, 3*5, tries(20, errAway))
	require.Less(t, tries(400, errAway), 100+2*10)
	require.Equal(t, 3*100, tries(400, storage.ErrCorrupt))
}

// Blocks that are out of reach, however many lie beside each other, do not keep those from being ground that are not.
func TestBlocksBehindManyOutOfReach(t *testing.T) {
	const series = 1200 // 300 blocks, 150 a shard
	for name, away := range map[string]func(block int) bool{
		"every other":       func(b int) bool { return b%2 == 0 },
		"most":              func(b int) bool { return b%10 != 9 },
		"the first of each": func(b int) bool { return b < 100 },
	} {
		t.Run(name, func(t *testing.T) {
			r, store, clk, k := setUp(t, series, rollup.Options{Parallel: 2})
			gone := 0
			for b := range series / 4 {
				if away(b) {
					gone++
					for _, op := range []string{"RawChunks", "Write"} {
						store.Fail(op, blocks.BlockAt(metric.ScheduleID(4*b), 4), -1, errAway)
					}
				}
			}
			for range 2 * (1 + gone/16) { // twice as often as it takes to try eight of each shard
				_, err := r.RunDue(t.Context())
				require.ErrorIs(t, err, storage.ErrUnavailable)
				clk.Set(clk.Now().Add(31 * time.Second))
			}
			require.Len(t, rows(t, store), series-4*gone)
			require.True(t, open(t, store, k))
			store.Heal()
			_, err := r.RunDue(t.Context())
			require.NoError(t, err)
			require.Len(t, rows(t, store), series, "at once, wherever the last run gave up")
		})
	}
}

// states is a store that cannot answer for the state of one slice.
type states struct {
	storage.Store

	key  storage.SliceKey
	back bool
}

func (s *states) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	alone, andLater := toMs == fromMs+1, toMs > fromMs+(7*24*time.Hour).Milliseconds()
	if b == s.key.Bucket && fromMs == s.key.StartMs && (alone || andLater) && !s.back {
		return nil, errAway
	}
	return s.Store.Slices(ctx, b, fromMs, toMs)
}

func (s *states) CompleteSlice(ctx context.Context, k storage.SliceKey) error {
	if k == s.key && !s.back {
		return errAway
	}
	return s.Store.CompleteSlice(ctx, k)
}

// TestStateGoesAwayDuringARun: a slice whose state, or that of the slice around it, goes out of reach
// between the look and its run, is left. The pass goes on with the next.
func TestStateGoesAwayDuringARun(t *testing.T) {
	around := storage.SliceKey{Bucket: 1, StartMs: metric.DefaultLadder().SliceAt(1, hour.UnixMilli()).StartMs}
	for _, key := range []storage.SliceKey{{StartMs: hour.UnixMilli()}, around} {
		_, faulty, clk, k := setUp(t, 80, rollup.Options{})
		store := &states{Store: faulty, key: key}
		later := storage.SliceKey{StartMs: hour.Add(3 * time.Hour).UnixMilli()}
		require.NoError(t, store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{later}}))
		clk.Set(hour.Add(5 * time.Hour))
		r := worker(store, clk, 3, storage.Worker{ID: "two"}, rollup.Options{}).Runner
		n, err := r.RunDue(t.Context())
		require.ErrorIs(t, err, storage.ErrUnavailable)
		require.Equal(t, 1, n, "the later one")
		require.True(t, open(t, faulty, k))
		require.False(t, open(t, faulty, later))

		store.back = true
		_, err = r.RunDue(t.Context())
		require.NoError(t, err)
		require.False(t, open(t, faulty, k))
		require.Len(t, rows(t, faulty), 80)
	}
}
