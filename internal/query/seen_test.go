package query_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/query/querytest"
	"github.com/quern/quern/internal/storage"
)

// seeing gives the world's querier new Sightings, as in a process that has just started.
func (w *world) seeing(shared bool) *query.Sightings {
	s := query.NewSightings(shared)
	w.q = query.New(w.parts(), query.Options{Sightings: s})
	return s
}

// since returns the series seen at or after a time.
func (w *world) since(tMs int64) []metric.ScheduleID {
	w.t.Helper()
	return w.lived(tMs, math.MaxInt64)
}

// lived returns the series that lived from a time to another.
func (w *world) lived(fromMs, toMs int64) []metric.ScheduleID {
	w.t.Helper()
	ids, warnings := w.livedWarned(fromMs, toMs)
	require.Empty(w.t, warnings)
	return ids
}

// livedWarned checks that all ways to ask agree.
func (w *world) livedWarned(fromMs, toMs int64) ([]metric.ScheduleID, []string) {
	w.t.Helper()
	warn := new(query.Warnings)
	sels := w.sel(`{__name__!=""}`)
	groups, err := w.q.GroupsLived(w.t.Context(), fromMs, toMs, warn, sels...)
	require.NoError(w.t, err)
	ids := []metric.ScheduleID{}
	var names []string
	for _, g := range groups {
		ids = append(ids, g.IDs()...)
		for i := range g.IDs() {
			names = append(names, g.Labels(i).Get(metric.NameLabel))
		}
	}
	for _, sels := range [][]query.Selector{sels, nil} {
		values, err := w.q.LabelValues(w.t.Context(), fromMs, toMs, warn, metric.NameLabel, sels...)
		require.NoError(w.t, err)
		require.ElementsMatch(w.t, names, values)
		labels, err := w.q.LabelNames(w.t.Context(), fromMs, toMs, warn, sels...)
		require.NoError(w.t, err)
		require.Equal(w.t, len(ids) > 0, len(labels) > 0)
	}
	return ids, warn.List()
}

func TestSince(t *testing.T) {
	onEachStore(t, func(t *testing.T, w *world) {
		for id := range metric.ScheduleID(20) {
			w.series(id, fmt.Sprint("m", id), "a")
		}
		// 0 reports today, 1 reported yesterday, 2 a month ago, 3 never, 4 a year ago. 5 has only
		// NaN. 13 is in another group and a quarter of an hour ahead.
		w.put(
			metric.Sample{Schedule: 0, TimeMs: noon - minute}, metric.Sample{Schedule: 0, TimeMs: midnight - 40*day},
			metric.Sample{Schedule: 1, TimeMs: midnight - hour},
			metric.Sample{Schedule: 2, TimeMs: midnight - 30*day},
			metric.Sample{Schedule: 4, TimeMs: midnight - 360*day},
			metric.Sample{Schedule: 5, TimeMs: noon - minute, Value: math.NaN()},
			metric.Sample{Schedule: 13, TimeMs: noon + 15*minute},
			metric.Sample{Schedule: 6, TimeMs: noon - minute, Value: metric.Tombstone()},
		)
		for level := metric.Bucket(1); level <= 3; level++ {
			for _, from := range []int64{midnight - 360*day, midnight - 40*day, midnight - 30*day, midnight - day} {
				w.grind(level, from, from+day)
			}
		}
		for _, shared := range []bool{false, true} {
			w.seeing(shared)
			for range 2 { // the second time from memory
				require.Equal(t, []metric.ScheduleID{0, 5, 13}, w.since(noon))
				require.Equal(t, []metric.ScheduleID{0, 5, 13}, w.since(midnight))
				require.Equal(t, []metric.ScheduleID{0, 1, 5, 13}, w.since(midnight-1))
				require.Equal(t, []metric.ScheduleID{0, 1, 5, 13}, w.since(midnight-29*day))
				require.Equal(t, []metric.ScheduleID{0, 1, 2, 5, 13}, w.since(midnight-30*day+hour))
				require.Equal(t, []metric.ScheduleID{0, 1, 2, 4, 5, 13}, w.since(midnight-3650*day))
				require.Len(t, w.since(math.MinInt64), 20)
				require.Empty(t, w.lived(math.MinInt64, midnight-361*day))
				require.Equal(t, []metric.ScheduleID{4}, w.lived(math.MinInt64, midnight-360*day))
				require.Equal(t, []metric.ScheduleID{0, 4}, w.lived(midnight-360*day, midnight-40*day))
				require.Equal(t, []metric.ScheduleID{0}, w.lived(midnight-39*day, midnight-31*day), "it lived through these days")
				require.Equal(t, []metric.ScheduleID{0, 2}, w.lived(midnight-30*day, midnight-2*day+hour))
				require.Equal(t, []metric.ScheduleID{0, 1}, w.lived(midnight-day, midnight-1))
				require.Equal(t, []metric.ScheduleID{0, 1, 5, 13}, w.lived(midnight-day, midnight))
				left, err := w.q.Left(t.Context(), []metric.ScheduleID{0, 3, 4, 6})
				require.NoError(t, err)
				require.Equal(t, []metric.ScheduleID{0, 4}, left)
			}
			w.took()
			require.Len(t, w.since(midnight-29*day), 4)
			require.Len(t, w.lived(midnight-30*day, midnight-29*day), 2)
			require.Empty(t, w.took(), "it is known")
		}
	})
}

