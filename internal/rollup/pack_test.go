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

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/rollup/packing"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// process is a worker that packs and a writer, over a store.
type process struct {
	*testing.T
	store  *storagetest.Faulty
	clk    *clock.Simulated
	engine *engine.Engine
	writer *cache.Writer
	reg    *prometheus.Registry
}

var ten = time.Date(2025, time.November, 21, 10, 0, 0, 0, time.UTC)

func startPacking(t *testing.T, size, group, partitions int) *process {
	t.Helper()
	p := &process{T: t, clk: clock.NewSimulated(ten.Add(time.Minute))}
	p.store = storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: group, IndexPartitions: partitions, Epochs: blocks.Epochs{{BlockSize: size}},
	}, nil, p.clk))
	_, err := p.store.LeaseIDs(t.Context(), 16)
	require.NoError(t, err)
	p.restart(packs)
	return p
}

// restart starts another process on the store.
func (p *process) restart(opts rollup.Options) {
	p.reg = prometheus.NewRegistry()
	opts.Metrics = p.reg
	p.engine = worker(p.store, p.clk, 7, storage.Worker{ID: "one", Aggregates: true}, opts)
	p.writer = cache.NewWriter(p.engine.Cache)
}

// flush writes a sample of each schedule, at so many minutes after ten.
func (p *process) flush(minute int, value float64, ids ...metric.ScheduleID) {
	p.Helper()
	var s []metric.Sample
	for _, id := range ids {
		s = append(s, metric.Sample{Schedule: id, TimeMs: ten.Add(time.Duration(minute) * time.Minute).UnixMilli(), Value: value})
	}
	settings := p.store.Settings()
	slice := settings.Ladder.SliceAt(metric.Raw, s[0].TimeMs)
	require.NoError(p, p.writer.Flush(p.Context(), []cache.BlockSamples{{
		Slice: slice, Block: settings.Epochs.BlockAt(ids[0], slice.StartMs), Samples: s,
	}}))
}

// hour seals the slice that ended at so many hours after ten, and runs what is due.
func (p *process) hour(n int) {
	p.Helper()
	p.clk.Set(ten.Add(time.Duration(n)*time.Hour + time.Minute))
	require.NoError(p, p.writer.Seal(p.Context()))
	p.run(n)
}

// run runs what is due once the slice that ended at so many hours after ten is.
func (p *process) run(n int) {
	p.Helper()
	p.clk.Set(ten.Add(time.Duration(n)*time.Hour + 2*time.Minute))
	_, err := p.engine.Runner.RunDue(p.Context())
	require.NoError(p, err)
}

// chunks are the raw chunks of the slice at ten.
func (p *process) chunks() (out []storage.RawChunk) {
	p.Helper()
	for c, err := range storagetest.Kept(p.store.RawChunks(p.Context(), blocks.Range{End: 1 << 20}, ten.UnixMilli(), ten.Add(time.Hour).UnixMilli())) {
		require.NoError(p, err)
		out = append(out, c)
	}
	return out
}

// values are what readers see of a schedule, by minute.
func (p *process) values(id metric.ScheduleID) map[int]float64 {
	p.Helper()
	var set blocks.SampleSet
	set.Reset(blocks.Range{Start: id, End: id + 1})
	for _, c := range p.chunks() {
		require.NoError(p, set.Add(c.Data))
	}
	out := map[int]float64{}
	for _, samples := range set.Series() {
		for _, s := range samples {
			out[int(time.UnixMilli(s.TimeMs).Sub(ten)/time.Minute)] = s.Value
		}
	}
	return out
}

