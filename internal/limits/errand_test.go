package limits_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/limits"
)

func always() bool { return true }

// Work goes on when the request that began it has gone. Who wants the same meanwhile gets what comes of it.
func TestWorkOutlastsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := limits.NewErrands[string, int](nil, 0)
		began := 0
		work := func(ctx context.Context) (int, error) {
			began++
			select {
			case <-time.After(time.Minute):
				return began, nil
			case <-ctx.Done():
				return 0, context.Cause(ctx)
			}
		}
		ask := func(key string, patience time.Duration) (int, error) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return g.Do(ctx, key, work)
		}
		start := time.Now()
		for range 3 {
			_, err := ask("a", 15*time.Second)
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
		n, err := ask("a", 20*time.Second)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, time.Minute, time.Since(start))
		n, err = ask("a", time.Hour)
		require.NoError(t, err)
		require.Equal(t, 2, n, "what has ended is not kept")
	})
}

// No more are done at once than are allowed, and who waits for room may leave.
func TestGroupIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := limits.NewErrands[int, int](nil, 2)
		now, most := 0, 0
		var mu sync.Mutex
		work := func(context.Context) (int, error) {
			mu.Lock()
			now++
			most = max(most, now)
			mu.Unlock()
			time.Sleep(time.Minute)
			mu.Lock()
			now--
			mu.Unlock()
			return 0, nil
		}
		start := time.Now()
		var wg sync.WaitGroup
		for key := range 6 {
			wg.Go(func() {
				_, err := g.Do(t.Context(), key, work)
				require.NoError(t, err)
			})
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := g.Do(ctx, 7, work)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		wg.Wait()
		require.Equal(t, 2, most)
		require.Equal(t, 3*time.Minute, time.Since(start))
	})
}

// It ends with the process, and is done only while it is due.
func TestErrand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		process, stop := context.WithCancelCause(t.Context())
		e := limits.NewErrand(func(work func(context.Context)) { go work(process) })
		require.NoError(t, e.Do(t.Context(), func() bool { return false }, nil))
		boom := errors.New("boom")
		require.ErrorIs(t, e.Do(t.Context(), always, func(context.Context) error { return boom }), boom)
		require.False(t, e.Busy())
		failed := make(chan error, 1)
		go func() {
			failed <- e.Do(t.Context(), always, func(ctx context.Context) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
		}()
		synctest.Wait()
		require.True(t, e.Busy())
		stop(boom)
		require.ErrorIs(t, <-failed, boom)
	})
}
