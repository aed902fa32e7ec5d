package rollup_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/rollup/repack"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// repacks are the options of a process that packs in the background without a limit.
var repacks = rollup.Options{Pack: true, RepackRate: math.MaxInt}

// older is the store of an earlier version, which did not pack: hours from ten on, each ground, with the samples of two
// blocks in two groups, one flush a minute. Then the process of this version starts.
func older(t *testing.T, hours int, opts rollup.Options) *packing {
	t.Helper()
	p := startPacking(t, 4, 4)
	_, err := p.store.LeaseIDs(t.Context(), 12)
	require.NoError(t, err)
	p.restart(rollup.Options{})
	for n := range hours {
		p.clk.Set(ten.Add(time.Duration(n)*time.Hour + time.Minute))
		for minute := range 20 {
			v := float64(minute)
			switch minute {
			case 3:
				v = math.Float64frombits(0x7ff8000000000123) // a NaN of its own
			case 4:
				v = math.Copysign(0, -1)
			case 5:
				v = math.Inf(-1)
			}
			p.flush(60*n+minute+1, v, 0, 1, 2)
			p.flush(60*n+minute+1, v+0.1, 4, 5)
		}
		p.flush(60*n+2, -7, 1) // a correction
		p.hour(n + 1)
	}
	p.clk.Set(p.clk.Now().Add(5 * time.Minute))
	p.restart(opts)
	p.store.Forget()
	return p
}

type bit struct {
	id     metric.ScheduleID
	timeMs int64
	bits   uint64
}

// bits are all samples as readers see them.
func (p *packing) bits() (out []bit) {
	p.Helper()
	var set blocks.SampleSet
	set.Reset(blocks.Range{End: 1 << 20})
	for c, err := range p.store.Store.RawChunks(p.Context(), blocks.Range{End: 1 << 20}, 0, math.MaxInt64) {
		require.NoError(p, err)
		require.NoError(p, set.Add(c.Data))
	}
	for id, samples := range set.Series() {
		for _, s := range samples {
			out = append(out, bit{id, s.TimeMs, math.Float64bits(s.Value)})
		}
	}
	return out
}

// loose is the number of storage groups that have several chunks in a slice.
func (p *packing) loose() int {
	p.Helper()
	type at struct {
		group metric.ScheduleID
		ms    int64
	}
	n := map[at]int{}
	for c, err := range p.store.Store.RawChunks(p.Context(), blocks.Range{End: 1 << 20}, 0, math.MaxInt64) {
		require.NoError(p, err)
		n[at{c.Group, c.SliceMs}]++
	}
	out := 0
	for _, chunks := range n {
		if chunks > 1 {
			out++
		}
	}
	return out
}

func (p *packing) repack() {
	p.Helper()
	require.NoError(p, p.engine.Runner.Repack(p.Context()))
}

// packedHours are the slices of the packed chunks in the order of packing, in hours after ten.
func (p *packing) packedHours() (out []int) {
	for _, s := range p.store.Log() {
		if c, ok := s.Detail.(storage.RawChunk); ok && s.Op == "PackRaw" {
			out = append(out, int(time.UnixMilli(c.SliceMs).Sub(ten)/time.Hour))
		}
	}
	return out
}

