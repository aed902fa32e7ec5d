package parts

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/promquery"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/pebble"
	"github.com/quern/quern/internal/storage/storagetest"
)

const (
	second = int64(1000)
	minute = 60 * second
	hour   = 60 * minute
	day    = 24 * hour
)

var (
	midnight = time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).UnixMilli()
	now      = midnight + 14*hour + 20*minute

	// retention is the server's default retention.
	retention = storage.Retention{7 * 24 * time.Hour, 90 * 24 * time.Hour, 365 * 24 * time.Hour, 5 * 365 * 24 * time.Hour}
)

// world is a store with a queryable.
type world struct {
	*querytest.World
	queryable *promquery.Queryable
}

// newBench makes a world on a disk with the server's settings.
func newBench(b *testing.B) *world {
	clk := clock.NewSimulated(time.UnixMilli(now))
	st, err := pebble.Open(b.TempDir(), pebble.Options{
		Settings: storage.Settings{
			Ladder: metric.DefaultLadder(), GroupSize: 128, IndexPartitions: 16, Epochs: blocks.Epochs{{BlockSize: 128}},
		},
		Policy: storage.Policy{Retention: retention}.Always, Clock: clk,
	})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, st.Close()) })
	w := querytest.NewOn(b, st, clk)
	_, queryable := promquery.New(w.Querier, promquery.Options{})
	return &world{w, queryable}
}

// busy fills a world with n series that have a sample every stepMs, in chunks as ingest writes
// them: one per time and block.
func busy(b *testing.B, w *world, n int, fromMs, stepMs int64) {
	for i := range n {
		w.ID(querytest.Named("m_total", metric.Label{Name: "source", Value: fmt.Sprintf("host-%d", i/100)},
			metric.Label{Name: "i", Value: fmt.Sprint(i % 100)}))
	}
	samples := make([]metric.Sample, n)
	batch := &storage.Batch{}
	write := func() {
		require.NoError(b, w.Store.Write(b.Context(), batch))
		*batch = storage.Batch{}
	}
	defer write()
	for t := fromMs; t < now; t += stepMs {
		for i := range samples {
			samples[i] = metric.Sample{Schedule: metric.ScheduleID(i), TimeMs: t, Value: float64(t/1000+int64(i)) / 8}
		}
		if w.Flush(batch, samples); len(batch.Raw) > 1000 {
			write()
		}
	}
}

func bench(b *testing.B, w *world, series int, ask func(e *promquery.Engine) (promql.Query, error)) {
	engine, _ := promquery.New(w.Querier, promquery.Options{})
	b.ReportAllocs()
	for b.Loop() {
		q, err := ask(engine)
		require.NoError(b, err)
		r := q.Exec(b.Context())
		require.NoError(b, r.Err)
		switch v := r.Value.(type) {
		case promql.Vector:
			require.Len(b, v, series)
		case promql.Matrix:
			require.Len(b, v, series)
		}
		q.Close()
	}
}

// pack packs the raw chunks of each group and slice, as runs do.
func pack(b *testing.B, w *world) {
	type key struct {
		group metric.ScheduleID
		slice int64
	}
	chunks := map[key][]storage.RawChunk{}
	for c, err := range storagetest.Kept(w.Store.RawChunks(b.Context(), blocks.Range{End: 1 << 30}, now-2*day, now+day)) {
		require.NoError(b, err)
		k := key{c.Group, c.SliceMs}
		chunks[k] = append(chunks[k], c)
	}
	var set blocks.SampleSet
	var packer blocks.Packer
	for k, all := range chunks {
		group := blocks.Range{Start: k.group, End: k.group + 128}
		set.Reset(group)
		var replaced []blocks.ID
		for _, c := range all {
			require.NoError(b, set.Add(c.Data))
			replaced = append(replaced, c.ID)
		}
		data, err := packer.Pack(&set, group, 1<<20)
		require.NoError(b, err)
		require.NoError(b, w.Store.PackRaw(b.Context(), 0, storage.RawChunk{
			Group: k.group, SliceMs: k.slice, Chunk: storage.Chunk{ID: blocks.PackedID(replaced), Data: data},
		}, replaced))
	}
	require.NoError(b, w.Store.CompleteSlice(b.Context(), storage.SliceKey{StartMs: now}))
}

