package app

import (
	"bytes"
	"context"
	"encoding/json"
	"iter"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// partialStore is a cluster of which a part is out of reach: the slices of a day, the first group of
// series, the partition of a source, and the last runs.
type partialStore struct {
	*sharedStore
	days *storagetest.Days
	back atomic.Bool
}

func (s *partialStore) Slices(ctx context.Context, b metric.Bucket, fromMs, toMs int64) ([]storage.SliceState, error) {
	return s.days.Slices(ctx, b, fromMs, toMs)
}

func (s *partialStore) Schedules(ctx context.Context, ids blocks.Range) iter.Seq2[storage.Schedule, error] {
	if ids.Start < 32 && !s.back.Load() {
		return lost[storage.Schedule]
	}
	return s.sharedStore.Schedules(ctx, ids)
}

func (s *partialStore) SourceSchedules(ctx context.Context, source string) iter.Seq2[storage.Schedule, error] {
	if source == "lost" && !s.back.Load() {
		return lost[storage.Schedule]
	}
	return s.sharedStore.SourceSchedules(ctx, source)
}

func (s *partialStore) RecentRuns(ctx context.Context, limit int) ([]storage.Run, error) {
	if !s.back.Load() {
		return nil, errAway
	}
	return s.sharedStore.RecentRuns(ctx, limit)
}

func lost[T any](yield func(T, error) bool) {
	var zero T
	yield(zero, errAway)
}

// A process that starts while a part of the store is out of reach takes reports whose source is in
// reach, grinds the slices that it can read, and says what it lacks.
func TestStartInAPartialOutage(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	shared := newSharedStore("1h,6h,24h", clock.System{})
	now := time.Now().UTC()
	st := &partialStore{sharedStore: shared, days: storagetest.NewDays(shared, now.AddDate(0, 0, -30).UnixMilli())}
	old := func(days int) storage.SliceKey {
		return storage.SliceKey{StartMs: now.Truncate(time.Hour).AddDate(0, 0, -days).UnixMilli()}
	}
	require.NoError(t, st.Write(ctx, &storage.Batch{Open: []storage.SliceKey{old(2), old(3)}}))
	src, err := registry.New(st, registry.Options{LeaseSize: 1024}).Source(ctx, "before", false)
	require.NoError(t, err)
	_, err = src.Register(ctx, []metric.Labels{{{Name: metric.NameLabel, Value: "up"}}})
	require.NoError(t, err)
	st.days.Away(storagetest.DayAt(old(2)), errAway)

	s := sharedServer(t, roles{ingest: true, aggregate: true}, shared)
	s.open = func(context.Context, func(error)) (store, error) { return st, nil }
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	started, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.run(ctx, l, func(string) { close(started) }) }()
	select {
	case <-started:
	case err := <-ended:
		t.Fatal(err)
	}
	url := "http://" + l.Addr().String()
	post := func(source string) int {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/api/v1/reports", bytes.NewReader([]byte(
			`{"source":"`+source+`","measurements":[{"metric":"up","value":1}]}`)))
		require.NoError(t, err)
		resp, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	assert.Equal(t, 200, post("web-1"))
	assert.Equal(t, 503, post("lost"))
	assert.Equal(t, 200, post("web-2"))

	require.EventuallyWithT(t, func(t *assert.CollectT) {
		states, err := shared.Slices(ctx, metric.Raw, old(3).StartMs, old(3).StartMs+1)
		assert.NoError(t, err)
		assert.Equal(t, []storage.SliceState{{SliceKey: old(3), Begun: true, Complete: true}}, states)
	}, time.Minute, 10*time.Millisecond)
	code, _, body := get(t, url+"/api/v1/status/aggregation")
	assert.Equal(t, 200, code, body)
	var status struct{ Unread []string }
	require.NoError(t, json.Unmarshal([]byte(body), &status))
	assert.Len(t, status.Unread, 1+3+1, "%q", status.Unread)
	assert.Contains(t, status.Unread[0], "the last runs: ")
	_, _, body = get(t, url+"/api/v1/labels")
	assert.Contains(t, body, "incomplete: the labels of up to")
	code, _, body = get(t, url+"/api/v1/query?query=up")
	assert.Equal(t, 200, code, body)
	assert.Contains(t, body, "incomplete: the labels of up to")
	assert.Contains(t, body, "web-2")

	cancel()
	require.NoError(t, <-ended)
}