// TestRepack: the chunks of an earlier version are packed in whole, newest slices first, and each sample stays, bit by bit.
// What is done is not read again, not even by the next process.
func TestRepack(t *testing.T) {
	var said strings.Builder
	opts := repacks
	opts.Logger = slog.New(slog.NewTextHandler(&said, nil))
	p := older(t, 3, opts)
	want := p.bits()
	require.Len(t, want, 3*20*5)
	require.Equal(t, 6, p.loose())
	p.repack()
	require.Equal(t, want, p.bits())
	require.Zero(t, p.loose())
	require.Equal(t, []int{2, 2, 1, 1, 0, 0}, p.packedHours())
	require.Equal(t, 1, strings.Count(said.String(), `"packing the raw samples of earlier slices"`), said.String())
	require.Equal(t, 1, strings.Count(said.String(), `"the raw samples of earlier slices are packed"`), said.String())
	require.NoError(t, testutil.GatherAndCompare(p.reg, strings.NewReader(`
# HELP quern_aggregation_repack_left_slices Slices of raw that this worker has not yet looked through for chunks to pack in the background.
# TYPE quern_aggregation_repack_left_slices gauge
quern_aggregation_repack_left_slices 0
# HELP quern_aggregation_repacked_blocks_total Blocks of slices ground earlier whose raw chunks were packed in the background.
# TYPE quern_aggregation_repacked_blocks_total counter
quern_aggregation_repacked_blocks_total 6
`), "quern_aggregation_repack_left_slices", "quern_aggregation_repacked_blocks_total"))

	p.store.Forget()
	p.repack()
	p.restart(repacks)
	p.repack()
	require.Zero(t, p.store.Count("RawChunks"))
	require.Zero(t, p.store.Count("AcquireShard"))

	// The next slice is packed by its run, and only looked at.
	p.flush(190, 1, 0)
	p.flush(191, 1, 0)
	p.hour(4)
	p.store.Forget()
	p.repack()
	require.Zero(t, p.store.Count("RawChunks"), "what came on time may not have settled")
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.repack()
	require.Equal(t, 3, p.store.Count("RawChunks"), "once each block")
	require.Zero(t, p.store.Count("PackRaw"))
}

// TestRepackIsPaused: with a rate of 0 nothing is read.
func TestRepackIsPaused(t *testing.T) {
	p := older(t, 1, rollup.Options{Pack: true})
	p.repack()
	require.Empty(t, p.store.Log())
	require.Equal(t, 2, p.loose())
}

// TestRepackWaitsForRuns: as long as a run is due, nothing is packed.
func TestRepackWaitsForRuns(t *testing.T) {
	p := older(t, 1, repacks)
	p.clk.Set(ten.Add(time.Hour + 10*time.Minute))
	p.flush(65, 1, 0)
	p.clk.Set(ten.Add(2*time.Hour + 2*time.Minute))
	p.repack()
	require.Equal(t, 2, p.loose())
	p.run(2)
	p.repack()
	require.Zero(t, p.loose())
}

// TestRepackIsInterrupted: at whatever step the process dies, no sample is lost or changed, and the next process goes on. It
// does not begin anew: slices whose end was kept are not read again.
func TestRepackIsInterrupted(t *testing.T) {
	start := func() *packing {
		p := older(t, 3, rollup.Options{})
		// Looking at the three blocks of a slice takes more than a minute.
		p.engine = worker(p.store, sleeping{p.clk}, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{Pack: true, RepackRate: 25})
		return p
	}
	p := start()
	p.repack()
	total := len(p.store.Log())
	require.Equal(t, 3, p.store.Count("PutDocument"))
	for step := 1; step <= total; step++ {
		p := start()
		want := p.bits()
		p.store.CrashAt(step)
		_ = p.engine.Runner.Repack(t.Context())
		kept := p.store.Count("PutDocument")
		p.store.CrashAt(-1)
		require.Equal(t, want, p.bits(), "step %d", step)
		p.restart(repacks)
		p.store.Forget()
		p.repack()
		require.Equal(t, want, p.bits(), "step %d", step)
		require.Zero(t, p.loose(), "step %d", step)
		// A slice takes a look at each of three blocks, and reading two of them.
		require.LessOrEqual(t, p.store.Count("RawChunks"), 5*(3-kept), "step %d: the newest slices were done", step)
	}
}

// TestRepackMeetsWriters: late data, a correction and a tombstone that come between the reading of a block and its packing win, and stay.
func TestRepackMeetsWriters(t *testing.T) {
	for _, op := range []string{"RawChunks", "AcquireShard", "PackRaw", "PutDocument"} {
		p := older(t, 2, repacks)
		want := p.bits()
		change := func() error {
			p.flush(5, 99, 0)
			p.flush(6, metric.Tombstone(), 1)
			p.flush(50, 4, 2)
			return nil
		}
		p.store.Add(storagetest.Rule{Op: op, Times: 1, Before: change})
		p.repack()
		at := func(minute int) int64 { return ten.Add(time.Duration(minute) * time.Minute).UnixMilli() }
		for i := range want {
			if want[i].id == 0 && want[i].timeMs == at(5) {
				want[i].bits = math.Float64bits(99)
			}
			if want[i].id == 1 && want[i].timeMs == at(6) {
				want[i].bits = math.Float64bits(metric.Tombstone())
			}
		}
		want = append(want, bit{2, at(50), math.Float64bits(4)})
		require.ElementsMatch(t, want, p.bits(), op)
		p.hour(3) // the run of the late marks packs the rest
		p.repack()
		require.ElementsMatch(t, want, p.bits(), op)
		require.Zero(t, p.loose(), op)
	}
}

