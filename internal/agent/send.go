package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/agent/spool"
)

// sendLoop sends what is in the spool until nothing is left and no more comes, since reading has ended, or until sending has
// ended. While there is a backlog, as after an outage, what comes meanwhile is sent beside it.
func (a *Agent) sendLoop(ctx, sending, reading context.Context) {
	var live *lane
	defer func() {
		if live != nil {
			a.join(live)
		}
	}()
	a.deliver(ctx, sending, reading, spool.Position{}, func(chunks []spool.Chunk, at spool.Position) (spool.Position, bool) {
		a.ack(chunks, at)
		if live == nil {
			if a.out.Spool.Rest(at) > int64(backlog*a.opts.RequestBytes) {
				live = a.branch(ctx, sending, reading)
			}
			return at, true
		}
		if at.Before(live.begin) {
			return at, true
		}
		a.join(live)
		if at.Before(live.at) {
			at = live.at
		}
		a.ack(slices.Collect(maps.Values(live.taken)), at)
		live = nil
		return at, true
	})
}

// lane sends what comes after a backlog.
type lane struct {
	begin, at spool.Position
	taken     map[string]spool.Chunk // the last of each stream; they are acknowledged after the backlog
	joins     atomic.Bool
	stop      context.CancelFunc
	done      chan struct{}
}

// branch starts a lane at the end of the spool.
func (a *Agent) branch(ctx, sending, reading context.Context) *lane {
	end, err := a.out.Spool.Cut()
	if err != nil {
		a.warn("a segment of the spool cannot be closed", err, 0)
	}
	reading, stop := context.WithCancel(reading)
	l := &lane{begin: end, at: end, taken: map[string]spool.Chunk{}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(l.done)
		a.deliver(ctx, sending, reading, end, func(chunks []spool.Chunk, at spool.Position) (spool.Position, bool) {
			for _, c := range chunks {
				c.Data = nil
				l.taken[c.Stream] = c
			}
			l.at = at
			return at, !l.joins.Load()
		})
	}()
	return l
}

// join ends a lane.
func (a *Agent) join(l *lane) {
	l.joins.Store(true)
	l.stop()
	<-l.done
}

func (a *Agent) ack(chunks []spool.Chunk, behind spool.Position) {
	if err := a.out.Spool.Ack(chunks, behind); err != nil {
		samples := 0
		for _, c := range chunks {
			samples += c.Samples
		}
		a.warn("what was delivered cannot be noted in the spool: after a restart it is sent again", err, samples)
	}
}

// deliver sends what is in the spool behind a position, until nothing is left and reading has ended, or until sending has ended.
// taken gets the chunks that need not be sent again, and says from where to go on, and whether.
func (a *Agent) deliver(ctx, sending, reading context.Context, at spool.Position, taken func([]spool.Chunk, spool.Position) (spool.Position, bool)) {
	failures := 0
	// limit shrinks after the server found a request too large. It grows again with each that was delivered, since a single
	// reading may have been too large.
	limit := a.opts.RequestBytes
	for {
		chunks, behind, err := a.out.Spool.Next(reading, at, limit)
		if len(chunks) == 0 && reading.Err() != nil {
			return
		}
		var batch Batch
		for _, c := range chunks {
			batch.Samples, batch.Body = batch.Samples+c.Samples, append(batch.Body, c.Data...)
		}
		if err == nil && batch.Samples > 0 { // lines may have none
			err = a.sendOnce(sending, batch)
		}
		if (errors.Is(err, ErrTooLarge) || errors.Is(err, ErrRefused)) && len(chunks) > 1 { // it may be for one of them
			limit = len(batch.Body) / 2
			continue
		}
		if final, reason := a.count(err, batch.Samples); final {
			if reason != "" {
				a.warn(reason, err, batch.Samples)
			}
			var more bool
			if at, more = taken(chunks, behind); !more {
				return
			}
			failures, limit = 0, min(2*limit, a.opts.RequestBytes)
			continue
		}
		if sending.Err() != nil {
			return
		}

		wait := a.backoff(failures, err)
		failures++
		if n, ok := a.topics.Pass("retry"); ok {
			a.log.Warn("measurements were not delivered; trying again",
				"err", err, "wait", wait, "waiting", a.Stats().Waiting, "suppressed", n)
		}
		if ctx.Err() == nil {
			// The stop also ends this wait: the agent retries at once. It also starts with a short
			// backoff, since one that has grown for hours would leave no time for more attempts.
			if a.clock.Sleep(ctx, wait) != nil {
				failures = 0
			}
		} else if a.clock.Sleep(sending, wait) != nil {
			return
		}
	}
}

func (a *Agent) sendOnce(ctx context.Context, b Batch) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout,
		fmt.Errorf("no answer within %s", requestTimeout))
	defer cancel()
	err := a.sender.Send(ctx, b)
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// count counts what became of n measurements. It returns whether that is final, and what to log, if anything.
func (a *Agent) count(err error, n int) (final bool, reason string) {
	var rejected *RejectedError
	switch {
	case err == nil:
		a.delivered.Add(uint64(n))
		return true, ""
	case errors.As(err, &rejected):
		bad := min(rejected.Total, n)
		a.rejected.Add(uint64(bad))
		a.delivered.Add(uint64(n - bad))
		return true, "the server rejected measurements"
	case errors.Is(err, ErrTooLarge):
		a.refused.Add(uint64(n))
		return true, "dropped a reading that is too large for the server"
	case errors.Is(err, ErrRefused):
		a.refused.Add(uint64(n))
		return true, "dropped measurements that the server refused"
	}
	return false, ""
}

func (a *Agent) warn(reason string, err error, n int) {
	if suppressed, ok := a.topics.Pass(reason); ok {
		a.log.Error(reason, "err", err, "measurements", n, "suppressed", suppressed)
	}
}

// backoff returns the wait after a failure, given the number of earlier failures in a row. It lies
// between half of a step and all of it, and the step doubles. So agents that lose a server at the
// same time do not all return at the same time.
func (a *Agent) backoff(failures int, err error) time.Duration {
	step := maxBackoff
	// Beyond 30 doublings the shift would overflow; the step exceeds any maximum long before.
	if failures < 30 {
		step = min(step, minBackoff<<failures)
	}
	wait := step/2 + time.Duration(a.opts.Jitter()*float64(step-step/2))
	var retry *RetryError
	if errors.As(err, &retry) {
		wait = max(wait, min(retry.After, maxRetryAfter))
	}
	return wait
}
