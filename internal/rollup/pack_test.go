package rollup_test

import (
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// packing is one process over a store with one block of four schedules, which packs.
type packing struct {
	*testing.T
	store  *storagetest.Faulty
	clk    *clock.Simulated
	engine *engine.Engine
	writer *cache.Writer
	reg    *prometheus.Registry
}

var ten = time.Date(2025, time.November, 21, 10, 0, 0, 0, time.UTC)

func startPacking(t *testing.T, size, group int) *packing {
	t.Helper()
	p := &packing{T: t, clk: clock.NewSimulated(ten.Add(time.Minute))}
	p.store = storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: group, IndexPartitions: 1, Epochs: blocks.Epochs{{BlockSize: size}},
	}, nil, p.clk))
	p.restart(rollup.Options{Pack: true})
	return p
}

// restart starts another process on the store.
func (p *packing) restart(opts rollup.Options) {
	p.reg = prometheus.NewRegistry()
	opts.Metrics = p.reg
	p.engine = worker(p.store, p.clk, 7, storage.Worker{ID: "one", Aggregates: true}, opts)
	p.writer = cache.NewWriter(p.engine.Cache)
}

// flush writes a sample of each schedule, at so many minutes after ten.
func (p *packing) flush(minute int, value float64, ids ...metric.ScheduleID) {
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
func (p *packing) hour(n int) {
	p.Helper()
	p.clk.Set(ten.Add(time.Duration(n)*time.Hour + time.Minute))
	require.NoError(p, p.writer.Seal(p.Context()))
	p.run(n)
}

// run runs what is due once the slice that ended at so many hours after ten is.
func (p *packing) run(n int) {
	p.Helper()
	p.clk.Set(ten.Add(time.Duration(n)*time.Hour + 2*time.Minute))
	_, err := p.engine.Runner.RunDue(p.Context())
	require.NoError(p, err)
}

// chunks are the raw chunks of the slice at ten.
func (p *packing) chunks() (out []storage.RawChunk) {
	p.Helper()
	for c, err := range storagetest.Kept(p.store.RawChunks(p.Context(), blocks.Range{End: 1 << 20}, ten.UnixMilli(), ten.Add(time.Hour).UnixMilli())) {
		require.NoError(p, err)
		out = append(out, c)
	}
	return out
}

// values are what readers see of a schedule, by minute.
func (p *packing) values(id metric.ScheduleID) map[int]float64 {
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

// TestRunPacks: after its run a block has one raw chunk in each group, from the cache without another read. Late data is packed
// with the rest by the run that grinds it.
func TestRunPacks(t *testing.T) {
	p := startPacking(t, 8, 4)
	for minute := range 30 {
		p.flush(minute+1, float64(minute), 0, 1, 2, 3, 5)
	}
	require.Len(t, p.chunks(), 60)
	p.store.Forget()
	p.hour(1)
	require.Zero(t, p.store.Count("RawChunks"))
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
	p.flush(45, 4.5, 3)
	want[5], want[45] = -1, 4.5
	require.Equal(t, want, p.values(3))
	require.Len(t, p.chunks(), 4)
	p.hour(2)
	require.Equal(t, want, p.values(3))
	again := p.chunks()
	require.Len(t, again, 2)
	require.NotEqual(t, packed[0].ID, again[0].ID)
	require.Equal(t, packed[1], again[1], "nothing was late in this group")
	families, err := p.reg.Gather()
	require.NoError(t, err)
	i := slices.IndexFunc(families, func(f *dto.MetricFamily) bool { return f.GetName() == "quern_aggregation_packed_chunks_total" })
	require.EqualValues(t, 63, families[i].GetMetric()[0].GetCounter().GetValue())
}

// TestPackIsRepeated: whatever fails, nothing is lost, and the next attempt packs.
func TestPackIsRepeated(t *testing.T) {
	for _, after := range []bool{false, true} {
		p := startPacking(t, 4, 4)
		for minute := range 5 {
			p.flush(minute+1, float64(minute), 0, 1, 2, 3)
		}
		fail := func() error { return storage.ErrTimeout }
		rule := storagetest.Rule{Op: "PackRaw", Times: 1, Before: fail}
		if after {
			rule = storagetest.Rule{Op: "PackRaw", Times: 1, After: fail}
		}
		p.store.Add(rule)
		p.hour(1)
		require.Equal(t, map[int]float64{1: 0, 2: 1, 3: 2, 4: 3, 5: 4}, p.values(2))
		require.Len(t, p.chunks(), 1)
	}
}

// TestPackLeaves: what is not settled, damaged, or shared with another block stays as it is.
func TestPackLeaves(t *testing.T) {
	unpacked := func(p *packing, n int) {
		p.Helper()
		require.Len(p, p.chunks(), n)
		require.False(p, slices.ContainsFunc(p.chunks(), func(c storage.RawChunk) bool { return c.ID.Packed() }))
	}
	t.Run("damaged", func(t *testing.T) {
		p := startPacking(t, 4, 4)
		p.flush(1, 1, 0, 1)
		p.flush(2, 2, 0, 1)
		id := blocks.NewIDs(9).Next(ten.UnixMilli())
		require.NoError(t, p.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{SliceMs: ten.UnixMilli(), Chunk: storage.Chunk{ID: id, Data: []byte("damaged")}}}}))
		p.run(1) // not sealed, so raw is read
		unpacked(p, 3)
	})
	t.Run("of two blocks", func(t *testing.T) {
		p := startPacking(t, 4, 8)
		p.flush(1, 1, 0, 1)
		both := blocks.AppendSamples(nil, []metric.Sample{{Schedule: 1, TimeMs: ten.UnixMilli(), Value: 1}, {Schedule: 5, TimeMs: ten.UnixMilli(), Value: 1}})
		id := blocks.NewIDs(9).Next(ten.UnixMilli())
		require.NoError(t, p.store.Write(t.Context(), &storage.Batch{Raw: []storage.RawChunk{{SliceMs: ten.UnixMilli(), Chunk: storage.Chunk{ID: id, Data: both}}}}))
		p.run(1)
		unpacked(p, 2)
	})
	t.Run("not settled", func(t *testing.T) {
		p := startPacking(t, 4, 4)
		p.flush(1, 1, 0, 1)
		p.flush(2, 2, 0, 1)
		p.clk.Set(ten.Add(62*time.Minute - time.Second))
		p.flush(3, 3, 0, 1) // late, and not sealed, so raw is read
		p.run(1)
		unpacked(p, 3)
		require.Equal(t, map[int]float64{1: 1, 2: 2, 3: 3}, p.values(1))
	})
}

// TestNeighboursPackTogether: no run packs a group that several blocks share. Repack packs it as a whole and in one step, also if
// its first block has no samples.
func TestNeighboursPackTogether(t *testing.T) {
	p := startPacking(t, 4, 8)
	_, err := p.store.LeaseIDs(t.Context(), 16)
	require.NoError(t, err)
	p.restart(repacks)
	for minute := range 5 {
		p.flush(minute+1, 1, 0, 1)
		p.flush(minute+1, 2, 4, 5)
		p.flush(minute+1, 3, 13)
	}
	want := p.bits()
	p.hour(1)
	require.Len(t, p.chunks(), 15)
	p.clk.Set(p.clk.Now().Add(5 * time.Minute))
	p.repack()
	require.Equal(t, 2, p.store.Count("PackRaw"))
	require.Len(t, p.chunks(), 2)
	require.Equal(t, want, p.bits())
}

// TestDamagedColumn: a damaged column makes the row of its schedule partial when late data has the block ground again, and no
// other row. The chunk stays as it is.
func TestDamagedColumn(t *testing.T) {
	p := startPacking(t, 4, 4)
	for minute := range 40 {
		p.flush(minute+1, float64(minute*minute), 0, 1, 2, 3)
	}
	p.hour(1)
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
