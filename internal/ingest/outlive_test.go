package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/storage/storagetest"
)

// TestClientHangsUp: a client that leaves while its series are registered leaves no series without
// samples, and takes no more memory than the limit of bytes however often it does so.
func TestClientHangsUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 8 << 20
		clk := clock.System{}
		g := newStore(clk)
		index, seen := query.NewIndex(), query.NewSightings(false)
		q := query.New(query.Parts{Store: g, Index: index, Settings: g.Settings(), Clock: clk}, query.Options{Sightings: seen})
		hangUp := func() {}
		reg := registry.New(g, registry.Options{
			MaxBytes: limit, MaxSeries: 1000, Memory: index, Gone: q.Gone, Clock: clk,
			OnNew: func(s []storage.Schedule) {
				index.Add(s)
				hangUp()
			},
		})
		in := ingest.Start(t.Context(), ingest.Parts{Store: g, Registry: reg, Cache: cache.New(g, clk, 1, cache.DefaultTiming()), Clock: clk}, ingest.Options{OnSamples: seen.Saw})
		long := strings.Repeat("x", 4000)
		for try := range 12 {
			var reports []ingest.Report
			for source := range 2 {
				rep := ingest.Report{Source: fmt.Sprint("stranger-", source)}
				for i := range 17 { // their labels exceed what is registered at once
					m := ingest.Measurement{Metric: "m", TimeMs: ingest.NoTime, Value: 1}
					for l := range 64 {
						m.Labels = append(m.Labels, metric.Label{Name: fmt.Sprintf("l%02d", l), Value: fmt.Sprintf("%d-%d-%d-%s", try, i, l, long)})
					}
					rep.Measurements = append(rep.Measurements, m)
				}
				for range 2048 {
					rep.Measurements = append(rep.Measurements, ingest.Measurement{Metric: "m", TimeMs: -1})
				}
				reports = append(reports, rep)
			}
			ctx, cancel := context.WithCancel(t.Context())
			hangUp = cancel
			_, err := in.Append(ctx, reports)
			if ctx.Err() == nil {
				require.NoError(t, err)
			}
			cancel()
			synctest.Wait()
			require.LessOrEqual(t, index.Bytes(), int64(limit))
			time.Sleep(time.Minute + time.Second) // a count of series without data serves for a minute
		}
		require.NoError(t, in.Close())
		require.NotZero(t, index.Len())
		written := make(map[metric.ScheduleID]bool)
		for s := range storedSamples(t, g) {
			written[s.Schedule] = true
		}
		require.Len(t, written, index.Len(), "each series has a sample")
	})
}

// stuckClaim is a store whose first claim of series gets no answer.
type stuckClaim struct {
	storage.Store
	once    sync.Once
	entered chan struct{}
}

func (s *stuckClaim) ClaimSchedules(ctx context.Context, want []storage.Claim) ([]metric.ScheduleID, error) {
	stuck := false
	s.once.Do(func() { stuck = true })
	if stuck {
		close(s.entered)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return s.Store.ClaimSchedules(ctx, want)
}

// TestHungUpForLong: work for a client that has left ends, though later than the client, and the
// room that it held in the queue is free again.
func TestHungUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		g := newStore(clk)
		stuck := &stuckClaim{Store: g, entered: make(chan struct{})}
		in := ingest.Start(t.Context(), ingest.Parts{Store: g, Registry: registry.New(stuck, registry.Options{}), Cache: cache.New(g, clk, 1, cache.DefaultTiming()), Clock: clk}, ingest.Options{MaxPending: 2})
		left := errors.New("the client has left")
		ctx, leave := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := in.Append(ctx, report(1, 2))
			ended <- err
		}()
		<-stuck.entered
		leave(left)
		synctest.Wait()
		require.Empty(t, ended, "the work goes on")
		_, err := in.Append(t.Context(), report(1))
		require.ErrorIs(t, err, ingest.ErrBusy, "the room is kept")
		require.ErrorIs(t, <-ended, left)
		_, err = in.Append(t.Context(), report(1, 2))
		require.NoError(t, err)
		require.NoError(t, in.Close())
	})
}

// TestBusyRegistersNothing: a call that is refused because the queue is full leaves no series
// without samples.
func TestBusyRegistersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, g := start(t, ingest.Options{MaxPending: 4}, registry.Options{})
		resume := make(chan struct{})
		g.Add(storagetest.Rule{Op: "Write", Times: -1, Before: func() error { <-resume; return nil }})
		done := make(chan error, 1)
		go func() {
			_, err := in.Append(t.Context(), report(1, 2))
			done <- err
		}()
		synctest.Wait()
		other := report(1, 2, 3)
		other[0].Source = "other"
		_, err := in.Append(t.Context(), other)
		require.ErrorIs(t, err, ingest.ErrBusy)
		for s, err := range g.SourceSchedules(t.Context(), "other") {
			require.NoError(t, err)
			t.Errorf("%s was registered", s.Labels)
		}
		close(resume)
		require.NoError(t, <-done)
		res, err := in.Append(t.Context(), other)
		require.NoError(t, err)
		require.Equal(t, 3, res.Accepted)
		require.NoError(t, in.Close())
	})
}

// TestAnswerFreesRoom: who has got an answer finds the room free that its samples took.
func TestAnswerFreesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, _ := start(t, ingest.Options{MaxPending: 3}, registry.Options{})
		for range 5000 {
			_, err := in.Append(t.Context(), report(1, 2, 3))
			if !assert.NoError(t, err) {
				break
			}
		}
		require.NoError(t, in.Close())
	})
}

// TestRoomIsKeptForWhatMayBeTaken: while series are registered, no room is kept for what is rejected already, and all that
// one client keeps is within its part.
func TestRoomIsKeptForWhatMayBeTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clk := clock.System{}
		g := newStore(clk)
		stuck := &stuckClaim{Store: g, entered: make(chan struct{})}
		in := ingest.Start(t.Context(), ingest.Parts{Store: g, Registry: registry.New(stuck, registry.Options{}), Cache: cache.New(g, clk, 1, cache.DefaultTiming()), Clock: clk}, ingest.Options{MaxPending: 4})
		clients := limits.NewClients(nil)
		stranger, other := clients.ByAddress("192.0.2.1:1"), clients.ByAddress("192.0.2.2:1")
		reports := report(1, 2, 3, 4)
		reports[0].Measurements[0].TimeMs = -7
		reports[0].Measurements[1].TimeMs = -7
		ctx, leave := context.WithCancel(limits.WithClient(t.Context(), stranger))
		ended := make(chan error, 1)
		go func() {
			_, err := in.Append(ctx, reports)
			ended <- err
		}()
		<-stuck.entered
		_, err := in.Append(limits.WithClient(t.Context(), stranger), report(1))
		require.ErrorIs(t, err, ingest.ErrBusy)
		require.ErrorContains(t, err, "2 of this client")
		more := report(1, 2)
		more[0].Source = "web-2"
		_, err = in.Append(limits.WithClient(t.Context(), other), more)
		require.NoError(t, err)
		leave()
		require.Error(t, <-ended)
		_, err = in.Append(limits.WithClient(t.Context(), stranger), report(1, 2))
		require.NoError(t, err, "the room is free again")
		require.NoError(t, in.Close())
	})
}
