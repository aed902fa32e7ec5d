package rollup

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
)

// The waits between attempts while the store is away: short enough to grind a slice soon after the
// store answers, long enough not to flood it.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// lookEvery is how often Run looks at the clock, which may have been set.
	lookEvery = time.Minute
	// sharedRetry is how often Run checks whether other workers are done or gone.
	sharedRetry = 2 * time.Second
)

// Aggregator drives a Runner: at start for missed slices, then by cron whenever a slice is due, and
// again soon after an aborted run.
type Aggregator struct {
	runner *Runner
	due    dueTimes
	clk    clock.Clock
	log    *slog.Logger
	after  func(ctx context.Context) error
	// unkept limits the messages about housekeeping that fails while a slice waits for other
	// workers.
	unkept *limits.Throttle
}

// NewAggregator returns the driver of r. It calls after for housekeeping after each pass.
func NewAggregator(r *Runner, timing cache.Timing, after func(ctx context.Context) error) *Aggregator {
	return &Aggregator{
		runner: r,
		due:    dueTimes{ladder: r.ladder, delay: timing.Delay},
		clk:    r.clk,
		log:    r.opts.Logger,
		after:  after,
		unkept: limits.NewThrottle(r.clk, time.Minute),
	}
}

// Run drives the Runner until ctx is done. Slices under way then stay open.
func (a *Aggregator) Run(ctx context.Context) {
	wake := make(chan struct{}, 1)
	c := cron.New(cron.WithLocation(time.UTC))
	c.Schedule(a.due, cron.FuncJob(func() {
		select {
		case wake <- struct{}{}:
		default: // a run is under way and looks for more when it is done
		}
	}))
	c.Start()
	defer func() { <-c.Stop().Done() }()

	wait := firstRetry
	for ctx.Err() == nil {
		// cron computes the next time once and keeps it. If a clock that was ahead is set right, that time is as far away as the
		// clock was ahead. So the next time is kept here too: a look at the clock may bring it closer, and notices that cron has
		// missed it.
		next := a.due.Next(a.clk.Now())
		var retry <-chan time.Time
		switch err := a.pass(ctx); {
		case err == nil || ctx.Err() != nil:
			wait = firstRetry
		case errors.Is(err, ErrShared):
			retry = a.clk.After(sharedRetry)
		default:
			a.log.Warn("run aborted; retrying later", "in", wait, "err", err)
			retry = a.clk.After(wait)
			wait = min(2*wait, lastRetry)
		}
		packed := func() {}
		if retry == nil {
			packed = a.pack(ctx)
		}
		for waiting := true; waiting; {
			select {
			case <-a.clk.After(lookEvery):
				now := a.clk.Now()
				if waiting = now.Before(next.Add(lookEvery)); a.due.Next(now).Before(next) {
					next = a.due.Next(now)
				}
				continue
			case <-wake:
			case <-retry:
			case <-ctx.Done():
			}
			waiting = false
		}
		packed()
	}
}

// pack packs raw chunks in the background while no run is due. It looks each minute whether more has settled. The returned
// function ends that at once.
func (a *Aggregator) pack(ctx context.Context) (end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if err := a.runner.Pack(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("packing interrupted; going on later", "in", lookEvery, "err", err)
			}
			if a.clk.Sleep(ctx, lookEvery) != nil {
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

func (a *Aggregator) pass(ctx context.Context) error {
	_, err := a.runner.RunDue(ctx)
	if ctx.Err() != nil {
		return err
	}
	// Also after an aborted run: housekeeping may free the space that the run lacked.
	kept := a.after(ctx)
	if kept != nil && ctx.Err() == nil && errors.Is(err, ErrShared) {
		// Waiting for others is no failure, and Run does not log it.
		if skipped, ok := a.unkept.Pass(); ok {
			a.log.Warn("housekeeping failed", "more_since_last", skipped, "err", kept)
		}
	}
	return errors.Join(err, kept)
}

// dueTimes is the cron schedule of the runs: each end of a slice of the finest width, plus the
// delay. Coarser slices end at the same times.
type dueTimes struct {
	ladder metric.Ladder
	delay  time.Duration
}

// Next implements cron.Schedule.
func (d dueTimes) Next(t time.Time) time.Time {
	end := d.ladder.SliceAt(metric.Raw, t.Add(-d.delay).UnixMilli()).EndMs
	return time.UnixMilli(end).UTC().Add(d.delay)
}
