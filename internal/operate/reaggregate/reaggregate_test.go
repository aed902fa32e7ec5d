package reaggregate_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/reaggregate"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const hour = time.Hour

var (
	midnight = time.Date(2025, time.November, 21, 0, 0, 0, 0, time.UTC)
	now      = midnight.Add(12*hour + 20*time.Minute)
)

type world struct {
	*testing.T
	store    *storagetest.Faulty
	clk      *clock.Simulated
	runner   *rollup.Runner
	index    *query.Index
	r        *reaggregate.Reaggregator
	progress []reaggregate.Progress
}

func newWorld(t *testing.T, series int, keep storage.Retention, epochs ...blocks.Epoch) *world {
	w := &world{T: t, clk: clock.NewSimulated(now), index: query.NewIndex()}
	w.store = storagetest.NewFaulty(storagetest.NewModel(storage.Settings{
		Ladder: metric.DefaultLadder(), GroupSize: 8, IndexPartitions: 4, Epochs: append(blocks.Epochs{{BlockSize: 4}}, epochs...),
	}, keep, w.clk))
	e := engine.New(engine.Options{Store: w.store, Clock: w.clk, Writer: 1, Worker: storage.Worker{ID: "one"}, Rollup: &rollup.Options{}})
	w.runner = e.Runner
	for id := range series {
		w.index.Add([]storage.Schedule{{ID: metric.ScheduleID(id), Labels: metric.Labels{{Name: metric.NameLabel, Value: "cpu"}}}})
	}
	w.r = reaggregate.New(reaggregate.Parts{Store: w.store, Index: w.index, Cache: e.Cache, Clock: w.clk, Logger: slog.New(slog.DiscardHandler)})
	return w
}

func (w *world) ask(ctx context.Context, selector string, start, end time.Time) (reaggregate.Summary, error) {
	w.Helper()
	sels, err := query.ParseSelectors(ctx, []string{selector})
	require.NoError(w, err)
	w.progress = nil
	return w.r.Run(ctx, sels, start.UnixMilli(), end.UnixMilli(), false, func(p reaggregate.Progress) error {
		w.progress = append(w.progress, p)
		require.Equal(w, p.Done, p.Blocks+p.Skipped)
		return nil
	})
}

// marks returns all marks of raw in the slice at in, by the slice that they stand for.
func (w *world) marks(in time.Time) map[int64][]storage.Mark {
	w.Helper()
	out := map[int64][]storage.Mark{}
	for shard := range 4 {
		for m, err := range w.store.Marks(w.Context(), storage.IndexPartition{
			SliceKey: storage.SliceKey{StartMs: in.UnixMilli()}, Shard: shard,
		}, storage.MarkKey{}, 0) {
			require.NoError(w, err)
			out[m.TimeMs] = append(out[m.TimeMs], m)
		}
	}
	return out
}

// smuggle writes a sample to raw without a mark, so no run knows of it.
func (w *world) smuggle(id metric.ScheduleID, t time.Time, v float64) {
	w.Helper()
	slice := metric.DefaultLadder().SliceAt(metric.Raw, t.UnixMilli())
	require.NoError(w, w.store.Write(w.Context(), &storage.Batch{Raw: []storage.RawChunk{{
		Group: blocks.BlockAt(id, 8).Start, SliceMs: slice.StartMs,
		Chunk: storage.Chunk{
			ID:   blocks.NewIDs(uint64(id)).Next(t.UnixMilli()),
			Data: blocks.AppendSamples(nil, []metric.Sample{{Schedule: id, TimeMs: t.UnixMilli(), Value: v}}),
		},
	}}}))
}

func (w *world) rows(level metric.Bucket) (out []metric.RollupRow) {
	w.Helper()
	for r, err := range w.store.Rollups(w.Context(), level, blocks.Range{End: 100}, 0, math.MaxInt64) {
		require.NoError(w, err)
		out = append(out, r)
	}
	return out
}

