// Package agent reads what a host has by adaptors, and sends it to a server, with a spool in between for the time that the server is
// away. docs/agent.md is its manual.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/quern/quern/internal/agent/adaptor"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/ingest"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/protocol/remotewrite"
)

const (
	// topicEvery is the minimum time between two log lines on the same topic.
	topicEvery = time.Minute
	// maxTopics bounds the memory, since reasons come from the server.
	maxTopics = 64
)

// Batch is what one request sends.
type Batch struct {
	Samples int
	// Body is a request of Prometheus' remote write 1.0, in frames of zstd.
	Body []byte
}

// Decode adds the samples to a batch, which then holds views into what it has decompressed.
func (b *Batch) Decode(to *ingest.Batch) error {
	z, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
	if err != nil {
		return err
	}
	defer z.Close()
	body, err := z.DecodeAll(b.Body, nil)
	if err != nil {
		return err
	}
	return remotewrite.Decode(body, to)
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
	Total int
	// Message says why, of the first of them.
	Message string
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("%d measurements were rejected: %s", e.Total, e.Message)
}

// Options holds the agent's settings.
type Options struct {
	// RequestBytes is how many bytes of several chunks may go in one request, after compression. The default is 1 MiB.
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
	// backlog is from how many full requests on, that wait, what comes is sent beside them.
	backlog = 4
	// grace is how long Run still sends what is in the spool after its context has ended.
	grace = 5 * time.Second
)

// maxRetryAfter bounds what a server can ask for, so that a wrong header does not
// silence a host.
const maxRetryAfter = 5 * time.Minute

// Agent runs adaptors, and sends what they read. Its invariants:
//
//  1. A measurement leaves the spool when the server has accepted it, when it can never be
//     accepted, or when the spool drops it. The last two are counted and logged.
//  2. Measurements are sent only from the spool, in their order: what is sent again after a crash has the same time, and so counts
//     once. While there is a backlog, the newest are sent beside it.
//  3. At most one request is under way, and one of the newest beside a backlog.
type Agent struct {
	opts   Options
	first  []adaptor.Configured
	wanted chan []adaptor.Configured
	runs   chan struct{} // receives once what was wanted runs
	out    *adaptor.Output
	sender Sender
	clock  clock.Clock
	log    *slog.Logger
	topics *limits.Topics

	stopped chan struct{} // closed once no adaptor runs any more

	mu      sync.Mutex
	running map[string]*started // by text

	delivered, rejected, refused atomic.Uint64
}

// started is an adaptor that runs.
type started struct {
	adaptor.Configured
	out *adaptor.Output
	end func() // and wait
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
	Adaptors []adaptor.Configured
	Output   *adaptor.Output
	Sender   Sender
	Clock    clock.Clock
	Logger   *slog.Logger
}

// New returns an agent. Run starts it.
func New(p Parts, o Options) *Agent {
	o.RequestBytes = cmp.Or(o.RequestBytes, 1<<20)
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return &Agent{
		opts:    o,
		first:   p.Adaptors,
		wanted:  make(chan []adaptor.Configured),
		runs:    make(chan struct{}),
		running: map[string]*started{},
		stopped: make(chan struct{}),
		out:     p.Output,
		sender:  p.Sender,
		clock:   p.Clock,
		log:     p.Logger,
		topics:  limits.NewTopics(p.Clock, topicEvery, maxTopics),
	}
}

// Stats returns the current counts.
func (a *Agent) Stats() Stats {
	waiting, dropped := a.out.Spool.Stats()
	return Stats{
		Delivered: a.delivered.Load(),
		Rejected:  a.rejected.Load(),
		Refused:   a.refused.Load(),
		Dropped:   uint64(dropped) + a.out.Lost(),
		Waiting:   waiting,
	}
}

// Run reads and sends until ctx ends. Then it sends what is in the spool, for at most the grace. What is left stays there.
// An agent runs once.
func (a *Agent) Run(ctx context.Context) {
	// Sending continues after ctx for the grace, and is then aborted.
	sending, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	reading, read := context.WithCancel(context.WithoutCancel(ctx))

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		defer read()
		a.read(ctx)
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
	a.sendLoop(ctx, sending, reading)
	cut(nil)
}

// Read has the agent run these adaptors from now on. Those that it runs with the same text go on, and the others end first. It returns
// false if the agent has stopped.
func (a *Agent) Read(adaptors []adaptor.Configured) bool {
	select {
	case a.wanted <- adaptors:
		<-a.runs
		return true
	case <-a.stopped:
		return false
	}
}

// read runs adaptors until ctx ends.
func (a *Agent) read(ctx context.Context) {
	defer close(a.stopped)
	a.change(ctx, a.first)
	for {
		select {
		case <-ctx.Done():
			a.change(ctx, nil)
			return
		case wanted := <-a.wanted:
			a.change(ctx, wanted)
			a.runs <- struct{}{}
		}
	}
}

// change ends the adaptors that are not wanted, and starts those that are and do not run.
func (a *Agent) change(ctx context.Context, wanted []adaptor.Configured) {
	for text, one := range a.snapshot() {
		if !slices.ContainsFunc(wanted, func(w adaptor.Configured) bool { return w.Text == text }) {
			one.end()
			a.mu.Lock()
			delete(a.running, text)
			a.mu.Unlock()
		}
	}
	for _, one := range wanted {
		a.start(ctx, one)
	}
}

// snapshot returns the adaptors that run, by text.
func (a *Agent) snapshot() map[string]*started {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.running)
}

// start starts an adaptor, unless it runs.
func (a *Agent) start(ctx context.Context, one adaptor.Configured) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if runs := a.running[one.Text]; runs != nil {
		again := *runs
		again.Added = one.Added
		a.running[one.Text] = &again
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	r := &started{one, a.out.ForAdaptor(), func() {
		cancel()
		<-ended
	}}
	a.running[one.Text] = r
	go func() {
		defer close(ended)
		one.Run(ctx, r.out)
	}()
}