// TestRepackAfterRun: a run leaves a block whose last chunk has not settled. Once it has, the block is packed as a whole.
func TestRepackAfterRun(t *testing.T) {
	p := startPacking(t, 4, 4)
	_, err := p.store.LeaseIDs(t.Context(), 4)
	require.NoError(t, err)
	p.restart(repacks)
	for minute := range 20 {
		p.flush(minute+1, float64(minute), 0)
	}
	p.clk.Set(ten.Add(time.Hour + 55*time.Second))
	p.flush(50, 50, 0)
	want := p.bits()
	p.hour(1)
	p.repack()
	require.Len(t, p.chunks(), 21)
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.repack()
	require.Len(t, p.chunks(), 1)
	require.Equal(t, want, p.bits())
}

// TestRepackSkips: a damaged block stays as it is, and a block whose part of the store is away holds up the others only once.
func TestRepackSkips(t *testing.T) {
	t.Run("damaged", func(t *testing.T) {
		p := older(t, 2, repacks)
		id := blocks.NewIDs(9).Next(ten.UnixMilli())
		require.NoError(t, p.store.Store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{SliceMs: ten.UnixMilli(), Chunk: storage.Chunk{ID: id, Data: []byte("damaged")}}}}))
		p.repack()
		require.Equal(t, 1, p.loose())
	})
	t.Run("away", func(t *testing.T) {
		p := older(t, 2, repacks)
		p.store.Fail("RawChunks", blocks.Range{Start: 4, End: 8}, -1, storage.ErrTimeout)
		require.ErrorIs(t, p.engine.Runner.Repack(t.Context()), storage.ErrTimeout)
		require.ErrorIs(t, p.engine.Runner.Repack(t.Context()), storage.ErrTimeout, "in the slice before")
		p.repack()
		require.Equal(t, 2, p.loose(), "of the block out of reach")
		errs, err := p.store.RecentErrors(t.Context())
		require.NoError(t, err)
		require.Contains(t, errs[0].Message, "stay unpacked")
	})
}

// TestRepackOfTwoWorkers: each packs its own shards. A shard that another worker holds is left to it, and a worker that
// has lost its lease deletes nothing.
func TestRepackOfTwoWorkers(t *testing.T) {
	clk := clock.NewSimulated(ten.Add(time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk))
	p := &packing{T: t, clk: clk, store: store}
	p.restart(rollup.Options{})
	_, err := store.LeaseIDs(t.Context(), 64)
	require.NoError(t, err)
	for minute := range 5 {
		for block := range 16 {
			p.flush(minute+1, float64(minute), metric.ScheduleID(4*block))
		}
	}
	p.hour(1)
	clk.Set(clk.Now().Add(5 * time.Minute))
	want := p.bits()
	require.Equal(t, 16, p.loose())

	join := func(id string) *engine.Engine {
		e := worker(store, clk, 7, storage.Worker{ID: id, Aggregates: true}, repacks)
		require.NoError(t, e.Member.Beat(t.Context()))
		return e
	}
	a, b := join("a"), join("b")
	mine, err := a.Member.Mine(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, mine)
	require.Less(t, len(mine), 4)
	_, err = store.AcquireShard(t.Context(), mine[0], "c", time.Hour)
	require.NoError(t, err)
	require.NoError(t, a.Runner.Repack(t.Context()))
	ofOthers := p.loose()
	for block := range 16 {
		chunks := 0
		for _, c := range p.chunks() {
			if c.Group == metric.ScheduleID(4*block) {
				chunks++
			}
		}
		shard := blocks.ShardOf(metric.ScheduleID(4*block), 4)
		require.Equal(t, shard != mine[0] && slices.Contains(mine, shard), chunks == 1, "block %d", block)
	}
	require.NoError(t, store.ReleaseShard(t.Context(), mine[0], "c"))
	require.NoError(t, b.Runner.Repack(t.Context()))
	require.Less(t, p.loose(), ofOthers)

	// The lease of a is taken over while a is about to pack. Both go on, and no sample is lost.
	store.Add(storagetest.Rule{Op: "PackRaw", Times: 1, Before: func() error {
		store.Heal()
		require.NoError(t, store.ReleaseShard(t.Context(), mine[0], "a"))
		_, err := store.AcquireShard(t.Context(), mine[0], "b", time.Hour)
		return err
	}})
	require.NoError(t, a.Runner.Repack(t.Context()))
	require.Equal(t, want, p.bits())
	require.NotZero(t, p.loose(), "fenced off")
	require.NoError(t, store.ReleaseShard(t.Context(), mine[0], "b"))
	require.NoError(t, a.Runner.Repack(t.Context()))
	require.Zero(t, p.loose())
	require.Equal(t, want, p.bits())
}

