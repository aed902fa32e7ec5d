package cassandra

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/quern/quern/internal/storage"
)

// limiter bounds the requests that wait for an answer. The bound follows the servers: it is halved
// when a request times out or a server is overloaded, and grows by one for each full bound of
// answers (additive increase, multiplicative decrease, as TCP does: Chiu and Jain 1989).
type limiter struct {
	// room holds a token for each request that may be sent now.
	room    chan struct{}
	waiting atomic.Int64

	mu    sync.Mutex
	limit float64
	// tokens counts those in room and those of the requests that are running.
	tokens int
	// era counts the cuts. A request sent before the last cut says nothing about the new bound.
	era int
	// answered counts the requests that have ended, by outcome.
	answered map[string]int
}

// leastInFlight is the lowest bound: a store that has become slow still makes progress.
const leastInFlight = 4

func newLimiter(most int) *limiter {
	l := &limiter{room: make(chan struct{}, most), limit: float64(most), answered: make(map[string]int)}
	l.fit()
	return l
}

// fit brings the tokens to the bound, as far as they are in room. l.mu is held.
func (l *limiter) fit() {
	for ; l.tokens < int(l.limit); l.tokens++ {
		l.room <- struct{}{}
	}
	for l.tokens > int(l.limit) {
		select {
		case <-l.room:
			l.tokens--
		default:
			return
		}
	}
}

// do runs request when there is room for it. The error is the request's, or ctx's.
func (l *limiter) do(ctx context.Context, request func() error) error {
	era, err := l.enter(ctx)
	if err != nil {
		return err
	}
	err = request()
	l.leave(era, err)
	return err
}

func (l *limiter) enter(ctx context.Context) (era int, err error) {
	l.waiting.Add(1)
	defer l.waiting.Add(-1)
	if ctx.Err() == nil {
		select {
		case <-l.room:
			l.mu.Lock()
			defer l.mu.Unlock()
			return l.era, nil
		case <-ctx.Done():
		}
	}
	return 0, convert(ctx, ctx.Err())
}

func (l *limiter) leave(era int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answered[outcome(err)]++
	most := float64(cap(l.room))
	switch {
	case errors.Is(err, storage.ErrTimeout) || errors.Is(err, storage.ErrOverloaded):
		if era == l.era {
			l.limit = max(l.limit/2, min(leastInFlight, most))
			l.era++
		}
	case err == nil:
		l.limit = min(l.limit+1/l.limit, most)
	}
	l.tokens-- // the request's own: fit makes another if there is room
	l.fit()
}

// outcomes are the possible outcomes of a request.
var outcomes = []string{"ok", "timeout", "overloaded", "unavailable", "other"}

func outcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, storage.ErrTimeout):
		return "timeout"
	case errors.Is(err, storage.ErrOverloaded):
		return "overloaded"
	case errors.Is(err, storage.ErrUnavailable):
		return "unavailable"
	}
	return "other"
}

// requests is the number of requests that ended with an outcome.
func (l *limiter) requests(outcome string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.answered[outcome]
}

// state returns the bound, and how many requests are running and waiting.
func (l *limiter) state() (limit, running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.limit), l.tokens - len(l.room), int(l.waiting.Load())
}