// What is marked is ground by the next run, and climbs the ladder at the times that the summary
// gives.
func TestRowsAreComputedAgain(t *testing.T) {
	w := newWorld(t, 6, nil)
	w.smuggle(0, midnight.Add(8*hour), 1)
	w.smuggle(5, midnight.Add(8*hour), 2)
	sum, err := w.ask(t.Context(), "cpu", midnight.Add(7*hour+30*time.Minute), midnight.Add(9*hour))
	require.NoError(t, err)
	require.Equal(t, reaggregate.Summary{
		Progress: reaggregate.Progress{Done: 4, Total: 4, Blocks: 4},
		Series:   6, Slices: reaggregate.Slices{Marked: 2},
		Rows: []reaggregate.Rows{
			{Level: "1h", By: midnight.Add(13*hour + 2*time.Minute).UnixMilli()},
			{Level: "6h", By: midnight.Add(18*hour + 2*time.Minute).UnixMilli()},
			{Level: "24h", By: midnight.Add(24*hour + 2*time.Minute).UnixMilli()},
		},
	}, sum)
	require.Equal(t, []reaggregate.Progress{sum.Progress}, w.progress)
	marks := w.marks(midnight.Add(12 * hour))
	require.Len(t, marks, 2)
	for _, ms := range marks {
		require.Len(t, ms, 2)
		for _, m := range ms {
			require.Equal(t, storage.MarkLate, m.Kind)
			require.Equal(t, midnight.Add(13*hour).UnixMilli(), m.DueMs, "its age counts from now")
			require.Len(t, m.Schedules, map[metric.ScheduleID]int{0: 4, 4: 2}[m.Start])
		}
	}
	for i, r := range sum.Rows {
		w.clk.Set(time.UnixMilli(r.By - 1))
		_, err := w.runner.RunDue(t.Context())
		require.NoError(t, err)
		require.Empty(t, w.rows(metric.Bucket(i+1)), "not before it was said")
		w.clk.Set(time.UnixMilli(r.By))
		_, err = w.runner.RunDue(t.Context())
		require.NoError(t, err)
		require.Len(t, w.rows(metric.Bucket(i+1)), 2)
	}
}

// Within the current six hours, the 6h row is ground with all others.
func TestRowsOfTheCurrentSlice(t *testing.T) {
	w := newWorld(t, 1, nil)
	w.clk.Set(midnight.Add(11*hour + 20*time.Minute))
	w.smuggle(0, midnight.Add(8*hour), 1)
	sum, err := w.ask(t.Context(), "cpu", midnight.Add(8*hour), midnight.Add(9*hour))
	require.NoError(t, err)
	require.Equal(t, midnight.Add(12*hour+2*time.Minute).UnixMilli(), sum.Rows[0].By)
	require.Equal(t, midnight.Add(12*hour+2*time.Minute).UnixMilli(), sum.Rows[1].By)
	w.clk.Set(midnight.Add(12*hour + 2*time.Minute))
	_, err = w.runner.RunDue(t.Context())
	require.NoError(t, err)
	require.Len(t, w.rows(2), 1)
}

// A repeated request adds nothing to the run's work until its slices are ground. A wider request
// adds only the difference. A request after the run has the slices ground again.
func TestAskedAgain(t *testing.T) {
	w := newWorld(t, 6, nil)
	w.smuggle(0, midnight.Add(8*hour), 1)
	ask := func(start, end time.Duration, want int) {
		t.Helper()
		_, err := w.ask(t.Context(), "cpu", midnight.Add(start), midnight.Add(end))
		require.NoError(t, err)
		n := 0
		for _, ms := range w.marks(w.clk.Now().Truncate(hour)) {
			n += len(ms)
		}
		require.Equal(t, want, n)
	}
	for range 3 {
		ask(8*hour, 10*hour, 4)
	}
	ask(7*hour, 9*hour, 6)
	w.clk.Set(midnight.Add(13*hour + 2*time.Minute))
	_, err := w.runner.RunDue(t.Context())
	require.NoError(t, err)
	require.Len(t, w.rows(1), 1)
	w.smuggle(0, midnight.Add(8*hour+time.Minute), 1)
	ask(8*hour, 10*hour, 4)
	w.clk.Set(midnight.Add(14*hour + 2*time.Minute))
	_, err = w.runner.RunDue(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, w.rows(1)[0].Count)
}

func TestNotClosed(t *testing.T) {
	w := newWorld(t, 1, nil)
	sum, err := w.ask(t.Context(), "cpu", midnight.Add(10*hour), midnight.Add(1000*hour))
	require.NoError(t, err)
	require.Equal(t, reaggregate.Slices{Marked: 2, NotClosed: 1}, sum.Slices)
	require.Equal(t, reaggregate.Progress{Done: 3, Total: 3, Blocks: 2, Skipped: 1}, sum.Progress)
	require.Len(t, w.marks(midnight.Add(12*hour)), 2)

	// During its grace a slice is not closed either.
	w.clk.Set(midnight.Add(13*hour + 30*time.Second))
	sum, err = w.ask(t.Context(), "cpu", midnight.Add(12*hour), midnight.Add(13*hour))
	require.NoError(t, err)
	require.Equal(t, reaggregate.Slices{NotClosed: 1}, sum.Slices)
	require.Empty(t, sum.Rows)
	require.NotNil(t, sum.Rows, "a list, also when it is empty")
}

