package query_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/late"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// full is a full hour.
var full = midnight + 12*hour

// several makes two worlds of one history. In w each series has up to three ids, in the same storage group and in
// others. In one it has a single id.
func several(t *testing.T, w *world, rng *rand.Rand) (one *world, as map[metric.ScheduleID]metric.ScheduleID) {
	one = newWorld(t, querytest.Settings(), retention)
	as = map[metric.ScheduleID]metric.ScheduleID{}
	for id := range metric.ScheduleID(60) {
		id += 240
		series := metric.ScheduleID(rng.IntN(25))
		as[id] = series
		w.series(id, "m", fmt.Sprint(series))
		one.series(series, "m", fmt.Sprint(series))
	}
	return one, as
}

// TestSeveralIDs: the samples of series with several ids are those of series with one, whichever id was written last.
func TestSeveralIDs(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		const seed = 7
		rng := rand.New(rand.NewPCG(seed, seed))
		one, as := several(t, w, rng)
		ids := slices.Sorted(func(yield func(metric.ScheduleID) bool) {
			for id := range as {
				if !yield(id) {
					return
				}
			}
		})
		for n := range 800 {
			id := ids[rng.IntN(len(ids))]
			s := metric.Sample{Schedule: id, TimeMs: noon - 5*hour + rng.Int64N(60)*5*minute, Value: float64(n)}
			if rng.IntN(20) == 0 {
				s.Value = metric.Tombstone()
			}
			w.put(s)
			s.Schedule = as[id]
			one.put(s)
		}
		const sel = `m`
		export := func(w *world) map[string]string {
			r, err := w.q.Export(t.Context(), w.sel(sel), noon-6*hour, noon+hour)
			out := map[string]string{}
			for v, err := range r.All() {
				require.NoError(t, err)
				for _, s := range v.Samples {
					out[v.Labels.String()] += fmt.Sprint(s.TimeMs, "=", s.Value, " ")
				}
			}
			require.NoError(t, err)
			require.Empty(t, r.Warnings())
			return out
		}
		require.Equal(t, export(one), export(w))

		points := func(w *world) map[string]string {
			r, err := w.q.Points(t.Context(), w.sel(sel), query.Range{StartMs: noon - 6*hour, EndMs: noon, N: 24})
			out := map[string]string{}
			for _, v := range collect(t, r, err) {
				require.NotContains(t, out, v.Labels.String())
				out[v.Labels.String()] = fmt.Sprint(v.Points)
			}
			return out
		}
		require.Equal(t, points(one), points(w))

		summary := func(w *world) map[string]string {
			r, err := w.q.Summary(t.Context(), w.sel(sel), noon-4*hour, noon)
			out := map[string]string{}
			for _, v := range collect(t, r, err) {
				require.NotContains(t, out, v.Labels.String())
				out[v.Labels.String()] = fmt.Sprint(v.Point, v.P50, v.P90, v.P99)
			}
			return out
		}
		require.Equal(t, summary(one), summary(w))

		for _, lookback := range []time.Duration{20 * time.Minute, query.MaxLookback} {
			latest := func(w *world) map[string]string {
				r, err := w.q.Latest(t.Context(), w.sel(sel), lookback)
				out := map[string]string{}
				for _, v := range collect(t, r, err) {
					require.NotContains(t, out, v.Labels.String())
					out[v.Labels.String()] = fmt.Sprint(v.TimeMs, v.Value)
				}
				return out
			}
			require.Equal(t, latest(one), latest(w))
		}

		groups := func(w *world) (out []string) {
			all, err := w.q.Groups(t.Context(), w.sel(sel)...)
			require.NoError(t, err)
			for _, g := range all {
				for i := range g.IDs() {
					out = append(out, g.Labels(i).String())
				}
			}
			slices.Sort(out)
			return out
		}
		require.Equal(t, groups(one), groups(w))
	})
}

// TestSeveralIDsTogether: series whose ids lie in the same storage groups are read together.
func TestSeveralIDsTogether(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	for i := range metric.ScheduleID(100) {
		w.series(i, "m", fmt.Sprint(i))
		w.series(600+99-i, "m", fmt.Sprint(i))
		w.put(metric.Sample{Schedule: i, TimeMs: noon - minute, Value: 1}, metric.Sample{Schedule: 600 + 99 - i, TimeMs: noon - minute, Value: float64(i)})
	}
	w.took()
	r, err := w.q.Export(t.Context(), w.sel("m"), noon-hour, noon)
	got := collect(t, r, err)
	require.Len(t, got, 100)
	require.Len(t, w.took(), 50, "each of the 50 storage groups once")
	for _, s := range got {
		require.Less(t, s.ID, metric.ScheduleID(100))
	}
}