// BenchmarkOneSeries queries one of the 128 series of a block, with a sample every 10 s, before and after it is packed.
func BenchmarkOneSeries(b *testing.B) {
	w := newBench(b)
	busy(b, w, 128, now-day-hour, 10*second)
	for _, state := range []string{"flushed", "packed"} {
		if state == "packed" {
			pack(b, w)
		}
		for _, c := range []struct {
			name         string
			spanMs, step int64
		}{{"1h", hour, 10 * second}, {"24h", day, minute}} {
			b.Run(state+"/"+c.name, func(b *testing.B) {
				bench(b, w, 1, func(e *promquery.Engine) (promql.Query, error) {
					return e.NewRangeQuery(b.Context(), w.queryable, nil, `m_total{i="17",source="host-0"}`,
						time.UnixMilli(now-c.spanMs), time.UnixMilli(now), time.Duration(c.step)*time.Millisecond)
				})
			})
		}
	}
}

// grind writes the hourly rows of n series in [fromMs, toMs).
func grind(b *testing.B, w *world, n int, fromMs, toMs int64) {
	samples := make(map[metric.ScheduleID][]metric.Sample)
	var set blocks.SampleSet
	for c, err := range storagetest.Kept(w.Store.RawChunks(b.Context(), blocks.Range{End: metric.ScheduleID(n)}, fromMs, toMs)) {
		require.NoError(b, err)
		set.Reset(blocks.Range{End: metric.ScheduleID(n)})
		require.NoError(b, set.Add(c.Data))
		for id, all := range set.Series() {
			samples[id] = append(samples[id], all...)
		}
	}
	for id := range samples {
		slices.SortFunc(samples[id], metric.CompareSamples)
	}
	w.Grind(1, fromMs, toMs, samples)
}

// BenchmarkOneMetric queries one metric of 100 hosts with ten metrics each, by hours over half a day.
func BenchmarkOneMetric(b *testing.B) {
	w := newBench(b)
	last := metric.AlignDown(now, hour)
	busy(b, w, 1000, last-12*hour, 10*second)
	for _, state := range []string{"flushed", "packed", "ground"} {
		switch state {
		case "packed":
			pack(b, w)
		case "ground":
			grind(b, w, 1000, last-12*hour, last)
		}
		b.Run(state, func(b *testing.B) {
			bench(b, w, 10, func(e *promquery.Engine) (promql.Query, error) {
				return e.NewRangeQuery(b.Context(), w.queryable, nil, `avg by (source) (avg_over_time(m_total{i=~".*7"}[1h]))`,
					time.UnixMilli(last-11*hour), time.UnixMilli(last), time.Hour)
			})
		})
	}
}

// BenchmarkManySeries queries an hour of 10,000 series with 60 samples each.
func BenchmarkManySeries(b *testing.B) {
	w := newBench(b)
	busy(b, w, 10_000, now-hour, minute)
	bench(b, w, 10_000, func(e *promquery.Engine) (promql.Query, error) {
		return e.NewInstantQuery(b.Context(), w.queryable, nil, `avg_over_time(m_total[1h])`, time.UnixMilli(now))
	})
}

// BenchmarkYear queries a year of 1,000 series.
func BenchmarkYear(b *testing.B) {
	w := newBench(b)
	const n = 1000
	var sample []metric.Sample
	for i := range n {
		w.ID(querytest.Named("m", metric.Label{Name: "source", Value: fmt.Sprintf("host-%d", i)}))
	}
	for i := range 100 {
		sample = append(sample, metric.Sample{TimeMs: int64(i), Value: float64(i * i)})
	}
	row, _ := querytest.RollupOf(sample)
	var rows []metric.RollupRow
	for t := midnight - 366*day; t < midnight; t += day {
		for i := range n {
			row.FirstMs, row.LastMs = t, t+99*minute
			rows = append(rows, metric.RollupRow{Schedule: metric.ScheduleID(i), TimeMs: t, Rollup: row})
		}
	}
	slices.SortStableFunc(rows, func(a, b metric.RollupRow) int { return cmp.Compare(a.Schedule, b.Schedule) })
	require.NoError(b, w.Store.WriteRollups(b.Context(), 0, 3, rows))
	bench(b, w, n, func(e *promquery.Engine) (promql.Query, error) {
		return e.NewRangeQuery(b.Context(), w.queryable, nil, `max_over_time(m[1d])`,
			time.UnixMilli(midnight-365*day), time.UnixMilli(midnight), 24*time.Hour)
	})
}