// TestRepackRate: what is read and written keeps to the rate.
func TestRepackRate(t *testing.T) {
	p := older(t, 3, repacks)
	p.repack()
	bytes := 9 * 4096 // looks at three blocks in three slices, which have little in them
	for _, s := range p.store.Log() {
		if c, ok := s.Detail.(storage.RawChunk); ok {
			bytes += len(c.Data)
		}
	}
	families, err := p.reg.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == "quern_aggregation_repacked_bytes_total" {
			bytes += int(f.GetMetric()[0].GetCounter().GetValue())
		}
	}
	p = older(t, 3, rollup.Options{})
	const rate = 1000
	e := worker(p.store, sleeping{p.clk}, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{Pack: true, RepackRate: rate})
	began := p.clk.Elapsed()
	require.NoError(t, e.Runner.Repack(t.Context()))
	require.Zero(t, p.loose())
	// The last piece of work is not waited for.
	require.InDelta(t, float64(bytes)/rate, (p.clk.Elapsed() - began).Seconds(), 4096.0/rate)
}

// sleeping is a simulated clock that moves on when somebody sleeps.
type sleeping struct{ *clock.Simulated }

func (c sleeping) Sleep(ctx context.Context, d time.Duration) error {
	c.Set(c.Now().Add(d))
	return c.Simulated.Sleep(ctx, d)
}

// TestRepackYields: the aggregator packs while nothing is due. A run begins on time although blocks are being packed, and
// packing goes on after it.
func TestRepackYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		p := &packing{T: t}
		p.store = storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
			Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: 4}},
		}, nil, clk))
		_, err := p.store.LeaseIDs(t.Context(), 40)
		require.NoError(t, err)
		p.engine = worker(p.store, clk, 7, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{})
		w := cache.NewWriter(p.engine.Cache)
		for range 3 {
			slice := metric.DefaultLadder().SliceAt(metric.Raw, time.Now().UnixMilli())
			for n := range int64(3) {
				for id := metric.ScheduleID(0); id < 40; id += 4 {
					require.NoError(t, w.Flush(t.Context(), []cache.BlockSamples{{
						Slice: slice, Block: blocks.BlockAt(id, 4), Samples: []metric.Sample{{Schedule: id, TimeMs: slice.StartMs + n, Value: 1}},
					}}))
				}
			}
			time.Sleep(time.Until(time.UnixMilli(slice.EndMs).Add(2 * time.Minute)))
			_, err = p.engine.Runner.RunDue(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, 30, p.loose())
		want := p.bits()

		time.Sleep(3 * time.Minute) // until all three have settled

		// A look at a block takes 4096 bytes: 27 minutes for the ten blocks of a slice. So the third slice is being
		// looked at when the next run is due, and again after the run.
		e := worker(p.store, clk, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{Pack: true, RepackRate: 25})
		passes := make(chan time.Duration, 10)
		began := time.Now()
		a := rollup.NewAggregator(e.Runner, cache.DefaultTiming(), func(context.Context) error { passes <- time.Since(began); return nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); a.Run(ctx) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Zero(t, <-passes)
		require.Equal(t, 57*time.Minute, <-passes)
		require.Equal(t, 10, p.loose())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 117*time.Minute, <-passes)
		require.Zero(t, p.loose())
		require.Equal(t, want, p.bits())

		time.Sleep(10 * time.Minute) // the slice of this run is being looked at
		cancel()
		<-done
	})
}