// A slice whose input will have partly expired by the run gets no mark: the run would only drop it.
func TestExpired(t *testing.T) {
	w := newWorld(t, 5, storage.Retention{10 * hour})
	sum, err := w.ask(t.Context(), "cpu", midnight.AddDate(-2000, 0, 0), midnight.Add(12*hour))
	require.NoError(t, err)
	// The run is at 13:02.
	require.EqualValues(t, 8, sum.Slices.Marked, "04:00 to 12:00")
	require.EqualValues(t, 16, sum.Blocks)
	require.Equal(t, sum.Skipped, 2*sum.Slices.Expired)
	require.Greater(t, sum.Slices.Expired, int64(17_000_000))
	require.NotContains(t, w.marks(midnight.Add(12*hour)), midnight.Add(3*hour).UnixMilli())
	require.Contains(t, w.marks(midnight.Add(12*hour)), midnight.Add(4*hour).UnixMilli())
	w.clk.Set(midnight.Add(13*hour + 2*time.Minute))
	rec, err := w.runner.Run(t.Context(), storage.SliceKey{StartMs: midnight.Add(12 * hour).UnixMilli()})
	require.NoError(t, err)
	require.Zero(t, rec.Dropped)

	sum, err = w.ask(t.Context(), "cpu", midnight, midnight.Add(hour))
	require.NoError(t, err)
	require.Equal(t, reaggregate.Slices{Expired: 1}, sum.Slices)
}

// Each slice is cut by its own block size.
func TestBlockSizes(t *testing.T) {
	w := newWorld(t, 8, nil, blocks.Epoch{FromMs: midnight.Add(10 * hour).UnixMilli(), BlockSize: 2})
	sum, err := w.ask(t.Context(), "cpu", midnight.Add(8*hour), midnight.Add(12*hour))
	require.NoError(t, err)
	require.Equal(t, reaggregate.Progress{Done: 12, Total: 12, Blocks: 12}, sum.Progress)
	marks := w.marks(midnight.Add(12 * hour))
	require.Len(t, marks[midnight.Add(9*hour).UnixMilli()], 2)
	require.Len(t, marks[midnight.Add(10*hour).UnixMilli()], 4)
}

// However much is asked for, each write is bounded, and so is the request.
func TestBatches(t *testing.T) {
	w := newWorld(t, 40, nil)
	writes := 0
	w.store.Add(storagetest.Rule{Op: "Write", Times: -1, Before: func() error { writes++; return nil }})
	sum, err := w.ask(t.Context(), "cpu", midnight.Add(-300*hour), midnight)
	require.NoError(t, err)
	require.EqualValues(t, 3000, sum.Blocks)
	require.Equal(t, 3, writes)
	require.EqualValues(t, 1000, w.progress[0].Blocks)
	require.EqualValues(t, 3000, w.progress[0].Total)

	_, err = w.ask(t.Context(), "cpu", midnight.AddDate(-100, 0, 0), midnight)
	var bad *query.RequestError
	require.ErrorAs(t, err, &bad)
	require.ErrorContains(t, err, "ask for less time or fewer series at once")
}

func TestNothing(t *testing.T) {
	w := newWorld(t, 1, nil)
	sum, err := w.ask(t.Context(), "mem", midnight.AddDate(-9999, 0, 0), midnight)
	require.NoError(t, err)
	require.Equal(t, reaggregate.Summary{Rows: []reaggregate.Rows{}}, sum)
	for _, start := range []time.Time{now.Add(hour), midnight} {
		_, err = w.ask(t.Context(), "cpu", start, midnight)
		var bad *query.RequestError
		require.ErrorAs(t, err, &bad)
	}
}

func TestStops(t *testing.T) {
	w := newWorld(t, 1, nil)
	w.store.Add(storagetest.Rule{Op: "Write", Times: 1, Before: func() error { return storage.ErrUnavailable }})
	_, err := w.ask(t.Context(), "cpu", midnight, midnight.Add(hour))
	require.ErrorIs(t, err, storage.ErrUnavailable)
	require.Empty(t, w.progress)

	gone := errors.New("nobody listens")
	sels, err := query.ParseSelectors(t.Context(), []string{"cpu"})
	require.NoError(t, err)
	_, err = w.r.Run(t.Context(), sels, midnight.UnixMilli(), midnight.Add(hour).UnixMilli(), false, func(reaggregate.Progress) error { return gone })
	require.ErrorIs(t, err, gone)

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.ask(ctx, "cpu", midnight, midnight.Add(hour))
	require.ErrorIs(t, err, context.Canceled)
}
