package agent

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// sendLoop sends what is queued until ctx has ended and nothing is left, or until sendCtx has
// ended. No more measurements come once collected is closed.
func (a *Agent) sendLoop(ctx, sendCtx context.Context, collected <-chan struct{}) {
	failures := 0
	// limit shrinks after the server found a report too large. It grows again with each delivered report, since a single
	// measurement may have been too large.
	limit := a.opts.RequestLimit
	for {
		batch, end := a.queue.front(limit)
		if len(batch) == 0 {
			limit = a.opts.RequestLimit
			select {
			case <-a.wake:
				continue
			case <-collected:
			}
			// The last measurements may have been queued after the look above.
			if queued, _ := a.queue.state(); queued == 0 {
				return
			}
			continue
		}

		err := a.sendOnce(sendCtx, batch)
		if errors.Is(err, ErrTooLarge) && len(batch) > 1 {
			limit = len(batch) / 2
			continue
		}
		if final, reason := a.count(err, len(batch)); final {
			if reason != "" {
				a.warn(reason, err, len(batch))
			}
			a.queue.remove(end)
			limit = min(2*limit, a.opts.RequestLimit)
			failures = 0
			continue
		}
		if sendCtx.Err() != nil {
			return
		}

		wait := a.backoff(failures, err)
		failures++
		if n, ok := a.topics.Pass("retry"); ok {
			queued, _ := a.queue.state()
			a.log.Warn("the server did not accept a report; retrying",
				"err", err, "wait", wait, "queued", queued, "suppressed", n)
		}
		if ctx.Err() == nil {
			// The stop also ends this wait: the agent retries at once. It also starts with a short
			// backoff, since one that has grown for hours would leave no time for more attempts.
			if a.clock.Sleep(ctx, wait) != nil {
				failures = 0
			}
		} else if a.clock.Sleep(sendCtx, wait) != nil {
			return
		}
	}
}

func (a *Agent) sendOnce(ctx context.Context, batch []Measurement) error {
	ctx, cancel := context.WithTimeoutCause(ctx, requestTimeout,
		fmt.Errorf("no answer within %s", requestTimeout))
	defer cancel()
	err := a.sender.Send(ctx, Report{Source: a.opts.Source, Measurements: batch})
	if err != nil && errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// count counts what became of n measurements. It returns whether that is final, and the reason to
// log unless it has logged already.
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
		a.logRejected(rejected)
		return true, ""
	case errors.Is(err, ErrTooLarge):
		a.refused.Add(uint64(n))
		return true, "dropped a measurement that is too large for the server"
	case errors.Is(err, ErrRefused):
		a.refused.Add(uint64(n))
		return true, "dropped a report that the server refused"
	}
	return false, ""
}

func (a *Agent) warn(reason string, err error, n int) {
	if suppressed, ok := a.topics.Pass(reason); ok {
		a.log.Error(reason, "err", err, "measurements", n, "suppressed", suppressed)
	}
}

// logRejected logs the first example of each reason.
func (a *Agent) logRejected(e *RejectedError) {
	seen := make(map[string]bool)
	for _, r := range e.Rejected {
		if seen[r.Reason] {
			continue
		}
		seen[r.Reason] = true
		if suppressed, ok := a.topics.Pass("rejected " + r.Reason); ok {
			a.log.Warn("the server rejected measurements",
				"reason", r.Reason, "example", r.Message, "rejected", e.Total, "suppressed", suppressed)
		}
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
