package cassandra

import (
	"context"
	"errors"
	"sync"

	"github.com/quern/quern/internal/storage"
)

// limiter bounds the requests that wait for an answer. The bound follows the servers: it is halved
// when a request times out or a server is overloaded, and grows by one for each full bound of
// answers (additive increase, multiplicative decrease, as TCP does: Chiu and Jain 1989).
type limiter struct {
	max int

	mu      sync.Mutex
	limit   float64
	running int
	// era counts the cuts. A request sent before the last cut says nothing about the new bound.
	era     int
	waiting []chan struct{}
	// answered counts the requests that have ended, by outcome.
	answered map[string]int
}

// leastInFlight is the lowest bound: a store that has become slow still makes progress.
const leastInFlight = 4

func newLimiter(most int) *limiter {
	return &limiter{max: most, limit: float64(most), answered: make(map[string]int)}
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
	if ctx.Err() != nil {
		return 0, convert(ctx, ctx.Err())
	}
	l.mu.Lock()
	if l.running < int(l.limit) {
		l.running++
		defer l.mu.Unlock()
		return l.era, nil
	}
	turn := make(chan struct{}, 1)
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.era, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-turn: // the turn came at the same moment; pass it on
		l.running--
		l.admit()
	default:
		for i, w := range l.waiting {
			if w == turn {
				l.waiting = append(l.waiting[:i], l.waiting[i+1:]...)
				break
			}
		}
	}
	return 0, convert(ctx, ctx.Err())
}

func (l *limiter) leave(era int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	l.answered[outcome(err)]++
	switch {
	case errors.Is(err, storage.ErrTimeout) || errors.Is(err, storage.ErrOverloaded):
		if era == l.era {
			l.limit = max(l.limit/2, min(leastInFlight, float64(l.max)))
			l.era++
		}
	case err == nil:
		l.limit = min(l.limit+1/l.limit, float64(l.max))
	}
	l.admit()
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

// admit lets waiting requests in while there is room. l.mu is held.
func (l *limiter) admit() {
	for len(l.waiting) > 0 && l.running < int(l.limit) {
		l.running++
		l.waiting[0] <- struct{}{}
		l.waiting = l.waiting[1:]
	}
}

// state returns the bound, and how many requests are running and waiting.
func (l *limiter) state() (limit, running, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return int(l.limit), l.running, len(l.waiting)
}
