package query_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// TestPointsFromRaw is behaviour 26: min, avg and max per bucket, gaps are empty; raw is read where no level is as fine
// as requested.
func TestPointsFromRaw(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		for id := range metric.ScheduleID(20) {
			w.series(id, "cpu", fmt.Sprint("web-", id))
		}
		w.series(20, "mem", "web-0")
		ids := []metric.ScheduleID{0, 3, 4, 9, 19}
		w.fill(ids, midnight+8*hour, midnight+9*hour+30*minute, 10*second, wave)
		w.fill(ids, midnight+9*hour+40*minute, midnight+10*hour, 10*second, wave)
		w.put(
			metric.Sample{Schedule: 3, TimeMs: midnight + 8*hour, Value: math.NaN()},
			metric.Sample{Schedule: 3, TimeMs: midnight + 8*hour + 7, Value: math.Inf(1)},
			metric.Sample{Schedule: 4, TimeMs: midnight + 8*hour, Value: -5000}, // sent again: the later value counts
			metric.Sample{Schedule: 20, TimeMs: midnight + 8*hour, Value: 1},
			metric.Sample{Schedule: 5, TimeMs: midnight + 8*hour, Value: math.NaN()},
		)
		got := w.checkPoints("cpu", query.Range{StartMs: midnight + 8*hour, EndMs: midnight + 10*hour, N: 12})
		require.Len(t, got, len(ids), "a series without a finite sample is left out")
		require.Zero(t, got[0].Points[9].Count, "from 9:30 to 9:40 there is a gap")
		require.Equal(t, "web-3", got[1].Labels.Get("source"))

		require.Equal(t, []metric.Bucket{metric.Raw}, buckets(w.took()))
		// 7 does not divide two hours, and the borders are in the middle of a slice.
		w.checkPoints("cpu", query.Range{StartMs: midnight + 8*hour + 1, EndMs: midnight + 9*hour + 59*minute, N: 7})
		w.took()
		w.checkPoints("cpu", query.Range{StartMs: midnight + 8*hour, EndMs: midnight + 10*hour, N: 12})
		require.Len(t, w.took(), 3, "one read for each group that has a series asked for")
	})
}

// TestCoarsestLevelThatFits is behaviour 26: Points reads the coarsest level with the requested resolution.
func TestCoarsestLevelThatFits(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.series(1, "cpu", "web-1")
		w.fill([]metric.ScheduleID{1}, midnight-3*day, noon, minute, wave)
		w.grind(1, midnight-3*day, midnight+12*hour)
		w.grind(2, midnight-3*day, midnight+12*hour)
		w.grind(3, midnight-3*day, midnight)
		w.took()
		for _, c := range []struct {
			name   string
			rng    query.Range
			expect []metric.Bucket
		}{
			{"a bucket is a day", query.Range{midnight - 3*day, midnight, 3}, []metric.Bucket{3}},
			{"a bucket is three days", query.Range{midnight - 3*day, midnight, 1}, []metric.Bucket{3}},
			{"a bucket is 12 h", query.Range{midnight - 3*day, midnight, 6}, []metric.Bucket{2}},
			{"a bucket is 6 h", query.Range{midnight - 3*day, midnight, 12}, []metric.Bucket{2}},
			{"a bucket is 4 h", query.Range{midnight - 2*day, midnight, 12}, []metric.Bucket{1}},
			{"a bucket is an hour", query.Range{midnight - day, midnight, 24}, []metric.Bucket{1}},
			{"a bucket is half an hour", query.Range{midnight - day, midnight, 48}, []metric.Bucket{0}},
			{"a day that begins at 6:00", query.Range{midnight - 2*day + 6*hour, midnight - day + 6*hour, 1}, []metric.Bucket{2}},
			{"a day that begins at 5:00", query.Range{midnight - 2*day + 5*hour, midnight - day + 5*hour, 1}, []metric.Bucket{1}},
			{"borders within rows, buckets too small to bother", query.Range{midnight - day + 1, midnight + 1, 24}, []metric.Bucket{0}},
			{"days that begin at 0:17", query.Range{midnight - 2*day + 17*minute, midnight + 17*minute, 2}, []metric.Bucket{0, 1, 0, 1, 0}},
		} {
			t.Run(c.name, func(t *testing.T) {
				w := *w
				w.t = t
				require.Len(t, w.checkPoints("cpu", c.rng), 1)
				require.Equal(t, c.expect, buckets(w.took()))
			})
		}
	})
}

