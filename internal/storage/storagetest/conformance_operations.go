package storagetest

import (
	"bytes"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// operationsCases test storage.Operations.
var operationsCases = []conformanceCase{
	{"Workers", (*suite).workers, nil},
	{"WorkersExpire", (*suite).workersExpire, []Missing{MissingTTL}},
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
