package aggregation_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/app/engine"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/operate/aggregation"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/rollup"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
	"github.com/quern/quern/internal/wire"
)

func (w *world) slices(from, to storage.SliceKey) wire.Slices {
	w.Helper()
	got, err := w.r.Slices(w.Context(), from.StartMs, to.StartMs)
	require.NoError(w, err)
	return got
}

// states returns the states of the slices of a bucket, by their hours.
func states(bucket wire.BucketSlices) string {
	var out []string
	for _, s := range bucket.Slices {
		out = append(out, fmt.Sprintf("%d %s", (s.Start-raw(0).StartMs)/time.Hour.Milliseconds(), s.State))
	}
	return fmt.Sprint(out)
}

// TestSlices: the time line has each slice on record with its state, what waits for it, and its runs.
func TestSlices(t *testing.T) {
	w := newWorld(t)
	complete := func(k storage.SliceKey) {
		w.mark(k, k)
		require.NoError(t, w.CompleteSlice(t.Context(), k))
	}
	old := raw(-24 * 8)
	w.mark(old, old, 0)
	complete(raw(5))
	complete(raw(6))
	w.mark(raw(12), raw(6), 0, 1)
	w.mark(raw(12), raw(2), 1) // of a slice whose record has been removed
	complete(raw(7))
	w.mark(raw(8), raw(8), 0, 1)
	require.NoError(t, w.BeginSlice(t.Context(), raw(8)))
	w.mark(raw(15), raw(15), 0)
	complete(storage.SliceKey{Bucket: 1, StartMs: raw(0).StartMs})
	w.mark(storage.SliceKey{Bucket: 1, StartMs: raw(6).StartMs}, raw(6), 1)
	for _, r := range []storage.Run{
		{SliceKey: raw(5), Worker: "a", StartedMs: raw(6).StartMs, Duration: time.Second, Blocks: 3, Schedules: 10, BlockQueries: 3, IndexQueries: 1},
		{SliceKey: raw(5), Worker: "b", StartedMs: raw(6).StartMs + 1, Duration: time.Second / 2, Blocks: 1, Schedules: 4, BlockQueries: 1, IndexQueries: 1},
		{SliceKey: raw(7), Worker: "a", StartedMs: raw(8).StartMs, Dropped: 2},
		{SliceKey: raw(8), Worker: "a", StartedMs: raw(9).StartMs, Err: "gone"},
	} {
		require.NoError(t, storage.RecordRun(t.Context(), w, r))
	}
	errorLog := storage.NewErrorLog(w, "run", "a")
	for i := range 7 {
		require.NoError(t, errorLog.Record(t.Context(), storage.ComponentError{
			TimeMs: raw(9).StartMs + int64(i)*1000, SliceKey: raw(8), Start: -1, Message: fmt.Sprint("no ", i),
		}))
	}

	got := w.slices(raw(1), raw(24))
	require.Nil(t, got.RunsSince)
	require.Empty(t, got.Unread)
	require.Len(t, got.Buckets, 2)
	require.Equal(t, "[2 late 5 complete 6 late 7 partial 8 outstanding 12 open 15 ahead]", states(got.Buckets[0]))
	require.Equal(t, "[0 complete 6 outstanding]", states(got.Buckets[1]))
	require.Equal(t, []int64{raw(1).StartMs, raw(24).StartMs, raw(0).StartMs, raw(24).StartMs},
		[]int64{got.Buckets[0].Start, got.Buckets[0].End, got.Buckets[1].Start, got.Buckets[1].End})
	state := func(i int) string {
		text, err := json.Marshal(got.Buckets[0].Slices[i])
		require.NoError(t, err)
		return string(text)
	}
	require.JSONEq(t, `{"start":1763701200000,"end":1763704800000,"state":"complete","begun":false,"expired":false,"marks":0,"late":0,
		"runs":2,"blocks":4,"schedules":14,"queries":6,"n_plus_1":15,"dropped":0,"duration":1.5,"worker":"b"}`, state(1))
	require.JSONEq(t, `{"start":1763704800000,"end":1763708400000,"state":"late","begun":false,"expired":false,"marks":2,"late":2,"run_at":1763730120000,
		"runs":0,"blocks":0,"schedules":0,"queries":0,"n_plus_1":0,"dropped":0,"duration":0,"worker":""}`, state(2))
	require.JSONEq(t, `{"start":1763712000000,"end":1763715600000,"state":"outstanding","begun":true,"expired":false,"marks":2,"late":0,"run_at":1763715720000,
		"runs":1,"blocks":0,"schedules":0,"queries":0,"n_plus_1":1,"dropped":0,"duration":0,"worker":"a",
		"errors":["2025-11-21T09:00:02Z run: no 2","2025-11-21T09:00:03Z run: no 3","2025-11-21T09:00:04Z run: no 4","2025-11-21T09:00:05Z run: no 5","2025-11-21T09:00:06Z run: no 6"]}`, state(4))

	got = w.slices(raw(-24*9), raw(-24*7))
	require.Equal(t, "[-192 expired]", states(got.Buckets[0]))
	require.True(t, got.Buckets[0].Slices[0].Expired)
	require.Equal(t, 1, got.Buckets[0].Slices[0].Marks)
}

