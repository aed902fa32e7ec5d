// Package agent measures one host at a fixed interval and sends what it measured to
// a server, with a spool in between for the time that the server is away.
// docs/agent.md is its manual.
package agent

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/agent/hostmetrics"
	"github.com/quern/quern/internal/agent/spool"
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

// Measurement is one measured value.
type Measurement struct {
	Metric string            `json:"metric"`
	Labels map[string]string `json:"labels,omitempty"`
	TimeMs int64             `json:"time"`
	Value  float64           `json:"value"`
}

// Report is measurements of one source.
type Report struct {
	Source       string        `json:"source"`
	Measurements []Measurement `json:"measurements"`
}

// hostStream is the stream of what the host is: a line of JSON for each reading, which is a Report.
const hostStream = "host"

// Batch is what one request sends.
type Batch struct {
	Samples int
	// Body is reports as JSON, one after another.
	Body []byte
}

// Reports decodes the body.
func (b *Batch) Reports() (reports []Report, err error) {
	for d := json.NewDecoder(bytes.NewReader(b.Body)); d.More(); {
		var r Report
		if err := d.Decode(&r); err != nil {
			return nil, err
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// Collector measures; hostmetrics.Collector implements it. Along with an error it may return what
// it could measure.
type Collector interface {
	Collect(ctx context.Context) ([]hostmetrics.Measurement, error)
}

// Sender delivers batches. The error says what the agent does next:
//
//   - nil: everything was accepted.
//   - *RejectedError: accepted, apart from what the error names.
//   - ErrTooLarge: sent again in halves; a single reading is dropped.
//   - ErrRefused: dropped, since it would be refused again.
//   - *RetryError: sent again, not before the time it names.
//   - Any other error: sent again after a while.
//
// Send MUST NOT keep the batch or change it.
type Sender interface {
	Send(ctx context.Context, b Batch) error
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
	// RequestBytes is how many bytes of several readings may go in one request, before compression. The default is 1 MiB.
	RequestBytes int
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
	// grace is how long Run still sends what is in the spool after its context has ended.
	grace = 5 * time.Second
)

// maxRetryAfter bounds what a server can ask for, so that a wrong header does not
// silence a host.
const maxRetryAfter = 5 * time.Minute

// Agent measures and sends. Its invariants:
//
//  1. A measurement leaves the spool when the server has accepted it, when it can never be
//     accepted, or when the spool drops it. The last two are counted and logged.
//  2. Measurements are sent in the order of their time, and only from the spool: what is sent again
//     after a crash has the same time, and so counts once.
//  3. At most one request is under way.
type Agent struct {
	opts      Options
	collector Collector
	sender    Sender
	clock     clock.Clock
	log       *slog.Logger
	topics    *limits.Topics

	spool *spool.Spool

	delivered, rejected, refused, unspooled atomic.Uint64
}

// Stats counts measurements since the start.
type Stats struct {
	// Delivered measurements were accepted by the server.
	Delivered uint64
	// Rejected measurements were refused one by one, Refused with their whole request.
	Rejected, Refused uint64
	// Dropped measurements were dropped by the spool, or could not be written to it. One that was
	// under way when it was dropped may count as delivered too.
	Dropped uint64
	// Waiting measurements are in the spool.
	Waiting int
}

// Parts are what an Agent works with. All are required.
type Parts struct {
	Collector Collector
	Sender    Sender
	Spool     *spool.Spool
	Clock     clock.Clock
	Logger    *slog.Logger
}

// New returns an agent. Run starts it.
func New(p Parts, o Options) (*Agent, error) {
	o.Interval = cmp.Or(o.Interval, 10*time.Second)
	o.RequestBytes = cmp.Or(o.RequestBytes, 1<<20)
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	switch {
	case o.Source == "":
		return nil, errors.New("the source must not be empty: give the name of this host")
	case o.Interval < time.Millisecond || o.Interval%time.Millisecond != 0:
		return nil, fmt.Errorf("interval %s: must be whole milliseconds", o.Interval)
	}
	return &Agent{
		opts:      o,
		collector: p.Collector,
		sender:    p.Sender,
		clock:     p.Clock,
		log:       p.Logger,
		topics:    limits.NewTopics(p.Clock, topicEvery, maxTopics),
		spool:     p.Spool,
	}, nil
}

// Stats returns the current counts.
func (a *Agent) Stats() Stats {
	waiting, dropped := a.spool.Stats()
	return Stats{
		Delivered: a.delivered.Load(),
		Rejected:  a.rejected.Load(),
		Refused:   a.refused.Load(),
		Dropped:   uint64(dropped) + a.unspooled.Load(),
		Waiting:   waiting,
	}
}

// Run measures and sends until ctx ends. Then it sends what is in the spool, for at most the grace. What is left stays there.
// An agent runs once.
func (a *Agent) Run(ctx context.Context) {
	// Sending continues after ctx for the grace, and is then aborted.
	sending, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	collecting, collected := context.WithCancel(context.WithoutCancel(ctx))

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer collected()
		a.collectLoop(ctx)
	})
	wg.Go(func() {
		select {
		case <-ctx.Done():
		case <-sending.Done():
			return
		}
		if a.clock.Sleep(sending, grace) == nil {
			cut(fmt.Errorf("not sent within %s of the stop", grace))
		}
	})
	a.sendLoop(ctx, sending, collecting)
	cut(nil)
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

// collect measures once and puts the result into the spool.
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
	r := Report{Source: a.opts.Source}
	for _, m := range measured {
		// JSON cannot represent NaN and infinities.
		if math.IsNaN(m.Value) || math.IsInf(m.Value, 0) {
			continue
		}
		labels := make(map[string]string, len(m.Labels))
		for _, l := range m.Labels {
			labels[l.Name] = l.Value
		}
		r.Measurements = append(r.Measurements, Measurement{Metric: m.Metric, Labels: labels, TimeMs: tMs, Value: m.Value})
	}
	if len(r.Measurements) == 0 {
		return
	}
	line, err := json.Marshal(r)
	if err == nil {
		line = append(line, '\n')
		end := a.spool.Stream(hostStream).Seq + uint64(len(line))
		err = a.spool.Put(spool.Chunk{Stream: hostStream, Seq: end, Samples: len(r.Measurements), Data: line})
	}
	if err != nil {
		a.unspooled.Add(uint64(len(r.Measurements)))
		a.warn("dropped measurements that cannot be written to the spool", err, len(r.Measurements))
	}
}
