package storagetest

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// operationsCases test storage.Operations.
var operationsCases = []conformanceCase{
	{"Runs", (*suite).runs, nil},
	{"Errors", (*suite).errors, nil},
	{"Workers", (*suite).workers, nil},
	{"WorkersExpire", (*suite).workersExpire, []Missing{MissingTTL}},
}

func (s *suite) runs() {
	var want []storage.Run
	for i := range 30 {
		r := storage.Run{
			SliceKey: storage.SliceKey{Bucket: metric.Bucket(i % 3), StartMs: at(i)}, Worker: "w", StartedMs: at(i) + 1,
			Duration: time.Duration(i) * time.Second, Blocks: i, Schedules: i * 128, BlockQueries: i + 1,
			IndexQueries: 16, Late: 1, Rescheduled: 2, Dropped: 3, Err: fmt.Sprint("e", i),
		}
		require.NoError(s, s.store.RecordRun(s.ctx, r))
		want = append([]storage.Run{r}, want...)
	}
	check := func() {
		s.Helper()
		got, err := s.store.RecentRuns(s.ctx, 1000)
		require.NoError(s, err)
		equal(s, want, got)
		got, err = s.store.RecentRuns(s.ctx, 7)
		require.NoError(s, err)
		equal(s, want[:7], got)
		got, err = s.store.RecentRuns(s.ctx, 0)
		require.NoError(s, err)
		require.Empty(s, got)
	}
	check()
	require.NoError(s, s.store.RecordRun(s.ctx, want[3]), "idempotent")
	check()
	s.reopen()
	check()
}

func (s *suite) errors() {
	var want []storage.ComponentError
	for i := range 25 {
		for _, component := range []string{"aggregator", "ingest"} {
			e := storage.ComponentError{
				Component: component, Worker: "w", TimeMs: at(0) + int64(2*i), SliceKey: rawSlice(i), Start: nothing,
				Message: fmt.Sprint("failed ", i),
			}
			if component == "ingest" {
				e.TimeMs++
				e.Start = 128
			}
			require.NoError(s, s.store.RecordError(s.ctx, e))
			if i >= 15 {
				want = append([]storage.ComponentError{e}, want...)
			}
		}
	}
	check := func() {
		s.Helper()
		got, err := s.store.RecentErrors(s.ctx)
		require.NoError(s, err)
		equal(s, want, got)
	}
	check()
	require.NoError(s, s.store.RecordError(s.ctx, want[0]), "idempotent")
	check()
	s.reopen()
	check()
}

func (s *suite) workers() {
	for _, w := range []storage.Worker{
		{ID: "b", Host: "h1", StartedMs: 1, SeenMs: 2},
		{ID: "a", Host: "h2", StartedMs: 3, SeenMs: 4, Aggregates: true},
		{ID: "b", Host: "h1", StartedMs: 1, SeenMs: 5},
	} {
		require.NoError(s, s.store.Heartbeat(s.ctx, w, time.Hour))
	}
	check := func() {
		s.Helper()
		got, err := s.store.Workers(s.ctx)
		require.NoError(s, err)
		slices.SortFunc(got, func(a, b storage.Worker) int { return bytes.Compare([]byte(a.ID), []byte(b.ID)) })
		equal(s, []storage.Worker{{ID: "a", Host: "h2", StartedMs: 3, SeenMs: 4, Aggregates: true}, {ID: "b", Host: "h1", StartedMs: 1, SeenMs: 5}}, got)
	}
	check()
}

func (s *suite) workersExpire() {
	require.NoError(s, s.store.Heartbeat(s.ctx, storage.Worker{ID: "short"}, time.Minute))
	require.NoError(s, s.store.Heartbeat(s.ctx, storage.Worker{ID: "long"}, time.Hour))
	live := func() (ids []string) {
		got, err := s.store.Workers(s.ctx)
		require.NoError(s, err)
		for _, w := range got {
			ids = append(ids, w.ID)
		}
		slices.Sort(ids)
		return ids
	}
	s.advance(time.Minute - time.Millisecond)
	require.Equal(s, []string{"long", "short"}, live())
	s.advance(time.Millisecond)
	require.Equal(s, []string{"long"}, live())
	require.NoError(s, s.store.Expire(s.ctx))
	require.Equal(s, []string{"long"}, live())
	require.NoError(s, s.store.Heartbeat(s.ctx, storage.Worker{ID: "short"}, time.Minute))
	require.Equal(s, []string{"long", "short"}, live())
}