// TestPack: once what came on time has settled, each group has one raw chunk. The run itself reads no raw and packs nothing. Late
// data is packed with the rest after the run that grinds it, and no other group of the slice is written again.
func TestPack(t *testing.T) {
	p := startPacking(t, 8, 4, 1)
	for minute := range 30 {
		p.flush(minute+1, float64(minute), 0, 1, 2, 3, 5)
	}
	p.store.Forget()
	p.hour(1)
	require.Zero(t, p.store.Count("RawChunks"))
	p.pack()
	require.Len(t, p.chunks(), 60, "what came on time may not have settled")
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.pack()
	packed := p.chunks()
	require.Len(t, packed, 2)
	for _, c := range packed {
		require.True(t, c.ID.Packed())
	}
	want := map[int]float64{}
	for minute := range 30 {
		want[minute+1] = float64(minute)
	}
	require.Equal(t, want, p.values(3))
	require.Equal(t, want, p.values(5))

	p.flush(5, -1, 3)
	p.clk.Set(ten.Add(2*time.Hour + 59*time.Second))
	p.flush(45, 4.5, 3)
	want[5], want[45] = -1, 4.5
	require.Equal(t, want, p.values(3))
	require.Len(t, p.chunks(), 4)
	p.hour(2)
	p.pack()
	require.Len(t, p.chunks(), 4, "the last late data has not settled")
	p.clk.Set(p.clk.Now().Add(time.Minute))
	ctx, cancel := context.WithCancel(t.Context())
	p.store.Add(storagetest.Rule{Op: "RawChunks", Times: 1, Before: func() error { cancel(); return nil }})
	require.ErrorIs(t, p.engine.Runner.Pack(ctx), context.Canceled)
	p.pack()
	require.Equal(t, want, p.values(3))
	again := p.chunks()
	require.Len(t, again, 2)
	require.NotEqual(t, packed[0].ID, again[0].ID)
	require.Equal(t, packed[1], again[1], "nothing was late in this group")
	require.NoError(t, testutil.GatherAndCompare(p.reg, strings.NewReader(`
# HELP quern_packing_chunks_total Raw chunks that were replaced by chunks of columns.
# TYPE quern_packing_chunks_total counter
quern_packing_chunks_total 63
`), "quern_packing_chunks_total"))

	// Nobody has opened slices of that time. It is before all that the store has had, and raw is kept for ever.
	p.flush(-3000, 1, 3)
	p.flush(-3000, 2, 3)
	p.hour(3)
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.pack()
	require.Zero(t, p.loose())
}

// moving is a simulated clock that moves on by a millisecond at each look.
type moving struct{ *clock.Simulated }

func (c moving) Now() time.Time {
	c.Set(c.Simulated.Now().Add(time.Millisecond))
	return c.Simulated.Now()
}

// TestPackReadsAtOneTime: chunks settle while a group is read. None is packed without the one before it, which may correct a sample.
func TestPackReadsAtOneTime(t *testing.T) {
	for ms := range 40 {
		p := startPacking(t, 4, 4, 1)
		p.flush(1, 1, 0)
		p.hour(1)
		p.clk.Set(ten.Add(time.Hour + 5*time.Minute))
		p.flush(1, 2, 0)
		p.flush(2, 3, 0)
		p.clk.Set(p.clk.Now().Add(cache.DefaultTiming().Settled() + time.Duration(ms-20)*time.Millisecond))
		e := worker(p.store, moving{p.clk}, 8, storage.Worker{ID: "one", Aggregates: true}, packs)
		require.NoError(t, e.Runner.Pack(t.Context()))
		require.Equal(t, map[int]float64{1: 2, 2: 3}, p.values(0), "%d ms", ms-20)
	}
}

// TestPackLeaves: what is not settled, or damaged, stays as it is.
func TestPackLeaves(t *testing.T) {
	t.Run("damaged", func(t *testing.T) {
		p := startPacking(t, 4, 4, 1)
		p.flush(1, 1, 0, 1)
		p.flush(2, 2, 0, 1)
		id := blocks.NewIDs(9).Next(ten.UnixMilli())
		require.NoError(t, p.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{SliceMs: ten.UnixMilli(), Chunk: storage.Chunk{ID: id, Data: []byte("damaged")}}}}))
		before := p.chunks()
		p.run(1)
		p.clk.Set(p.clk.Now().Add(time.Minute))
		p.pack()
		require.Equal(t, before, p.chunks())
	})
	t.Run("not settled", func(t *testing.T) {
		p := startPacking(t, 4, 4, 1)
		p.flush(1, 1, 0, 1)
		p.flush(2, 2, 0, 1)
		p.run(1)
		p.clk.Set(p.clk.Now().Add(time.Minute))
		p.flush(3, 3, 0, 1)
		p.pack()
		require.Len(t, p.chunks(), 2)
		require.Equal(t, map[int]float64{1: 1, 2: 2, 3: 3}, p.values(1))
	})
}