// TestSlicesAreBounded: a bucket has its newest slices of a long time, and says from when.
func TestSlicesAreBounded(t *testing.T) {
	w := newWorld(t)
	for i := range 700 {
		k := raw(12 - i)
		require.NoError(t, w.Write(t.Context(), &storage.Batch{Open: []storage.SliceKey{k}}))
		require.NoError(t, w.CompleteSlice(t.Context(), k))
	}
	got, err := w.r.Slices(t.Context(), raw(-3000).StartMs, raw(12).StartMs+1)
	require.NoError(t, err)
	require.Len(t, got.Buckets[0].Slices, 500)
	require.Equal(t, raw(12-499).StartMs, got.Buckets[0].Start)
	require.Equal(t, got.Buckets[0].Start, got.Buckets[0].Slices[0].Start)
	require.Equal(t, raw(18-500*6).StartMs, got.Buckets[1].Start)

	// Runs before the oldest that is looked at are unknown.
	for i := range 10_001 {
		require.NoError(t, storage.RecordRun(t.Context(), w, storage.Run{SliceKey: raw(11), StartedMs: raw(12).StartMs + int64(i)}))
	}
	got = w.slices(raw(9), raw(13))
	require.Equal(t, raw(12).StartMs+1, *got.RunsSince)
	require.Equal(t, []bool{true, true, true, false}, []bool{
		got.Buckets[0].Slices[0].RunsUnknown, got.Buckets[0].Slices[1].RunsUnknown, got.Buckets[0].Slices[2].RunsUnknown, got.Buckets[0].Slices[3].RunsUnknown,
	})
	require.Equal(t, 10_000, got.Buckets[0].Slices[2].Runs)

	// The request is charged, and refused where there is no room.
	claim := limits.NewBudget(2<<20, 1<<20).Claim(limits.Client{})
	_, err = w.r.Slices(limits.WithClaim(t.Context(), &claim), raw(9).StartMs, raw(13).StartMs)
	require.ErrorIs(t, err, limits.ErrNoRoom)
}