// TestRowsOfSeveralIDs: rows of the same slice are added up, and the answer says so.
func TestRowsOfSeveralIDs(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		w.series(3, "m", "web")
		w.series(4, "m", "other")
		w.series(700, "m", "web")
		// The series changes from 700 to 3 at full - 100h + 30m and back at full - 50h + 30m. It is a counter.
		from := full - 150*hour
		count := func(tMs int64) float64 { return float64(tMs-from) / float64(minute) }
		for at := from; at < full-hour; at += 10 * minute {
			id := metric.ScheduleID(700)
			if at >= full-100*hour+30*minute && at < full-50*hour+30*minute {
				id = 3
			}
			w.put(metric.Sample{Schedule: id, TimeMs: at, Value: count(at)}, metric.Sample{Schedule: 4, TimeMs: at, Value: 1})
		}
		w.grind(1, from, full-hour)

		r, err := w.q.Rollups(t.Context(), w.sel(`m{source="web"}`), 1, from, full-hour)
		rows := collect(t, r, err)
		require.Len(t, rows, 149)
		for _, row := range rows {
			first := count(row.TimeMs)
			require.EqualValues(t, 6, row.Count)
			require.Equal(t, []float64{first, first + 50, first, first + 50, 50, 6*first + 150}, []float64{row.First, row.Last, row.Min, row.Max, row.Increase, row.Sum})
			require.InEpsilon(t, first+20, row.P50+1e-9, 0.02)
			require.EqualValues(t, 3, row.Schedule)
		}
		require.Equal(t, []string{`several ids: m{source="web"} has the ids 3 and 700, whose 1h rows are added up: a sample that several of them have counts several times`}, r.Warnings())

		s, err := w.q.Summary(t.Context(), w.sel(`m{source="web"}`), from, full-hour)
		sums := collect(t, s, err)
		require.Len(t, sums, 1)
		require.EqualValues(t, 149*6, sums[0].Count)
		require.Equal(t, r.Warnings(), s.Warnings())

		b, err := w.q.Baseline(t.Context(), w.sel(`m{source="web"}`), from, full-hour)
		base := collect(t, b, err)
		require.Len(t, base, 1)
		require.Equal(t, 149, base[0].Rows)

		// Nothing of one slice is under both ids: nothing is added up.
		quiet, err := w.q.Summary(t.Context(), w.sel(`m{source="web"}`), from, full-110*hour)
		require.EqualValues(t, 40*6, collect(t, quiet, err)[0].Count)
		require.Empty(t, quiet.Warnings())
	})
}

// TestRowsOfEqualSamples: samples that both ids have count twice, and a counter that is in both is not reset.
func TestRowsOfEqualSamples(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(3, "m", "web")
	w.series(700, "m", "web")
	for i := range int64(6) {
		for _, id := range []metric.ScheduleID{3, 700} {
			w.put(metric.Sample{Schedule: id, TimeMs: full - 3*hour + i*minute, Value: float64(1_000_000 + i)})
		}
	}
	w.grind(1, full-3*hour, full-2*hour)
	r, err := w.q.Rollups(t.Context(), w.sel("m"), 1, full-3*hour, full)
	rows := collect(t, r, err)
	require.Len(t, rows, 1)
	require.EqualValues(t, 12, rows[0].Count)
	require.InDelta(t, 10, rows[0].Increase, 0)
	require.Len(t, r.Warnings(), 1)
}

// TestIDsGetOtherLabels: an id that turns out to belong to another series leaves those that it was one of.
func TestIDsGetOtherLabels(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	x := query.NewIndex()
	now := map[metric.ScheduleID]string{}
	for range 2000 {
		id, source := metric.ScheduleID(rng.IntN(40)), fmt.Sprint(rng.IntN(12))
		now[id] = source
		x.Add([]storage.Schedule{{ID: id, Labels: querytest.Named("m", metric.Label{Name: metric.SourceLabel, Value: source})}})
	}
	q := query.New(query.Parts{Store: newWorld(t, querytest.Settings(), retention).store, Index: x, Settings: querytest.Settings()}, query.Options{})
	sels, err := query.ParseSelectors(t.Context(), []string{"m"})
	require.NoError(t, err)
	groups, err := q.Groups(t.Context(), sels...)
	require.NoError(t, err)
	want := map[string]metric.ScheduleID{}
	for id, source := range now {
		if first, known := want[source]; !known || id < first {
			want[source] = id
		}
	}
	got := map[string]metric.ScheduleID{}
	for _, g := range groups {
		for i, id := range g.IDs() {
			got[g.Labels(i).Get(metric.SourceLabel)] = id
		}
	}
	require.Equal(t, want, got)
}

// TestLateUnderTheOtherID: a row is passed by while late data waits under any id of its series.
func TestLateUnderTheOtherID(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.series(3, "m", "web")
	w.series(700, "m", "web")
	start := 3 * hour
	for i := range int64(6) {
		w.put(metric.Sample{Schedule: 3, TimeMs: full - start + i*minute, Value: 1})
	}
	w.grind(1, full-start, full-2*hour)
	w.put(metric.Sample{Schedule: 700, TimeMs: full - start + 30*minute, Value: 1})
	now := storage.SliceKey{Bucket: metric.Raw, StartMs: full}
	tracker := late.New(w.store, w.clock, late.Options{Outstanding: func(context.Context) ([]storage.SliceKey, error) {
		return []storage.SliceKey{now}, nil
	}})
	_, err := tracker.View(t.Context())
	require.NoError(t, err)
	q := query.New(w.parts(), query.Options{Late: tracker})
	count := func() uint64 {
		r, err := q.Summary(t.Context(), w.sel("m"), full-start, full-2*hour)
		return collect(t, r, err)[0].Count
	}
	require.EqualValues(t, 6, count(), "the row")
	tracker.Note([]storage.PlacedMark{{
		Partition: storage.IndexPartition{SliceKey: now},
		Mark:      storage.Mark{Start: 700, TimeMs: full - start, ID: w.ids.Next(full), Kind: storage.MarkLate},
	}})
	require.EqualValues(t, 7, count(), "the samples")
}