// The end of a range is not a gap, even if it has not been ground yet.
func TestPointsOfOpenSlices(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.series(1, "cpu", "web-1")
		w.fill([]metric.ScheduleID{1}, midnight-2*day, noon, minute, wave)
		// The runs for 8:00 and 11:00 are missing, as are the 6h and 24h rows that need them.
		w.grind(1, midnight-2*day, midnight+8*hour)
		w.grind(1, midnight+9*hour, midnight+11*hour)
		w.grind(2, midnight-2*day, midnight+6*hour)
		w.grind(3, midnight-2*day, midnight)
		w.took()
		w.checkPoints("cpu", query.Range{StartMs: midnight - 2*day, EndMs: midnight + day, N: 3})
		require.Equal(t, []metric.Bucket{3, 2, 1, 0, 1, 0}, buckets(w.took()))
	})
}

// Where nobody knows what is ground, samples and finer rows are read instead of a row. If none are left, the row is, with a
// warning.
func TestPointsOfSlicesOutOfReach(t *testing.T) {
	w := newWorld(t, querytest.Settings(), storage.Retention{3 * 24 * time.Hour, 0, 0, 0})
	w.series(1, "cpu", "web-1")
	start := midnight - 6*day
	w.fill([]metric.ScheduleID{1}, start, noon, 10*minute, wave)
	for level := metric.Bucket(1); level <= 3; level++ {
		w.grind(level, start, midnight)
	}
	for _, c := range []struct {
		unread storage.UnreadSlices
		reads  []metric.Bucket
		warns  []string
	}{
		{storage.UnreadSlices{Bucket: 0, FromMs: midnight - day}, []metric.Bucket{3, 0}, nil},
		{storage.UnreadSlices{Bucket: 1, FromMs: midnight - 2*day}, []metric.Bucket{3, 1}, nil},
		{storage.UnreadSlices{Bucket: 2, FromMs: math.MinInt64}, []metric.Bucket{2}, nil},
		{
			storage.UnreadSlices{Bucket: 0, FromMs: math.MinInt64},
			[]metric.Bucket{1, 0},
			[]string{"incomplete: samples from 2025-11-15T00:00:00Z to 2025-11-18T13:00:00Z are not yet ground into the 1h rows"},
		},
	} {
		c.unread.Err = storage.ErrUnavailable
		w.q = query.New(w.parts(), query.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) {
			return nil, storage.UnreadError{c.unread}
		}})
		w.took()
		rng := query.Range{StartMs: start, EndMs: midnight, N: 6}
		if c.warns == nil {
			w.checkPoints("cpu", rng)
		}
		r, err := w.q.Points(t.Context(), w.sel("cpu"), rng)
		got := collect(t, r, err)
		require.Equal(t, c.warns, r.Warnings())
		require.Equal(t, c.reads, buckets(w.took()))
		for i, p := range got[0].Points {
			require.Equal(t, uint64(144), p.Count, "day %d", i)
		}
	}
	w.q = query.New(w.parts(), query.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) { return nil, storage.ErrUnavailable }})
	_, err := w.q.Points(t.Context(), w.sel("cpu"), query.Range{StartMs: start, EndMs: midnight, N: 4})
	require.ErrorIs(t, err, storage.ErrUnavailable)
}

// While nothing is ground, no run opens slices of the levels above.
func TestPointsWhileNothingIsGround(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(1, "cpu", "web-1")
	w.fill([]metric.ScheduleID{1}, midnight-2*day, noon, minute, wave)
	w.grind(1, midnight-2*day, midnight-day)
	w.grind(2, midnight-2*day, midnight-day)
	w.grind(3, midnight-2*day, midnight-day)
	w.took()
	w.checkPoints("cpu", query.Range{StartMs: midnight - 2*day, EndMs: midnight + day, N: 3})
	require.Equal(t, []metric.Bucket{3, 0}, buckets(w.took()))
}