// Ingested samples show at once, even if the series was known to be unseen.
func TestSinceIngest(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	s := w.seeing(false)
	w.series(0, "m0", "a")
	w.series(1, "m1", "a")
	require.Empty(t, w.since(midnight))
	s.Saw([]metric.Sample{{Schedule: 1, TimeMs: midnight - 3*day}, {Schedule: 0, TimeMs: midnight - day, Value: metric.Tombstone()}})
	require.Empty(t, w.since(midnight))
	require.Equal(t, []metric.ScheduleID{1}, w.since(midnight-3*day))
	s.Saw([]metric.Sample{{Schedule: 1, TimeMs: noon}, {Schedule: 1, TimeMs: midnight - 3*day}})
	require.Equal(t, []metric.ScheduleID{1}, w.since(midnight))
	require.Empty(t, w.lived(midnight-5*day, midnight-4*day))
	s.Saw([]metric.Sample{{Schedule: 1, TimeMs: midnight - 4*day}})
	require.Equal(t, []metric.ScheduleID{1}, w.lived(midnight-5*day, midnight-4*day))

	// It is deleted, and the store has nothing.
	s.Forget([]metric.ScheduleID{1})
	require.Empty(t, w.since(midnight-3*day))
	require.Empty(t, w.lived(math.MinInt64, midnight-4*day))
}

// Samples taken by other processes show after a while; known sightings are not looked up again.
func TestSinceOthers(t *testing.T) {
	for _, shared := range []bool{true, false} {
		w := newWorld(t, querytest.Settings(), retention)
		w.seeing(shared)
		w.series(0, "m0", "a")
		w.series(1, "m1", "a")
		require.Empty(t, w.since(midnight))
		require.Empty(t, w.lived(midnight-3*day, midnight-day))
		w.put(metric.Sample{Schedule: 0, TimeMs: noon}, metric.Sample{Schedule: 1, TimeMs: noon}, metric.Sample{Schedule: 1, TimeMs: midnight - 2*day})
		require.Empty(t, w.since(midnight))
		require.Empty(t, w.lived(midnight-3*day, midnight-day))
		w.clock.Set(w.clock.Now().Add(time.Minute))
		require.Len(t, w.since(midnight), map[bool]int{true: 2}[shared])
		require.Len(t, w.lived(midnight-3*day, midnight-day), map[bool]int{true: 1}[shared])
		w.took()
		w.clock.Set(w.clock.Now().Add(time.Minute))
		_ = w.since(midnight)
		require.Empty(t, w.took())
	}
}

// TestLived: at any time, a series is listed if its first and last day with samples are not on one side of the range.
func TestLived(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	s := w.seeing(false)
	const series, days = 30, 20
	rnd := rand.New(rand.NewPCG(1, 2))
	var first, last [series]int64
	for id := range metric.ScheduleID(series) {
		w.series(id, fmt.Sprint("m", id), "a")
		first[id], last[id] = math.MaxInt64, math.MinInt64
	}
	for range 150 {
		id, on := rnd.Int64N(series), rnd.Int64N(days)
		sample := metric.Sample{Schedule: metric.ScheduleID(id), TimeMs: midnight - on*day + rnd.Int64N(hour), Value: 1}
		w.put(sample)
		for level := metric.Bucket(1); level <= 3; level++ {
			w.grind(level, midnight-days*day, noon)
		}
		s.Saw([]metric.Sample{sample})
		first[id], last[id] = min(first[id], midnight-on*day), max(last[id], midnight-on*day)
		if rnd.IntN(50) == 0 { // as after a start
			s = w.seeing(false)
		}
		fromMs, toMs := midnight-rnd.Int64N(days)*day+rnd.Int64N(day), midnight-rnd.Int64N(days)*day+rnd.Int64N(day)
		want := []metric.ScheduleID{}
		for id := range series {
			if last[id]+day > fromMs && first[id] <= toMs {
				want = append(want, metric.ScheduleID(id))
			}
		}
		require.Equal(t, want, w.lived(fromMs, toMs))
	}
}

