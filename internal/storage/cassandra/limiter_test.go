package cassandra

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quern/quern/internal/storage"
)

// enterN takes n slots at once, as n requests under way would.
func enterN(t *testing.T, l *limiter, n int) (eras []int) {
	t.Helper()
	for range n {
		limit, running, _ := l.state()
		require.Less(t, running, limit, "no room")
		era, err := l.enter(t.Context())
		require.NoError(t, err)
		eras = append(eras, era)
	}
	return eras
}

func leaveAll(l *limiter, eras []int, err error) {
	for _, era := range eras {
		l.leave(era, err)
	}
}

func requireState(t *testing.T, l *limiter, limit, running, waiting int) {
	t.Helper()
	gotLimit, gotRunning, gotWaiting := l.state()
	require.Equal(t, []int{limit, running, waiting}, []int{gotLimit, gotRunning, gotWaiting}, "limit, running, waiting")
}

// Whatever answers come and whoever gives up: never are more requests under way than the highest
// bound allows, nobody waits for ever, and no slot is lost. For the race detector.
func TestLimiterUnderChance(t *testing.T) {
	const bound, workers, each = 16, 64, 200
	l := newLimiter(bound)
	var running atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range each {
				ctx, cancel := context.WithCancel(t.Context())
				if rng.IntN(3) == 0 {
					wg.Go(cancel)
				}
				err := l.do(ctx, func() error {
					if n := running.Add(1); n > bound {
						t.Errorf("%d are under way", n)
					}
					defer running.Add(-1)
					switch rng.IntN(10) {
					case 0:
						return storage.ErrTimeout
					case 1:
						return storage.ErrOverloaded
					case 2:
						return errors.New("another")
					}
					return nil
				})
				_ = err // any of the above, or ctx has ended
				cancel()
			}
		})
	}
	wg.Wait()
	limit, left, waiting := l.state()
	require.Zero(t, left)
	require.Zero(t, waiting)
	require.GreaterOrEqual(t, limit, leastInFlight)
	require.LessOrEqual(t, limit, bound)
	enterN(t, l, limit)
}

func TestLimiterHalvesOncePerBurst(t *testing.T) {
	for _, c := range []struct {
		name string
		err  error
		want int
	}{
		{"time-outs", storage.ErrTimeout, 32},
		{"overload", storage.ErrOverloaded, 32},
		{"away", storage.ErrUnavailable, 64},
		{"another", errors.New("another"), 64},
		{"given up", context.Canceled, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLimiter(64)
			eras := enterN(t, l, 64)
			leaveAll(l, eras, c.err)
			requireState(t, l, c.want, 0, 0)
		})
	}
}

// A request sent before the bound was cut says nothing about the new bound. A request sent after
// the cut does.
func TestLimiterHalvesAgainForLaterRequests(t *testing.T) {
	l := newLimiter(64)
	before := enterN(t, l, 20)
	l.leave(before[0], storage.ErrTimeout)
	requireState(t, l, 32, 19, 0)
	after := enterN(t, l, 1)
	leaveAll(l, before[1:10], storage.ErrTimeout)
	requireState(t, l, 32, 11, 0)
	leaveAll(l, after, storage.ErrOverloaded)
	requireState(t, l, 16, 10, 0)
	leaveAll(l, before[10:], storage.ErrTimeout)
	requireState(t, l, 16, 0, 0)
}

func TestLimiterKeepsTheLeast(t *testing.T) {
	for _, c := range []struct{ most, least int }{{64, leastInFlight}, {5, leastInFlight}, {leastInFlight, leastInFlight}, {2, 2}, {1, 1}} {
		l := newLimiter(c.most)
		for range 20 {
			leaveAll(l, enterN(t, l, 1), storage.ErrTimeout)
		}
		requireState(t, l, c.least, 0, 0)
	}
}

// The bound grows by one for each full bound of answers, up to its maximum.
func TestLimiterGrowsBack(t *testing.T) {
	const most = 32
	l := newLimiter(most)
	for range 10 {
		leaveAll(l, enterN(t, l, 1), storage.ErrTimeout)
	}
	requireState(t, l, leastInFlight, 0, 0)
	for want := leastInFlight + 1; want <= most; want++ {
		answers := 0
		for limit, _, _ := l.state(); limit < want; limit, _, _ = l.state() {
			leaveAll(l, enterN(t, l, 1), nil)
			answers++
		}
		require.InDelta(t, want-1, answers, 2, "answers for the step to %d", want)
		requireState(t, l, want, 0, 0)
	}
	leaveAll(l, enterN(t, l, most), nil)
	requireState(t, l, most, 0, 0)
}

// After a cut nobody enters before enough requests have left.
func TestLimiterHoldsBackAfterACut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(16)
		eras := enterN(t, l, 16)
		var wg sync.WaitGroup
		wg.Go(func() { _ = l.do(t.Context(), func() error { return nil }) })
		synctest.Wait()
		leaveAll(l, eras[:8], storage.ErrTimeout)
		synctest.Wait()
		requireState(t, l, 8, 8, 1)
		l.leave(eras[8], storage.ErrTimeout)
		wg.Wait()
		requireState(t, l, 8, 7, 0)
	})
}

// A request that gives up is not sent.
func TestLimiterGivesUp(t *testing.T) {
	l := newLimiter(1)
	held := enterN(t, l, 1)
	late, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	for range 2 {
		require.ErrorIs(t, l.do(late, func() error { panic("was sent") }), storage.ErrTimeout)
		requireState(t, l, 1, 1, 0)
	}
	leaveAll(l, held, nil)
	require.ErrorIs(t, l.do(late, func() error { panic("was sent") }), storage.ErrTimeout, "it has ended before")
}
