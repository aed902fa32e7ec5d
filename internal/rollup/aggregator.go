package rollup

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/throttle"
)

// The waits between attempts while the store is away: short enough that a slice is
// ground soon after the store answers, long enough not to hammer it.
const (
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
	// lookEvery is how often is looked whether the clock was set, and clockSet by how much more than it runs it must have been.
	lookEvery = time.Minute
	clockSet  = time.Minute
	// sharedRetry is how often is looked whether other workers are done, or gone.
	sharedRetry = time.Second
)

// Aggregator drives a Runner: at start for what was missed, then by cron whenever a
// slice is due, and again soon after a run that was aborted.
type Aggregator struct {
	runner *Runner
	due    dueTimes
	clk    clock.Clock
	log    *slog.Logger
	after  func(ctx context.Context) error
	// unkept is about housekeeping that fails while a slice waits for other workers.
	unkept *throttle.Throttle
}

// NewAggregator makes the driver. after is called after each
// pass: the time for housekeeping.
func NewAggregator(r *Runner, timing cache.Timing, after func(ctx context.Context) error) *Aggregator {
	return &Aggregator{
		runner: r,
		due:    dueTimes{ladder: r.ladder, delay: timing.Delay},
		clk:    r.clk,
		log:    r.opts.Logger,
		after:  after,
		unkept: throttle.New(r.clk, time.Minute),
	}
}

// Run drives until ctx is done. Slices that are then under way stay open.
func (a *Aggregator) Run(ctx context.Context) {
	wake := make(chan struct{}, 1)
	schedule := func() *cron.Cron {
		c := cron.New(cron.WithLocation(time.UTC))
		c.Schedule(a.due, cron.FuncJob(func() {
			select {
			case wake <- struct{}{}:
			default: // a run is under way, and looks for more when it is done
			}
		}))
		c.Start()
		return c
	}
	c := schedule()
	defer func() { <-c.Stop().Done() }()
	// cron keeps the next time that it has computed. If a clock that was ahead is put right, that time is as far away as the
	// clock was, so the schedule is made anew.
	set := a.clockSets()

	wait := firstRetry
	for ctx.Err() == nil {
		var retry <-chan time.Time
		switch err := a.pass(ctx); {
		case err == nil || ctx.Err() != nil:
			wait = firstRetry
		case errors.Is(err, ErrShared):
			retry = a.clk.After(sharedRetry)
		default:
			a.log.Warn("aggregation goes on later", "in", wait, "err", err)
			retry = a.clk.After(wait)
			wait = min(2*wait, lastRetry)
		}
		for waiting := true; waiting; {
			select {
			case <-a.clk.After(lookEvery):
				if waiting = !set(); !waiting {
					<-c.Stop().Done()
					c = schedule()
				}
				continue
			case <-wake:
			case <-retry:
			case <-ctx.Done():
			}
			waiting = false
		}
	}
}

// clockSets says at each call whether the clock was set since the last.
func (a *Aggregator) clockSets() func() bool {
	// Without the monotonic reading, by which times are compared otherwise.
	wall, elapsed := a.clk.Now().Round(0), a.clk.Elapsed()
	return func() bool {
		nowWall, nowElapsed := a.clk.Now().Round(0), a.clk.Elapsed()
		off := nowWall.Sub(wall) - (nowElapsed - elapsed)
		wall, elapsed = nowWall, nowElapsed
		return off.Abs() > clockSet
	}
}

func (a *Aggregator) pass(ctx context.Context) error {
	_, err := a.runner.RunDue(ctx)
	if ctx.Err() != nil {
		return err
	}
	// Also after a run that was aborted: housekeeping may free the space that it lacked.
	kept := a.after(ctx)
	if kept != nil && ctx.Err() == nil && errors.Is(err, ErrShared) {
		// To wait for others is no failure, and Run says nothing of it.
		if skipped, ok := a.unkept.Pass(); ok {
			a.log.Warn("housekeeping failed", "more_since_last", skipped, "err", kept)
		}
	}
	return errors.Join(err, kept)
}

// dueTimes is the cron schedule of the runs: every end of a slice of the finest
// width, at which those of coarser ones end too, plus the delay.
type dueTimes struct {
	ladder metric.Ladder
	delay  time.Duration
}

// Next implements cron.Schedule.
func (d dueTimes) Next(t time.Time) time.Time {
	end := d.ladder.SliceAt(metric.Raw, t.Add(-d.delay).UnixMilli()).EndMs
	return time.UnixMilli(end).UTC().Add(d.delay)
}