// Series that may have samples in a damaged chunk are listed, with a warning, and are looked up
// again once it is restored.
func TestSinceDamaged(t *testing.T) {
	for _, shared := range []bool{false, true} {
		w := newWorld(t, querytest.Settings(), retention)
		w.seeing(shared)
		for id := range metric.ScheduleID(20) { // in three groups
			w.series(id, fmt.Sprint("m", id), "a")
		}
		w.put(metric.Sample{Schedule: 1, TimeMs: noon - minute})
		bad := storage.RawChunk{SliceMs: midnight + hour, Chunk: storage.Chunk{ID: w.ids.Next(noon), Data: []byte("no chunk at all")}}
		require.NoError(t, w.store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: midnight + hour}}, Raw: []storage.RawChunk{bad}}))
		group := []metric.ScheduleID{0, 1, 2, 3, 4, 5, 6, 7}
		for range 2 {
			ids, warnings := w.livedWarned(midnight, math.MaxInt64)
			require.Equal(t, group, ids)
			require.Len(t, warnings, 1)
			require.Contains(t, warnings[0], "samples are missing: raw chunk")
			gone, err := w.q.Gone(t.Context(), append(slices.Clone(group), 9))
			require.NoError(t, err)
			require.Equal(t, 1, gone)
		}
		bad.Data = blocks.AppendSamples(nil, []metric.Sample{{Schedule: 3, TimeMs: midnight + hour}})
		require.NoError(t, w.store.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{{StartMs: midnight + hour}}, Raw: []storage.RawChunk{bad}}))
		require.Equal(t, []metric.ScheduleID{1, 3}, w.since(midnight))
	}
}

// A reading does not record a series that is forgotten meanwhile.
func TestSinceForgottenMeanwhile(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	s := w.seeing(false)
	w.series(0, "m0", "a")
	w.put(metric.Sample{Schedule: 0, TimeMs: noon - minute})
	w.store.after = func() {
		w.put(metric.Sample{Schedule: 0, TimeMs: noon - minute, Value: metric.Tombstone()})
		s.Forget([]metric.ScheduleID{0})
	}
	_, err := w.q.GroupsLived(t.Context(), midnight, math.MaxInt64, new(query.Warnings), w.sel(`{__name__!=""}`)...)
	require.NoError(t, err)
	require.Nil(t, w.store.after)
	require.Empty(t, w.since(midnight))
}

// TestLooksOutlastRequests: to look takes longer than any request has. It goes on when the one that
// began it has gone, others who ask the same wait for it, and what other processes hold is told
// although it would serve no longer than it took.
func TestLooksOutlastRequests(t *testing.T) {
	for _, shared := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, querytest.Settings(), retention)
			s := w.seeing(shared)
			for id := range metric.ScheduleID(100) { // in 13 groups
				w.series(id, fmt.Sprint("m", id), "a")
			}
			w.put(metric.Sample{Schedule: 3, TimeMs: noon - minute}, metric.Sample{Schedule: 90, TimeMs: noon - minute})
			reads := 0
			w.store.before = func(ctx context.Context) error {
				w.store.mu.Lock()
				reads++
				elapsed := time.Duration(reads) * 20 * time.Second
				w.store.mu.Unlock()
				select {
				case <-time.After(20 * time.Second):
					w.clock.Set(time.UnixMilli(noon).Add(elapsed))
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			sels := w.sel(`{__name__!=""}`)
			ask := func() ([]metric.ScheduleID, error) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				groups, err := w.q.GroupsLived(ctx, midnight, math.MaxInt64, new(query.Warnings), sels...)
				var ids []metric.ScheduleID
				for _, g := range groups {
					ids = append(ids, g.IDs()...)
				}
				return ids, err
			}
			for range 2 {
				_, err := ask()
				require.ErrorIs(t, err, context.DeadlineExceeded)
			}
			// It began before this was taken, in a group that it has been through.
			s.Saw([]metric.Sample{{Schedule: 5, TimeMs: noon}})
			ids, err := ask()
			require.NoError(t, err)
			require.Equal(t, []metric.ScheduleID{3, 5, 90}, ids)
			require.Equal(t, 13, reads)
		})
	}
}

// TestLooksAreNotedByGroup: what breaks off has not been in vain.
func TestLooksAreNotedByGroup(t *testing.T) {
	w := newWorld(t, querytest.Settings(), retention)
	w.q = query.New(w.parts(), query.Options{Sightings: query.NewSightings(false), Parallel: 1})
	for id := range metric.ScheduleID(100) { // in 13 groups
		w.series(id, fmt.Sprint("m", id), "a")
	}
	w.put(metric.Sample{Schedule: 90, TimeMs: noon - minute})
	reads := 0
	w.store.before = func(context.Context) error {
		if reads++; reads%4 == 0 {
			return errors.New("away")
		}
		return nil
	}
	sels := w.sel(`{__name__!=""}`)
	tries := 1
	for ; ; tries++ {
		groups, err := w.q.GroupsLived(t.Context(), midnight, math.MaxInt64, new(query.Warnings), sels...)
		if err == nil {
			require.Len(t, groups, 1)
			break
		}
		require.ErrorContains(t, err, "away")
		require.Less(t, tries, 10)
	}
	require.Equal(t, 13+tries-1, reads)
}
