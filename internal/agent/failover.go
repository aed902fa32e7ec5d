package agent

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

// restTime is how long a server that could not take a batch is tried only after all others.
const restTime = 5 * time.Minute

// Failover sends to the first of several servers that takes a batch. It is safe for concurrent use.
type Failover struct {
	clock   clock.Clock
	log     *slog.Logger
	mu      sync.Mutex
	servers []*upstream // the best first
}

// upstream is one of the servers. Times are those of the clock's Elapsed.
type upstream struct {
	Sender

	rests  time.Duration // until when it is tried last
	closed time.Duration // until when it asked not to be tried
}

// NewFailover returns a sender to the servers, of which there must be one, the best first.
func NewFailover(c clock.Clock, log *slog.Logger, servers []Sender) *Failover {
	f := &Failover{clock: c, log: log}
	for _, s := range servers {
		f.servers = append(f.servers, &upstream{s, c.Elapsed(), c.Elapsed()})
	}
	return f
}

// Send implements Sender. The error is that of the last server that was tried.
func (f *Failover) Send(ctx context.Context, b Batch) (err error) {
	for _, s := range f.order() {
		away := err // why the one before did not take it
		err = s.Send(ctx, b)
		rejected, retry := (*RejectedError)(nil), (*RetryError)(nil)
		switch {
		case err == nil || errors.As(err, &rejected):
			if away != nil {
				f.log.Warn("another server has taken measurements", "err", away)
			}
			return err
		case errors.Is(err, ErrTooLarge) || errors.Is(err, ErrRefused):
			return err
		}
		f.mu.Lock()
		s.rests = f.clock.Elapsed() + restTime
		if errors.As(err, &retry) {
			s.closed = f.clock.Elapsed() + min(retry.After, maxRetryAfter)
		}
		f.mu.Unlock()
		if ctx.Err() != nil {
			break
		}
	}
	return err
}

// order returns the servers to try: those that did not ask for time, or, if all did, the one whose time is over first. The agent has
// waited then, or it stops and tries once more.
func (f *Failover) order() (open []*upstream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.clock.Elapsed()
	for _, s := range f.servers {
		if s.closed <= now {
			open = append(open, s)
		}
	}
	if open == nil {
		return []*upstream{slices.MinFunc(f.servers, func(a, b *upstream) int { return cmp.Compare(a.closed, b.closed) })}
	}
	slices.SortStableFunc(open, func(a, b *upstream) int { return cmp.Compare(max(a.rests, now), max(b.rests, now)) })
	return open
}