// TestNeighboursPackTogether: a group that several blocks share is packed as a whole and in one step, also if its first block has no
// samples, or only another one has late data.
func TestNeighboursPackTogether(t *testing.T) {
	const partitions = 5
	require.NotEqual(t, blocks.ShardOf(0, partitions), blocks.ShardOf(4, partitions))
	p := startPacking(t, 4, 8, partitions)
	for minute := range 5 {
		p.flush(minute+1, 1, 0, 1)
		p.flush(minute+1, 2, 4, 5)
		p.flush(minute+1, 3, 13)
	}
	want := p.bits()
	p.hour(1)
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.pack()
	require.Equal(t, 2, p.store.Count("PackRaw"))
	require.Len(t, p.chunks(), 2)
	require.Equal(t, want, p.bits())

	p.flush(30, 4, 5)
	want = p.bits()
	p.hour(2)
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.pack()
	require.Len(t, p.chunks(), 2, "late data of the second block of a group")
	require.Equal(t, want, p.bits())
}

// TestDamagedColumn: a damaged column makes the row of its schedule partial when late data has the block ground again, and no
// other row. The chunk stays as it is.
func TestDamagedColumn(t *testing.T) {
	p := startPacking(t, 4, 4, 1)
	for minute := range 40 {
		p.flush(minute+1, float64(minute*minute), 0, 1, 2, 3)
	}
	p.hour(1)
	p.clk.Set(p.clk.Now().Add(time.Minute))
	p.pack()
	require.Len(t, p.chunks(), 1)
	damaged := p.chunks()[0]
	damaged.Data = slices.Clone(damaged.Data)
	damaged.Data[len(damaged.Data)-1] ^= 1
	require.NoError(t, p.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{damaged}}))
	p.flush(50, 7, 0, 1, 2, 3)
	p.hour(2)
	partial := map[metric.ScheduleID]bool{}
	for r, err := range p.store.Rollups(t.Context(), 1, blocks.Range{End: 4}, ten.UnixMilli(), ten.UnixMilli()+1) {
		require.NoError(t, err)
		partial[r.Schedule] = r.Partial
		want := 41
		if r.Partial {
			want = 40 // the row from before has more
		}
		require.EqualValues(t, want, r.Count, r.Schedule)
	}
	require.Equal(t, map[metric.ScheduleID]bool{0: false, 1: false, 2: false, 3: true}, partial)
	require.Equal(t, damaged, p.chunks()[0])
	require.Len(t, p.chunks(), 2)
}

// packs are the options of a process that packs without a limit.
var packs = rollup.Options{PackRate: math.MaxInt}

