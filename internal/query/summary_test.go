package query_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// TestLatestValue is behaviour 27: the latest value.
func TestLatestValue(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		for id := range metric.ScheduleID(6) {
			w.series(id, "cpu", fmt.Sprint("web", id))
		}
		w.put(
			metric.Sample{Schedule: 0, TimeMs: noon - 30*second, Value: 1},
			metric.Sample{Schedule: 0, TimeMs: noon + 30*second, Value: 2}, // from a clock that is ahead
			metric.Sample{Schedule: 1, TimeMs: noon - 59*minute, Value: 3},
			metric.Sample{Schedule: 1, TimeMs: noon - 2*hour, Value: 4},
			metric.Sample{Schedule: 2, TimeMs: noon - 5*hour, Value: 5},
			metric.Sample{Schedule: 3, TimeMs: noon - 6*day, Value: 6},
			metric.Sample{Schedule: 4, TimeMs: noon - 8*day, Value: 7}, // older than raw's retention
			metric.Sample{Schedule: 5, TimeMs: noon - minute, Value: 8},
			metric.Sample{Schedule: 5, TimeMs: noon - second, Value: math.Inf(-1)},
		)
		latest := func(lookback time.Duration) map[metric.ScheduleID]float64 {
			r, err := w.q.Latest(t.Context(), w.sel("cpu"), lookback)
			out := make(map[metric.ScheduleID]float64)
			for _, s := range collect(t, r, err) {
				require.Equal(t, s.ID, s.Schedule)
				out[s.ID] = s.Value
			}
			return out
		}
		require.Equal(t, map[metric.ScheduleID]float64{0: 2, 1: 3, 2: 5, 3: 6, 5: math.Inf(-1)}, latest(query.MaxLookback))
		require.Equal(t, map[metric.ScheduleID]float64{0: 2, 1: 3, 2: 5, 5: math.Inf(-1)}, latest(6*time.Hour))
		require.Equal(t, map[metric.ScheduleID]float64{0: 2, 5: math.Inf(-1)}, latest(10*time.Minute))

		w.put(metric.Sample{Schedule: 0, TimeMs: noon + 30*second, Value: 9})
		w.took()
		r, err := w.q.Latest(t.Context(), w.sel(`cpu{source="web0"}`), time.Hour)
		require.InDelta(t, 9, collect(t, r, err)[0].Value, 0, "sent again: the later counts")
		require.Len(t, w.took(), 1)

		_, err = w.q.Latest(t.Context(), w.sel("cpu"), 0)
		var bad *query.RequestError
		require.ErrorAs(t, err, &bad)
	})
}

// TestSummaryOverARange is behaviour 27: the summary over a range.
func TestSummaryOverARange(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.series(1, "cpu", "web-1")
		w.series(2, "cpu", "web-2")
		w.series(3, "cpu", "web-3")
		w.fill([]metric.ScheduleID{1, 2}, midnight-3*day, noon, minute, wave)
		w.put(metric.Sample{Schedule: 2, TimeMs: midnight + 4*hour + 1, Value: math.NaN()})
		w.grind(1, midnight-3*day, midnight+12*hour)
		w.grind(2, midnight-3*day, midnight+12*hour)
		w.grind(3, midnight-3*day, midnight)
		w.took()
		for _, c := range []struct {
			from, to int64
			expect   []metric.Bucket
		}{
			{midnight - 3*day, midnight, []metric.Bucket{3}},
			{midnight - 3*day + 1, noon, []metric.Bucket{0, 1, 2, 3, 2, 0}},
			{midnight + 5*hour + 7*minute, midnight + 5*hour + 8*minute, []metric.Bucket{0}},
			{midnight + 5*hour, midnight + 14*hour, []metric.Bucket{1, 2, 0}},
		} {
			r, err := w.q.Summary(t.Context(), w.sel("cpu"), c.from, c.to)
			got := collect(t, r, err)
			require.Equal(t, c.expect, buckets(w.took()))
			require.Len(t, got, 2)
			for _, s := range got {
				all := w.within(s.ID, c.from, c.to)
				values := make([]float64, len(all))
				sum := 0.0
				for i, x := range all {
					values[i] = x.Value
					sum += x.Value
				}
				slices.Sort(values)
				require.Equal(t, uint64(len(all)), s.Count)
				require.InDelta(t, values[0], s.Min, 0)
				require.InDelta(t, values[len(values)-1], s.Max, 0)
				require.InDelta(t, sum, s.Sum, 1e-6)
				require.InDelta(t, sum/float64(len(all)), s.Avg(), 1e-9)
				for q, got := range map[float64]float64{0.5: s.P50, 0.9: s.P90, 0.99: s.P99} {
					rank := q * float64(len(values)-1)
					low, high, weight := values[int(math.Floor(rank))], values[int(math.Ceil(rank))], rank-math.Floor(rank)
					require.InDelta(t, low*(1-weight)+high*weight, got, 0.0101*max(math.Abs(low), math.Abs(high)), "quantile %v", q)
				}
			}
		}
	})
}