// TestUnreadSlices: the time line does without what is out of reach, and says so.
func TestUnreadSlices(t *testing.T) {
	away := fmt.Errorf("%w: its copies are gone", storage.ErrUnavailable)
	for op, want := range map[string]string{"run": "the last runs: ", "error": "the last errors: ", "Marks": "marks of raw slice "} {
		w := newWorld(t)
		w.mark(raw(10), raw(10), 0)
		w.fail(op, away)
		got := w.slices(raw(9), raw(13))
		require.Len(t, got.Unread, 1)
		require.Contains(t, got.Unread[0], want)
		require.Equal(t, "[10 outstanding]", states(got.Buckets[0]))
		require.Equal(t, op == "run", got.RunsSince != nil)
		require.Equal(t, op == "run", got.Buckets[0].Slices[0].RunsUnknown)
	}
	for _, op := range []string{"Marks", "Slices"} {
		w := newWorld(t)
		w.mark(raw(10), raw(10), 0)
		w.Add(storagetest.Rule{Op: op, Times: -1, Before: func() error { return storage.ErrCorrupt }})
		_, err := w.r.Slices(t.Context(), raw(9).StartMs, raw(13).StartMs)
		require.ErrorIs(t, err, storage.ErrCorrupt, op)
	}

	w := newWorld(t)
	six := storage.SliceKey{Bucket: 1, StartMs: raw(6).StartMs}
	w.mark(raw(10), raw(10), 0)
	w.mark(six, six, 0)
	apart := storagetest.NewApart(w.Faulty)
	apart.FailSlices(func(b metric.Bucket) error { return map[metric.Bucket]error{metric.Raw: away}[b] })
	clk := clock.NewSimulated(now)
	r := aggregation.New(apart, recovery.New(apart, cache.New(apart, clk, 1, cache.DefaultTiming()), clk, recovery.Options{}), clk)
	got, err := r.Slices(t.Context(), raw(9).StartMs, raw(13).StartMs)
	require.NoError(t, err)
	require.Equal(t, []string{"[]", "[6 outstanding]"}, []string{states(got.Buckets[0]), states(got.Buckets[1])})
	require.Equal(t, []wire.Range{{Start: raw(9).StartMs, End: raw(13).StartMs}}, got.Buckets[0].Unknown)
	require.Empty(t, got.Buckets[1].Unknown)
	require.Equal(t, []string{
		"what is outstanding: read the slices of raw: the store is unavailable: its copies are gone", "the slices of raw: the store is unavailable: its copies are gone",
	}, got.Unread)
	st, err := r.AggregationStatus(t.Context(), false)
	require.NoError(t, err)
	require.Equal(t, got.Unread[:1], st.Unread)
	require.Empty(t, st.Buckets[0].Outstanding)
	require.Len(t, st.Buckets[1].Outstanding, 1)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = w.r.Slices(ended, raw(9).StartMs, raw(13).StartMs)
	require.ErrorIs(t, err, context.Canceled)
}

// TestSlicesOfAnEngine: the time line of what an engine takes and grinds, with late data.
func TestSlicesOfAnEngine(t *testing.T) {
	clk := clock.NewSimulated(raw11())
	st := storagetest.NewModel(storagetest.TestSettings(), nil, clk)
	e := engine.New(engine.Options{Store: st, Clock: clk, Worker: storage.Worker{ID: "w"}, Rollup: &rollup.Options{Parallel: 1}})
	e.Start(t.Context(), registry.Options{}, ingest.Options{})
	defer func() { require.NoError(t, e.Close()) }()
	take := func(ago time.Duration) {
		t.Helper()
		res, err := e.Ingest.Append(t.Context(), []ingest.Report{{Source: "host", Measurements: []ingest.Measurement{
			{Metric: "cpu", TimeMs: clk.Now().Add(-ago).UnixMilli(), Value: 1}, {Metric: "mem", TimeMs: clk.Now().Add(-ago).UnixMilli(), Value: 1},
		}}})
		require.NoError(t, err)
		require.Equal(t, 2, res.Accepted)
	}
	line := func() wire.BucketSlices {
		t.Helper()
		got, err := aggregation.New(st, e.Recovery, clk).Slices(t.Context(), raw(9).StartMs, raw(24).StartMs)
		require.NoError(t, err)
		i := slices.IndexFunc(got.Buckets, func(b wire.BucketSlices) bool { return b.Bucket == "raw" })
		return got.Buckets[i]
	}
	take(0)
	require.Equal(t, "[11 open]", states(line()))
	clk.Set(raw11().Add(90 * time.Minute))
	_, err := e.Runner.RunDue(t.Context())
	require.NoError(t, err)
	all := line()
	require.Equal(t, "[11 complete]", states(all))
	require.Equal(t, 2, all.Slices[0].Schedules)
	require.Equal(t, 3, all.Slices[0].NPlus1)
	require.Positive(t, all.Slices[0].Queries)
	require.Equal(t, "w", all.Slices[0].Worker)
	require.False(t, math.Signbit(all.Slices[0].Duration))

	take(90 * time.Minute)
	all = line()
	require.Equal(t, "[11 late 12 open]", states(all))
	require.Equal(t, raw(13).StartMs+e.Cache.Timing().Delay.Milliseconds(), *all.Slices[0].RunAt)
	clk.Set(raw11().Add(150 * time.Minute))
	_, err = e.Runner.RunDue(t.Context())
	require.NoError(t, err)
	require.Equal(t, "[11 complete 12 complete]", states(line()))
}

// raw11 is the start of the raw slice of 11:00.
func raw11() time.Time { return time.UnixMilli(raw(11).StartMs) }