// backlog is hours from ten on, each ground and none packed, with the samples of two blocks in two groups, one flush a minute. Then
// another process starts.
func backlog(t *testing.T, hours int, opts rollup.Options) *process {
	t.Helper()
	p := startPacking(t, 4, 4, 1)
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
func (p *process) bits() (out []bit) {
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
func (p *process) loose() int {
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

func (p *process) pack() {
	p.Helper()
	require.NoError(p, p.engine.Runner.Pack(p.Context()))
}

// packedHours are the slices of the packed chunks in the order of packing, in hours after ten.
func (p *process) packedHours() (out []int) {
	for _, s := range p.store.Log() {
		if c, ok := s.Detail.(storage.RawChunk); ok && s.Op == "PackRaw" {
			out = append(out, int(time.UnixMilli(c.SliceMs).Sub(ten)/time.Hour))
		}
	}
	return out
}

// TestPackBacklog: slices that nobody has packed are packed, the newest first, then the oldest, and each sample stays, bit by bit.
// What is done is not read again, not even by the next process.
func TestPackBacklog(t *testing.T) {
	var logged strings.Builder
	opts := packs
	opts.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	p := backlog(t, 3, opts)
	want := p.bits()
	require.Len(t, want, 3*20*5)
	require.Equal(t, 6, p.loose())
	p.pack()
	require.Equal(t, want, p.bits())
	require.Zero(t, p.loose())
	require.Equal(t, []int{2, 2, 0, 0, 1, 1}, p.packedHours())
	require.Equal(t, 1, strings.Count(logged.String(), `"packing the raw samples of earlier slices"`), logged.String())
	require.Equal(t, 1, strings.Count(logged.String(), `"the raw samples of earlier slices are packed"`), logged.String())
	require.NoError(t, testutil.GatherAndCompare(p.reg, strings.NewReader(`
# HELP quern_packing_left_slices Slices of raw that are over and that this worker has not packed yet.
# TYPE quern_packing_left_slices gauge
quern_packing_left_slices 0
`), "quern_packing_left_slices"))

	p.store.Forget()
	p.pack()
	p.restart(packs)
	p.pack()
	require.Zero(t, p.store.Count("RawChunks"))
	require.Zero(t, p.store.Count("AcquireShard"))
}

// TestPackTakesWhatSettles: a slice that settles while older ones are packed comes before the rest of them.
func TestPackTakesWhatSettles(t *testing.T) {
	p := backlog(t, 3, rollup.Options{})
	p.clk.Set(ten.Add(3*time.Hour + 2*time.Minute))
	e := worker(p.store, sleeping{p.clk}, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{PackRate: 25})
	require.NoError(t, e.Runner.Pack(t.Context()))
	require.Equal(t, []int{1, 1, 2, 2, 0, 0}, p.packedHours())
}

// TestPackIsPaused: with a rate of 0 nothing is read.
func TestPackIsPaused(t *testing.T) {
	p := backlog(t, 1, rollup.Options{})
	p.pack()
	require.Empty(t, p.store.Log())
	require.Equal(t, 2, p.loose())
}

// TestPackWaitsForRuns: as long as a run is due, nothing is packed.
func TestPackWaitsForRuns(t *testing.T) {
	p := backlog(t, 1, packs)
	p.clk.Set(ten.Add(time.Hour + 10*time.Minute))
	p.flush(65, 1, 0)
	p.clk.Set(ten.Add(2*time.Hour + 2*time.Minute))
	p.pack()
	require.Equal(t, 2, p.loose())
	p.run(2)
	p.pack()
	require.Zero(t, p.loose())
}

// TestPackIsInterrupted: at whatever step the process dies, no sample is lost or changed, and the next process goes on. It
// does not begin anew: slices whose end was kept are not read again.
func TestPackIsInterrupted(t *testing.T) {
	start := func() *process {
		p := backlog(t, 3, rollup.Options{})
		// Looking at the four groups of a slice takes more than a minute.
		p.engine = worker(p.store, sleeping{p.clk}, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{PackRate: 25})
		return p
	}
	p := start()
	p.pack()
	total := len(p.store.Log())
	require.Equal(t, 3, p.store.Count("PutDocument"))
	for step := 1; step <= total; step++ {
		p := start()
		want := p.bits()
		p.store.CrashAt(step)
		_ = p.engine.Runner.Pack(t.Context())
		kept := p.store.Count("PutDocument")
		p.store.CrashAt(-1)
		require.Equal(t, want, p.bits(), "step %d", step)
		p.restart(packs)
		p.store.Forget()
		p.pack()
		require.Equal(t, want, p.bits(), "step %d", step)
		require.Zero(t, p.loose(), "step %d", step)
		require.LessOrEqual(t, p.store.Count("RawChunks"), 4*(3-kept), "step %d: the newest slices were done", step)
	}
}

// TestPackMeetsWriters: late data, a correction and a tombstone that come between the reading of a block and its packing win, and stay.
func TestPackMeetsWriters(t *testing.T) {
	for _, op := range []string{"RawChunks", "AcquireShard", "PackRaw", "PutDocument"} {
		p := backlog(t, 2, packs)
		want := p.bits()
		change := func() error {
			p.flush(5, 99, 0)
			p.flush(6, metric.Tombstone(), 1)
			p.flush(50, 4, 2)
			return nil
		}
		p.store.Add(storagetest.Rule{Op: op, Times: 1, Before: change})
		p.pack()
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
		p.hour(3)
		p.clk.Set(p.clk.Now().Add(5 * time.Minute))
		p.pack() // the late data with the rest
		require.ElementsMatch(t, want, p.bits(), op)
		require.Zero(t, p.loose(), op)
	}
}

// TestPackSkips: a damaged block stays as it is, and a block whose part of the store is away holds up the others only once.
func TestPackSkips(t *testing.T) {
	t.Run("damaged", func(t *testing.T) {
		p := backlog(t, 2, packs)
		id := blocks.NewIDs(9).Next(ten.UnixMilli())
		require.NoError(t, p.store.Store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{SliceMs: ten.UnixMilli(), Chunk: storage.Chunk{ID: id, Data: []byte("damaged")}}}}))
		p.pack()
		require.Equal(t, 1, p.loose())
	})
	t.Run("away", func(t *testing.T) {
		p := backlog(t, 2, packs)
		p.store.Fail("RawChunks", blocks.Range{Start: 4, End: 8}, -1, storage.ErrTimeout)
		require.ErrorIs(t, p.engine.Runner.Pack(t.Context()), storage.ErrTimeout)
		require.ErrorIs(t, p.engine.Runner.Pack(t.Context()), storage.ErrTimeout, "in the slice before")
		p.pack()
		require.Equal(t, 2, p.loose(), "of the block out of reach")
		errs, err := storage.RecentErrors(t.Context(), p.store)
		require.NoError(t, err)
		require.Contains(t, errs[0].Message, "stay unpacked")
	})
	t.Run("full disk", func(t *testing.T) {
		p := backlog(t, 2, packs)
		p.store.Fail("PackRaw", blocks.Range{}, -1, fmt.Errorf("%w: disk full", storage.ErrUnavailable))
		require.ErrorIs(t, p.engine.Runner.Pack(t.Context()), storage.ErrUnavailable)
		errs, err := storage.RecentErrors(t.Context(), p.store)
		require.NoError(t, err)
		require.Contains(t, errs[0].Message, "stay unpacked")
		require.Contains(t, errs[0].Message, "disk full")
		p.flush(125, 1, 0)
		p.flush(126, 1, 0)
		p.hour(3)
		p.store.Heal()
		p.clk.Set(p.clk.Now().Add(time.Minute))
		p.pack()
		require.Zero(t, p.loose())
	})
}

