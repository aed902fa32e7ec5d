// Package agent measures one host at a fixed interval and sends what it measured to
// a server, with a bounded queue in between for the time that the server is away.
// docs/agent.md is its manual.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/agent/hostmetrics"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/wire"
)

const (
	// topicEvery is the minimum time between two log lines on the same topic.
	topicEvery = time.Minute
	// maxTopics bounds the memory, since reasons come from the server.
	maxTopics = 64
)

// Measurement is one measured value. It has the fields of the server's own type, in
// order, so that a sender within the server's process converts one to the other.
type Measurement struct {
	Metric string
	Labels []metric.Label
	TimeMs int64
	Value  float64
}

// Report is measurements of one source, oldest first.
type Report struct {
	Source       string
	Measurements []Measurement
}

// Collector measures; hostmetrics.Collector implements it. Along with an error it may return what
// it could measure.
type Collector interface {
	Collect(ctx context.Context) ([]hostmetrics.Measurement, error)
}

// Sender delivers reports. The error says what the agent does next:
//
//   - nil: everything was accepted.
//   - *RejectedError: accepted, apart from what the error names.
//   - ErrTooLarge: sent again in halves; a single measurement is dropped.
//   - ErrRefused: dropped, since it would be refused again.
//   - *RetryError: sent again, not before the time it names.
//   - Any other error: sent again after a while.
//
// Send MUST NOT keep the report or change it.
type Sender interface {
	Send(ctx context.Context, r Report) error
}

// The errors of a sender for a report that the server cannot accept as it is.
var (
	// ErrRefused: the server will never accept this report.
	ErrRefused = errors.New("the server refused the report")
	// ErrTooLarge: the server may accept a smaller report.
	ErrTooLarge = errors.New("the report is too large for the server")
)

// RetryError asks for time: do not send again before After has passed.
type RetryError struct {
	After time.Duration
	Err   error
}

// Error implements error.
func (e *RetryError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *RetryError) Unwrap() error { return e.Err }

// RejectedError says that the server processed a report and rejected some or all of its
// measurements for good.
type RejectedError struct {
	// Total is the number of rejected measurements.
	Total int
	// Rejected lists them, or the first of many.
	Rejected []wire.Rejection
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("%d measurements were rejected", e.Total)
}

// Options holds the agent's settings.
type Options struct {
	// Source is the name of the host. There is no default.
	Source string
	// Interval is the time between two measurements, which are aligned to it in UTC. The default is
	// 10s.
	Interval time.Duration
	// QueueLimit is the maximum number of measurements that wait for the server. Beyond it the
	// oldest are dropped. The default is 200,000, which is ten hours of 50 series.
	QueueLimit int
	// RequestLimit is the maximum number of measurements in one report. The default is 5,000.
	RequestLimit int
	// Jitter is a random number in [0, 1), which spreads the retries of many agents.
	// The default is rand.Float64.
	Jitter func() float64
}

const (
	// requestTimeout is how long one report may take.
	requestTimeout = 30 * time.Second
	// The wait after a failure doubles from minBackoff to maxBackoff.
	minBackoff = 500 * time.Millisecond
	maxBackoff = 30 * time.Second
	// grace is how long Run still sends queued measurements after its context has ended.
	grace = 5 * time.Second
)

// maxRetryAfter bounds what a server can ask for, so that a wrong header does not
// silence a host.
const maxRetryAfter = 5 * time.Minute

// Agent measures and sends. Its invariants:
//
//  1. A measurement leaves the queue when the server has accepted it, when it can never be
//     accepted, or when it is the oldest of a full queue. The last two are counted and logged.
//  2. Measurements are sent in the order of their time. A failed report is sent again together with
//     newer measurements, up to RequestLimit.
//  3. At most one report is under way.
type Agent struct {
	opts      Options
	collector Collector
	sender    Sender
	clock     clock.Clock
	log       *slog.Logger
	topics    *limits.Topics

	queue queue
	// wake holds a token when the queue may have something to send.
	wake chan struct{}

	delivered, rejected, refused atomic.Uint64
}

// Stats counts measurements since the start.
type Stats struct {
	// Delivered measurements were accepted by the server.
	Delivered uint64
	// Rejected measurements were refused one by one, Refused with their whole report.
	Rejected, Refused uint64
	// Dropped measurements were pushed out of a full queue, or left in it at the end. A measurement
	// that was under way when it was pushed out may count as delivered too.
	Dropped uint64
	// Queued measurements wait.
	Queued int
}

