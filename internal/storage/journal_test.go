package storage_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

func journal() (*storagetest.Faulty, *clock.Simulated) {
	clk := clock.NewSimulated(time.Date(2025, time.November, 21, 12, 0, 0, 0, time.UTC))
	return storagetest.NewFaulty(storagetest.NewModel(storagetest.TestSettings(), nil, clk)), clk
}

// TestRuns: the newest come first, as many as asked for, and nobody reads further. They are kept for 30 days.
func TestRuns(t *testing.T) {
	st, clk := journal()
	now := func() int64 { return clk.Now().UnixMilli() }
	var want []storage.Run
	for i, startedMs := range []int64{now() - 1, now(), 0, 9_999_999_999_999} {
		r := storage.Run{
			SliceKey: storage.SliceKey{Bucket: 1, StartMs: 3_600_000}, Worker: "ä", StartedMs: startedMs, Duration: time.Second, Blocks: i,
			Schedules: 1, BlockQueries: 2, IndexQueries: 3, Late: 4, Rescheduled: 5, Dropped: 6, Err: "é",
		}
		want = append(want, r)
		for range 2 { // once more is the same
			require.NoError(t, storage.RecordRun(t.Context(), st, r))
		}
	}
	slices.SortFunc(want, func(a, b storage.Run) int { return int(b.StartedMs - a.StartedMs) })
	for _, limit := range []int{0, 1, 3, 4, 5} {
		got, err := storage.RecentRuns(t.Context(), st, limit)
		require.NoError(t, err)
		require.Equal(t, want[:min(limit, len(want))], append([]storage.Run{}, got...))
	}
	st.Add(storagetest.Rule{Op: "Items.next", Times: 2})
	st.Fail("Items.next", blocks.Range{}, 1, storage.ErrTimeout)
	_, err := storage.RecentRuns(t.Context(), st, 1)
	require.NoError(t, err)
	_, err = storage.RecentRuns(t.Context(), st, 1)
	require.ErrorIs(t, err, storage.ErrTimeout)

	clk.Set(clk.Now().Add(30*24*time.Hour - time.Millisecond))
	got, err := storage.RecentRuns(t.Context(), st, 9)
	require.NoError(t, err)
	require.Len(t, got, 4)
	clk.Set(clk.Now().Add(time.Millisecond))
	got, err = storage.RecentRuns(t.Context(), st, 9)
	require.NoError(t, err)
	require.Empty(t, got)
}

// TestErrors: of each component the last ten are shown, of whatever process, and a process keeps no more. They are kept for
// a week.
func TestErrors(t *testing.T) {
	st, clk := journal()
	logs := map[string]*storage.ErrorLog{}
	for _, name := range []string{"a/1", "a/2", "b/1"} {
		logs[name] = storage.NewErrorLog(st, name[:1], name[2:])
	}
	put := func(name string, n int) {
		t.Helper()
		require.NoError(t, logs[name].Record(t.Context(), storage.ComponentError{TimeMs: int64(n), Start: -1, Message: fmt.Sprint(n)}))
	}
	read := func(want ...string) {
		t.Helper()
		got, err := storage.RecentErrors(t.Context(), st)
		require.NoError(t, err)
		var texts []string
		for _, e := range got {
			require.Equal(t, fmt.Sprint(e.TimeMs), e.Message)
			texts = append(texts, e.Component+"/"+e.Worker+" "+e.Message)
		}
		require.Equal(t, want, texts)
	}
	read()
	for n := range 25 {
		put("a/1", n)
	}
	put("a/2", 23)
	put("a/2", 2)
	put("b/1", 20)
	read("a/1 24", "a/1 23", "a/2 23", "a/1 22", "a/1 21", "a/1 20", "b/1 20", "a/1 19", "a/1 18", "a/1 17", "a/1 16")
	kept := 0
	for _, err := range st.Items(t.Context(), storage.KindError, "", "") {
		require.NoError(t, err)
		kept++
	}
	require.Equal(t, 10+2+1, kept)
	clk.Set(clk.Now().Add(7*24*time.Hour - time.Second))
	put("a/2", 30)
	clk.Set(clk.Now().Add(time.Second))
	read("a/2 30")
}

// TestWorkers: a worker is alive until its last heartbeat has expired.
func TestWorkers(t *testing.T) {
	st, clk := journal()
	alive := func(want ...storage.Worker) {
		t.Helper()
		got, err := storage.Workers(t.Context(), st)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	alive()
	a, b := storage.Worker{ID: "a", Host: "h2", StartedMs: 3, SeenMs: 4, Aggregates: true}, storage.Worker{ID: "b", Host: "h1", StartedMs: 1, SeenMs: 2}
	require.NoError(t, storage.Heartbeat(t.Context(), st, b, time.Minute))
	require.NoError(t, storage.Heartbeat(t.Context(), st, a, time.Hour))
	alive(a, b)
	clk.Set(clk.Now().Add(time.Minute - time.Millisecond))
	alive(a, b)
	b.SeenMs = 5
	require.NoError(t, storage.Heartbeat(t.Context(), st, b, time.Minute))
	clk.Set(clk.Now().Add(time.Minute - time.Millisecond))
	alive(a, b)
	clk.Set(clk.Now().Add(time.Millisecond))
	alive(a)
	st.Fail("Items", blocks.Range{}, 1, storage.ErrTimeout)
	_, err := storage.Workers(t.Context(), st)
	require.ErrorIs(t, err, storage.ErrTimeout)
}

// TestDamagedRecords: what can be read is there. The first that cannot is named, but for a heartbeat, which is soon replaced.
func TestDamagedRecords(t *testing.T) {
	st, _ := journal()
	require.NoError(t, storage.RecordRun(t.Context(), st, storage.Run{}))
	require.NoError(t, storage.NewErrorLog(st, "x", "y").Record(t.Context(), storage.ComponentError{}))
	require.NoError(t, storage.Heartbeat(t.Context(), st, storage.Worker{ID: "x"}, time.Hour))
	for _, kind := range []string{storage.KindRun, storage.KindError, storage.KindWorker} {
		for _, id := range []string{"!", "~"} {
			require.NoError(t, st.PutItems(t.Context(), []storage.Item{{ItemKey: storage.ItemKey{Kind: kind, ID: id}, Value: []byte("[]")}}))
		}
	}
	runs, err := storage.RecentRuns(t.Context(), st, 9)
	require.Len(t, runs, 1)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, `item "!" of the kind run`)
	errs, err := storage.RecentErrors(t.Context(), st)
	require.Len(t, errs, 1)
	require.ErrorIs(t, err, storage.ErrCorrupt)
	require.ErrorContains(t, err, `item "!" of the kind error`)
	workers, err := storage.Workers(t.Context(), st)
	require.Len(t, workers, 1)
	require.NoError(t, err)
}