// TestPackOfTwoWorkers: each packs its own shards. A shard that another worker holds is left to it, and a worker that
// has lost its lease deletes nothing.
func TestPackOfTwoWorkers(t *testing.T) {
	clk := clock.NewSimulated(ten.Add(time.Minute))
	store := storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 4, IndexPartitions: 4, Epochs: blocks.Epochs{{BlockSize: 4}},
	}, nil, clk))
	p := &process{T: t, clk: clk, store: store}
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
		e := worker(store, clk, 7, storage.Worker{ID: id, Aggregates: true}, packs)
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
	require.NoError(t, a.Runner.Pack(t.Context()))
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
	require.NoError(t, b.Runner.Pack(t.Context()))
	require.Less(t, p.loose(), ofOthers)

	// The lease of a is taken over while a is about to pack. Both go on, and no sample is lost.
	store.Add(storagetest.Rule{Op: "PackRaw", Times: 1, Before: func() error {
		store.Heal()
		require.NoError(t, store.ReleaseShard(t.Context(), mine[0], "a"))
		_, err := store.AcquireShard(t.Context(), mine[0], "b", time.Hour)
		return err
	}})
	require.NoError(t, a.Runner.Pack(t.Context()))
	require.Equal(t, want, p.bits())
	require.NotZero(t, p.loose(), "fenced off")
	require.NoError(t, store.ReleaseShard(t.Context(), mine[0], "b"))
	require.NoError(t, a.Runner.Pack(t.Context()))
	require.Zero(t, p.loose())
	require.Equal(t, want, p.bits())
}