// TestBaselineOverHourRows is behaviour 27: the baseline over 1h rows; series without rows have none.
func TestBaselineOverHourRows(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.series(1, "cpu", "web-1")
		w.series(2, "cpu", "web-2")
		w.fill([]metric.ScheduleID{1}, midnight-3*day, noon, 7*minute, wave)
		// Series 2 has samples, but no row yet.
		w.put(metric.Sample{Schedule: 2, TimeMs: noon, Value: 5})
		w.grind(1, midnight-3*day, midnight+12*hour)
		w.took()
		r, err := w.q.Baseline(t.Context(), w.sel("cpu"), midnight-2*day, midnight-day)
		got := collect(t, r, err)
		require.Len(t, got, 1)
		require.Equal(t, []metric.Bucket{1}, buckets(w.took()))

		all := w.within(1, midnight-2*day, midnight-day)
		least, most, sum := all[0].Value, all[0].Value, 0.0
		for _, s := range all {
			least, most = min(least, s.Value), max(most, s.Value)
			sum += s.Value
		}
		require.Equal(t, 24, got[0].Rows)
		require.Equal(t, uint64(len(all)), got[0].Count)
		require.InDelta(t, least, got[0].Min, 0)
		require.InDelta(t, most, got[0].Max, 0)
		require.InDelta(t, sum/float64(len(all)), got[0].Avg(), 1e-9)

		r, err = w.q.Baseline(t.Context(), w.sel("cpu"), midnight-5*day, midnight-4*day)
		require.Empty(t, collect(t, r, err))
		r, err = w.q.Baseline(t.Context(), w.sel("cpu"), 0, hour)
		require.Empty(t, collect(t, r, err), "before anything is kept")
	})
}

func TestDamagedSketch(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(1, "cpu", "web-1")
	w.fill([]metric.ScheduleID{1}, midnight, midnight+2*hour, minute, wave)
	w.grind(1, midnight, midnight+2*hour)
	row := metric.RollupRow{Schedule: 1, TimeMs: midnight}
	row.Rollup, _ = querytest.RollupOf(w.within(1, midnight, midnight+hour))
	row.Sketch = []byte("damaged")
	require.NoError(t, w.store.WriteRollups(t.Context(), 0, 1, []metric.RollupRow{row}))

	sums, err := w.q.Summary(t.Context(), w.sel("cpu"), midnight, midnight+2*hour)
	got := collect(t, sums, err)
	require.Len(t, sums.Warnings(), 1)
	require.Contains(t, sums.Warnings()[0], `the 1h row at 2025-11-21T00:00:00Z of cpu{source="web-1"}: percentiles are missing`)
	require.Equal(t, uint64(120), got[0].Count, "all else is there")
	require.True(t, math.IsNaN(got[0].P90))

	rows, err := w.q.Rollups(t.Context(), w.sel("cpu"), 1, midnight, midnight+2*hour)
	all := collect(t, rows, err)
	require.Len(t, rows.Warnings(), 1)
	require.True(t, math.IsNaN(all[0].P50))
	require.False(t, math.IsNaN(all[1].P50))
}

func TestErrorsOfTheStore(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	for id := range metric.ScheduleID(40) {
		w.series(id, "cpu", fmt.Sprint("web-", id))
	}
	w.fill([]metric.ScheduleID{1, 9, 17, 25, 33}, midnight, midnight+2*hour, minute, wave)
	rng := query.Range{StartMs: midnight, EndMs: midnight + 2*hour, N: 120}

	points, err := w.q.Points(t.Context(), w.sel("cpu"), rng)
	require.NoError(t, err)
	for _, err := range points.All() {
		require.NoError(t, err)
		break // a consumer that stops early leaves nothing behind
	}
	points, err = w.q.Points(t.Context(), w.sel("cpu"), rng)
	require.NoError(t, err)
	latest, err := w.q.Latest(t.Context(), w.sel("cpu"), time.Hour)
	require.NoError(t, err)
	sums, err := w.q.Summary(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	base, err := w.q.Baseline(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	samples, err := w.q.Export(t.Context(), w.sel("cpu"), midnight, noon)
	require.NoError(t, err)
	rows, err := w.q.Rollups(t.Context(), w.sel("cpu"), 1, midnight, noon)
	require.NoError(t, err)
	require.NoError(t, w.store.Close())
	requireFails(t, points)
	requireFails(t, latest)
	requireFails(t, sums)
	requireFails(t, base)
	requireFails(t, samples)
	requireFails(t, rows)
	_, err = w.q.Summary(t.Context(), w.sel("cpu"), midnight, noon)
	require.ErrorIs(t, err, storage.ErrUnavailable, "which slices are open cannot be read either")
}

// requireFails checks that a result has exactly one error, which ends it.
func requireFails[T any](t *testing.T, r *query.Result[T]) {
	t.Helper()
	n := 0
	for _, err := range r.All() {
		require.ErrorIs(t, err, storage.ErrUnavailable)
		n++
	}
	require.Equal(t, 1, n)
}

// TestPercentilesOfAWideSpan: where a percentile falls among values that a row stores as one, a warning says so.
func TestPercentilesOfAWideSpan(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(1, "wide", "web-1")
	w.fill([]metric.ScheduleID{1}, midnight, midnight+2*24*hour, minute, func(_ metric.ScheduleID, tMs int64) float64 {
		return 1e-18 * math.Pow(1.03, float64(tMs-midnight)/float64(minute)) // a factor of 10^36
	})
	w.grind(1, midnight, midnight+2*24*hour)
	warned := func(hours int64) []string {
		sums, err := w.q.Summary(t.Context(), w.sel("wide"), midnight, midnight+hours*hour)
		require.Len(t, collect(t, sums, err), 1)
		return sums.Warnings()
	}
	require.Empty(t, warned(3))
	require.Len(t, warned(48), 1)
	require.Contains(t, warned(48)[0], `percentiles of wide{source="web-1"}: the values span more than a factor of 10^8`)
}