// TestRangeOverRetentions is behaviour 28: a range beyond the retention of raw, 1h and 24h is answered from the best
// data left for each part, and no sample counts twice.
func TestRangeOverRetentions(t *testing.T) {
	keep := storage.Retention{2 * 24 * time.Hour, 4 * 24 * time.Hour, 6 * 24 * time.Hour, 0}
	onEachStoreKeeping(t, keep, func(t *testing.T, w *world) {
		w.series(1, "cpu", "web-1")
		start := midnight - 10*day
		w.fill([]metric.ScheduleID{1}, start, noon, 10*minute, wave)
		w.grind(1, start, midnight+12*hour)
		w.grind(2, start, midnight+12*hour)
		w.grind(3, start, midnight)

		// All rows still exist, so a row that is read twice would count twice.
		w.took()
		w.checkPoints("cpu", query.Range{StartMs: start, EndMs: midnight, N: 10})
		require.Equal(t, []metric.Bucket{3}, buckets(w.took()))

		// Half-hours: only raw fits; beyond its retention, the finest remaining level is read.
		rng := query.Range{StartMs: start, EndMs: midnight + 12*hour, N: 10*48 + 24}
		r, err := w.q.Points(t.Context(), w.sel("cpu"), rng)
		got := collect(t, r, err)
		require.Equal(t, []metric.Bucket{3, 2, 1, 0}, buckets(w.took()))
		// At 12:20, the time 6 days ago is in the row that began at 12:00. So the first whole day
		// of 6h rows begins at the following midnight.
		for _, c := range []struct {
			what       string
			fromMs     int64
			toMs       int64
			width      int64
			wholeUntil int64
		}{
			{"24h", start, midnight - 5*day, day, 0},
			{"6h", midnight - 5*day, midnight - 4*day + 18*hour, 6 * hour, 0},
			{"1h", midnight - 4*day + 18*hour, midnight - 2*day + 13*hour, hour, 0},
			{"raw", midnight - 2*day + 13*hour, midnight + 12*hour, hour / 2, 0},
		} {
			for at := c.fromMs; at < c.toMs; at += hour / 2 {
				p := got[0].Points[(at-start)/(hour/2)]
				if (at-start)%c.width != 0 {
					require.Zero(t, p.Count, "%s at %d: a row is in the bucket where it starts", c.what, at)
					continue
				}
				all := w.within(1, at, at+c.width)
				require.Equal(t, uint64(len(all)), p.Count, c.what)
			}
		}

		for _, name := range []string{"whole", "ends within rows"} {
			from, to := start, midnight+12*hour
			if name != "whole" {
				from, to = start+day, midnight-day+7*minute
			}
			res, err := w.q.Summary(t.Context(), w.sel("cpu"), from, to)
			sums := collect(t, res, err)
			require.Equal(t, uint64(len(w.within(1, from, to))), sums[0].Count, name)
		}
	})
}

// For a random range, history and retention, points match the raw samples, and no sample is lost or
// counted twice.
func TestPointsAgainstSamples(t *testing.T) {
	seed := uint64(time.Date(2025, 11, 21, 0, 0, 0, 0, time.UTC).Unix())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for range 15 {
		keep := storage.Retention{
			time.Duration(48+rnd.IntN(72)) * time.Hour,
			time.Duration(100+rnd.IntN(72)) * time.Hour,
			time.Duration(150+rnd.IntN(72)) * time.Hour,
			0,
		}
		if rnd.IntN(3) == 0 {
			keep = nil
		}
		history := rnd.Uint64()
		onEachStoreKeeping(t, keep, func(t *testing.T, w *world) {
			rnd := rand.New(rand.NewPCG(history, 1)) // the same history on each store
			w.series(1, "cpu", "web-1")
			w.series(6, "cpu", "web-6")
			w.series(17, "cpu", "web-17")
			start := midnight - 9*day
			w.fill([]metric.ScheduleID{1, 6, 17}, start, noon, int64(10+rnd.IntN(60))*minute, wave)
			for at := start; at < midnight+12*hour; at += hour {
				// Now and then a recent run is missing.
				if at > midnight-day && rnd.IntN(8) == 0 {
					continue
				}
				w.grind(1, at, at+hour)
			}
			w.grind(2, start, midnight+int64(rnd.IntN(3))*6*hour)
			w.grind(3, start, midnight-int64(rnd.IntN(2))*day)

			// While raw is kept, any range is exact; further back, whole days are.
			w.checkPoints("cpu", query.Range{StartMs: start, EndMs: midnight + day, N: 1})
			w.checkPoints("cpu", query.Range{StartMs: start, EndMs: midnight + day, N: 10})
			oldest := int64(36)
			if keep == nil {
				oldest = 8 * 24
			}
			for range 10 {
				from := noon - rnd.Int64N(oldest*hour)
				to := from + 1 + rnd.Int64N(noon-from)
				w.checkPoints("cpu", query.Range{StartMs: from, EndMs: to, N: 1 + rnd.IntN(40)})
				aligned := from - from%hour
				w.checkPoints("cpu", query.Range{StartMs: aligned, EndMs: aligned + int64(1+rnd.IntN(40))*hour, N: 1 + rnd.IntN(3)})
			}
		})
		if t.Failed() {
			return
		}
	}
}

func TestBadPointRequests(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	for _, rng := range []query.Range{
		{StartMs: noon, EndMs: noon, N: 1},
		{StartMs: noon, EndMs: noon - 1, N: 1},
		{StartMs: math.MinInt64, EndMs: noon, N: 1},
		{StartMs: noon, EndMs: math.MaxInt64, N: 1},
		{StartMs: noon - hour, EndMs: noon, N: 0},
		{StartMs: noon - hour, EndMs: noon, N: query.MaxPoints + 1},
	} {
		_, err := w.q.Points(t.Context(), w.sel("cpu"), rng)
		var bad *query.RequestError
		require.ErrorAs(t, err, &bad, "%+v", rng)
	}
}