// TestPackRate: what is read and written keeps to the rate.
func TestPackRate(t *testing.T) {
	p := backlog(t, 3, rollup.Options{})
	const rate = 1000
	e := worker(p.store, sleeping{p.clk}, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{PackRate: rate})
	began := p.clk.Elapsed()
	require.NoError(t, e.Runner.Pack(t.Context()))
	require.Zero(t, p.loose())
	// Four groups in three slices, which have little in them. The last piece of work is not waited for.
	require.InDelta(t, 4*3*4096.0/rate, (p.clk.Elapsed() - began).Seconds(), 1.1*4096.0/rate)
}

// sleeping is a simulated clock that moves on when somebody sleeps.
type sleeping struct{ *clock.Simulated }

func (c sleeping) Sleep(ctx context.Context, d time.Duration) error {
	c.Set(c.Now().Add(d))
	return c.Simulated.Sleep(ctx, d)
}

// TestPackYields: the aggregator packs while nothing is due. A run begins on time although blocks are being packed, and
// packing goes on after it.
func TestPackYields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		p := &process{T: t}
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

		// A group counts as 4096 bytes: 27 minutes for the ten of a slice. So the third slice is being packed when the
		// next run is due, and again after the run.
		e := worker(p.store, clk, 8, storage.Worker{ID: "one", Aggregates: true}, rollup.Options{PackRate: 25})
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
		require.Equal(t, 8, p.loose())
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 117*time.Minute, <-passes)
		require.Zero(t, p.loose())
		require.Equal(t, want, p.bits())

		time.Sleep(10 * time.Minute) // the slice of this run is being packed
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

// TestPackWithoutBlocks: with a fine ladder raw has a million slices. Shards that never had a block are not looked through,
// and a call ends at once also where a shard has no block of the time. What was looked through then counts as done.
func TestPackWithoutBlocks(t *testing.T) {
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
		e := worker(store, clk, 7, storage.Worker{ID: id, Aggregates: true}, packs)
		require.NoError(t, e.Member.Beat(t.Context()))
		return e.Runner
	}
	one := start("one", counted)
	require.NoError(t, one.Pack(t.Context()))
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
	require.ErrorIs(t, start("one", counted).Pack(ctx), stop)
	require.Less(t, looks, last+100)
	require.Zero(t, store.Count("RawChunks"))
	p, ok, err := packing.Read(t.Context(), store)
	require.NoError(t, err)
	require.True(t, ok)
	require.NotEmpty(t, p.Shard(blocks.ShardOf(4, partitions)))
}

// TestPackGoesOn: runs may be due more often than progress is kept. What this process has looked through since is not looked
// through again.
func TestPackGoesOn(t *testing.T) {
	p := backlog(t, 3, packs)
	ctx, cancel := context.WithCancel(t.Context())
	p.store.Add(storagetest.Rule{Op: "RawChunks", Times: -1, Before: func() error {
		if p.store.Count("PackRaw") == 5 {
			cancel() // at the third slice: two are done, and the first is kept
		}
		return nil
	}})
	require.ErrorIs(t, p.engine.Runner.Pack(ctx), context.Canceled)
	require.Equal(t, 1, p.store.Count("PutDocument"))
	p.store.Forget()
	p.pack()
	require.Zero(t, p.loose())
	require.Equal(t, 4, p.store.Count("RawChunks"), "of the third slice")
}