// ticks is a clock that calls on at each look at Elapsed.
type ticks struct {
	clock.Clock
	on func()
}

func (c *ticks) Elapsed() time.Duration {
	c.on()
	return c.Clock.Elapsed()
}

// TestRepackWithoutBlocks: with a fine ladder raw has a million slices. Shards that never had a block are not looked through,
// and a call ends at once also where a shard has no block of the time. What was looked through then counts as done.
func TestRepackWithoutBlocks(t *testing.T) {
	const partitions = 5
	require.NotEqual(t, blocks.ShardOf(0, partitions), blocks.ShardOf(4, partitions))
	clk := clock.NewSimulated(ten)
	ladder, err := metric.ParseLadder("1s,2s,4s")
	require.NoError(t, err)
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: ladder, GroupSize: 4, IndexPartitions: partitions,
		Epochs: blocks.Epochs{{BlockSize: 8}, {FromMs: ten.Add(time.Hour).UnixMilli(), BlockSize: 4}},
	}, storage.Retention{14 * 24 * time.Hour}, clk))
	ctx, cancel := context.WithCancelCause(t.Context())
	stop, looks, last := errors.New("stop"), 0, 0
	counted := &ticks{clk, func() {
		if looks++; looks == last {
			cancel(stop)
		}
	}}
	start := func(id string, clk clock.Clock) *rollup.Runner {
		e := worker(store, clk, 7, storage.Worker{ID: id, Aggregates: true}, repacks)
		require.NoError(t, e.Member.Beat(t.Context()))
		return e.Runner
	}
	one := start("one", counted)
	require.NoError(t, one.Repack(t.Context()))
	require.Less(t, looks, 100)

	// The only block of today is in a shard of the other worker. The one that will be another tomorrow is not.
	_, err = store.LeaseIDs(t.Context(), 8)
	require.NoError(t, err)
	other := ""
	for n := 0; other == ""; n++ {
		id := fmt.Sprint(n)
		owners := shards.Assign([]storage.Worker{{ID: "one", Aggregates: true}, {ID: id, Aggregates: true}}, partitions)
		if owners[blocks.ShardOf(0, partitions)] == id && owners[blocks.ShardOf(4, partitions)] == "one" {
			other = id
		}
	}
	start(other, clk)
	last = looks + 1000
	require.ErrorIs(t, one.Repack(ctx), stop)
	require.Less(t, looks, last+100)
	require.Zero(t, store.Count("RawChunks"))
	p, ok, err := repack.Read(t.Context(), store)
	require.NoError(t, err)
	require.True(t, ok)
	require.NotEqual(t, repack.Span{}, p.Span(blocks.ShardOf(4, partitions)))
}

// TestRepackGoesOn: runs may be due more often than progress is kept. What this process has looked through since is not looked
// through again.
func TestRepackGoesOn(t *testing.T) {
	p := older(t, 3, repacks)
	ctx, cancel := context.WithCancel(t.Context())
	p.store.Add(storagetest.Rule{Op: "RawChunks", Times: -1, Before: func() error {
		if p.store.Count("PackRaw") == 4 {
			cancel() // at the third slice: two are done, and the first is kept
		}
		return nil
	}})
	require.ErrorIs(t, p.engine.Runner.Repack(ctx), context.Canceled)
	require.Equal(t, 1, p.store.Count("PutDocument"))
	p.store.Forget()
	p.repack()
	require.Zero(t, p.loose())
	require.Equal(t, 5, p.store.Count("RawChunks"), "of the third slice")
}