// Parts are what an Agent works with. All are required.
type Parts struct {
	Collector Collector
	Sender    Sender
	Clock     clock.Clock
	Logger    *slog.Logger
}

// New returns an agent. Run starts it.
func New(p Parts, o Options) (*Agent, error) {
	o.Interval = cmp.Or(o.Interval, 10*time.Second)
	o.QueueLimit = cmp.Or(o.QueueLimit, 200_000)
	o.RequestLimit = cmp.Or(o.RequestLimit, 5000)
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	switch {
	case o.Source == "":
		return nil, errors.New("the source must not be empty: give the name of this host")
	case o.Interval < time.Millisecond || o.Interval%time.Millisecond != 0:
		return nil, fmt.Errorf("interval %s: must be whole milliseconds", o.Interval)
	case o.QueueLimit < 1:
		return nil, errors.New("the limit of the queue must be at least 1")
	}
	return &Agent{
		opts:      o,
		collector: p.Collector,
		sender:    p.Sender,
		clock:     p.Clock,
		log:       p.Logger,
		topics:    limits.NewTopics(p.Clock, topicEvery, maxTopics),
		queue:     queue{limit: o.QueueLimit},
		wake:      make(chan struct{}, 1),
	}, nil
}

// Stats returns the current counts.
func (a *Agent) Stats() Stats {
	queued, dropped := a.queue.state()
	return Stats{
		Delivered: a.delivered.Load(),
		Rejected:  a.rejected.Load(),
		Refused:   a.refused.Load(),
		Dropped:   dropped,
		Queued:    queued,
	}
}

// Run measures and sends until ctx ends. Then it sends what is queued for at most Grace. It returns
// an error if measurements are left. An agent runs once.
func (a *Agent) Run(ctx context.Context) error {
	// Sending continues after ctx for the grace, and is then aborted.
	sendCtx, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	collected := make(chan struct{})

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer close(collected)
		a.collectLoop(ctx)
	})
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-sendCtx.Done():
			return
		}
		if a.clock.Sleep(sendCtx, grace) == nil {
			cut(fmt.Errorf("not sent within %s of the stop", grace))
		}
	})
	a.sendLoop(ctx, sendCtx, collected)
	cause := context.Cause(sendCtx)
	cut(nil)
	<-collected

	if left := a.queue.clear(); left > 0 {
		return fmt.Errorf("%d measurements lost: %w", left, cause)
	}
	return nil
}

// collectLoop measures at once, so that a new host is visible without delay, and then at each
// multiple of the interval.
func (a *Agent) collectLoop(ctx context.Context) {
	intervalMs := a.opts.Interval.Milliseconds()
	nowMs := clock.NowMs(a.clock)
	lastMs := nowMs
	a.collect(ctx, nowMs)
	for {
		nowMs = clock.NowMs(a.clock)
		nextMs := metric.AlignDown(nowMs, intervalMs) + intervalMs
		if a.clock.Sleep(ctx, time.Duration(nextMs-nowMs)*time.Millisecond) != nil {
			return
		}
		// A measurement that is a little late belongs to its tick: even times make small chunks.
		// Long after, for example when the machine slept, it belongs to the last tick.
		nowMs = clock.NowMs(a.clock)
		tickMs := metric.AlignDown(nowMs, intervalMs)
		if tickMs <= lastMs && lastMs-tickMs < intervalMs {
			continue // woken early, or the clock was set back a little: one value per tick
		}
		lastMs = tickMs
		a.collect(ctx, tickMs)
	}
}

// collect measures once and queues the result.
func (a *Agent) collect(ctx context.Context, tMs int64) {
	measured, err := a.collector.Collect(ctx)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		if n, ok := a.topics.Pass("collect"); ok {
			a.log.Warn("some host metrics cannot be read", "err", err, "suppressed", n)
		}
	}
	ms := make([]Measurement, 0, len(measured))
	for _, m := range measured {
		// JSON cannot represent NaN and infinities.
		if !math.IsNaN(m.Value) && !math.IsInf(m.Value, 0) {
			ms = append(ms, Measurement{Metric: m.Metric, Labels: m.Labels, TimeMs: tMs, Value: m.Value})
		}
	}
	if dropped := a.queue.push(ms); dropped > 0 {
		if n, ok := a.topics.Pass("full"); ok {
			a.log.Warn("queue full; dropped the oldest measurements", "dropped", dropped, "suppressed", n)
		}
	}
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
