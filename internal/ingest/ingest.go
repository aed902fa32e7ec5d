package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
)

// Store is what ingest itself asks a store. All that it writes goes through the cache's protocol.
type Store interface {
	// Settings returns the current settings of the store; see storage.Store.
	Settings() storage.Settings
	// WholeFrom returns the time from which a bucket's rows have not expired; see storage.Store.
	WholeFrom(b metric.Bucket, nowMs int64) int64
}

// Parts are what ingest works with. All are required.
type Parts struct {
	Store    Store
	Registry *registry.Registry
	Cache    *cache.Cache
	Clock    clock.Clock
}

// Options tunes and limits ingest.
type Options struct {
	// Window is how long the first sample of a commit waits for others. Samples that arrive while
	// the previous commit is under way join it anyway. The default is 0: no wait.
	Window time.Duration
	// FlushSamples is the number of samples that ends the window early. The default is 131072.
	FlushSamples int
	// MaxPending is the number of samples that may wait or be under way, of one client up to half. Further
	// samples are answered with ErrBusy. It bounds ingest's memory at about 50 bytes per sample. The default is
	// 2097152.
	MaxPending int
	// AgeCap is the maximum age of a sample, inclusive. The default is 24h.
	AgeCap time.Duration
	// FutureLimit is the maximum time by which a sample may be ahead of this process's clock. The
	// default is 10m.
	FutureLimit time.Duration
	// OnSamples receives samples that are durable, or may be, before they are acknowledged. It must
	// not keep its argument. The default does nothing.
	OnSamples func(samples []metric.Sample)
	// Unfit returns why nothing may be written now: this process's clock or settings are in doubt,
	// so data that seems on time may belong to a slice that is already ground. The default returns
	// nil.
	Unfit func() error
	// Within returns how many series there are that the request of a context may write; see bound.Of. It is required
	// where tokens limit that number.
	Within func(ctx context.Context) (int, error)
	// Logger receives what an operator should know. The default discards it.
	Logger *slog.Logger
	// Metrics registers ingest's own metrics. The default is none.
	Metrics prometheus.Registerer
}

func (o *Options) ensureDefaults() {
	if o.FlushSamples == 0 {
		o.FlushSamples = 128 << 10
	}
	if o.MaxPending == 0 {
		o.MaxPending = 2 << 20
	}
	if o.AgeCap == 0 {
		o.AgeCap = 24 * time.Hour
	}
	if o.FutureLimit == 0 {
		o.FutureLimit = 10 * time.Minute
	}
	if o.Unfit == nil {
		o.Unfit = func() error { return nil }
	}
	if o.OnSamples == nil {
		o.OnSamples = func([]metric.Sample) {}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// warnEvery is the minimum time between two log messages about failing commits.
const warnEvery = 10 * time.Second

// SettleEvery is how often to call Settle: how soon the chunks of a failed commit are written again.
const SettleEvery = time.Second

// ErrClosed says that ingest is draining. Nothing was stored.
var ErrClosed = fmt.Errorf("shutting down: %w", storage.ErrUnavailable)

// Ingest accepts reports: Append validates them and finds the ids of their series (resolve.go), and queues their samples for the
// next commit. One goroutine makes one commit after the other durable (commit.go): it sorts the samples by block (group.go) and
// gives them to the cache's writer. Then all calls are answered that have samples in it.
type Ingest struct {
	store    Store
	registry *registry.Registry
	writer   *cache.Writer // used by the committing goroutine only
	places   *cache.Cache
	grace    time.Duration
	clk      clock.Clock
	opts     Options
	metrics  *metrics
	scratch  sync.Pool

	// warnings limits the log: while the store is away, every commit fails.
	warnings *limits.Throttle

	mu   sync.Mutex
	open *commit // the next one: it accepts samples
	// pending is the number of samples in open and in the commit under way, and of those for which a hold keeps room.
	// pendingOf is the same for each client; the zero Client stands for all that are unknown.
	pending   int
	pendingOf map[limits.Client]int
	closed    bool

	wake    chan struct{} // has a value when open holds samples
	tasks   chan task
	closing chan struct{}
	stopped chan struct{}
}

// Start returns an Ingest and starts its committing goroutine. Cancelling ctx aborts the commit
// under way. Close drains instead, and must be called in any case.
func Start(ctx context.Context, p Parts, opts Options) *Ingest {
	opts.ensureDefaults()
	in := &Ingest{
		store: p.Store, registry: p.Registry, writer: cache.NewWriter(p.Cache), places: p.Cache, grace: p.Cache.Timing().Grace, clk: p.Clock, opts: opts,
		metrics:  newMetrics(opts.Metrics),
		warnings: limits.NewThrottle(p.Clock, warnEvery),
		open:     newCommit(nil),

		pendingOf: make(map[limits.Client]int),
		wake:      make(chan struct{}, 1),
		tasks:     make(chan task),
		closing:   make(chan struct{}),
		stopped:   make(chan struct{}),
	}
	in.scratch.New = func() any { return new(resolver) }
	go func() {
		defer close(in.stopped)
		in.commits(ctx)
	}()
	return in
}

// Append returns when each measurement of the reports is durable or rejected. It does not keep its
// argument. If the error is not nil, the caller must take nothing as accepted and may send
// everything again: a sample that was stored after all counts once. The error is ErrBusy if the
// queue is full, a *limits.RateError if the client sends more than it may, and wraps a storage
// error if the store failed. Series that the request may not write, see bound.Of, are rejected.
//
// Once Append registers new series, it goes on after the end of ctx, see Outlive, until their samples
// are queued. So a client that hangs up leaves no series without samples.
func (in *Ingest) Append(ctx context.Context, reports []Report) (Result, error) {
	return in.append(ctx, reports, in.opts.AgeCap)
}

// BackFill is Append for history: it also accepts samples beyond the age cap, as long as raw
// samples are kept.
func (in *Ingest) BackFill(ctx context.Context, reports []Report) (Result, error) {
	return in.append(ctx, reports, 0)
}

// append accepts samples up to the age cap, 0 for any age, and within the raw retention.
func (in *Ingest) append(ctx context.Context, reports []Report, ageCap time.Duration) (Result, error) {
	if err := in.unfit(); err != nil {
		return Result{}, err
	}
	r := in.scratch.Get().(*resolver)
	defer in.scratch.Put(r)
	held := hold{in: in, ctx: ctx, client: limits.ClientOf(ctx)}
	for _, rep := range reports {
		held.most += len(rep.Measurements)
	}
	if err := limits.Spend(ctx, held.most); err != nil {
		return Result{}, err
	}
	defer held.release()
	if err := r.resolve(&held, in, reports, ageCap); err != nil {
		return Result{}, err
	}
	overwritten, err := in.wait(ctx, r.samples, &held)
	if err != nil {
		return Result{}, err
	}
	in.metrics.accepted.Add(float64(len(r.samples)))
	nowMs := clock.NowMs(in.clk)
	for _, t := range r.taken {
		if t.samples == 0 {
			continue
		}
		t.source.Took(t.samples, t.bytes, nowMs)
	}
	for _, rej := range r.rejected {
		in.metrics.rejected.WithLabelValues(string(rej.Reason)).Inc()
	}
	result := Result{Accepted: len(r.samples), Rejected: r.takeRejected()}
	result.Overwritten = r.overwritten(reports, result.Rejected, overwritten)
	in.metrics.overwritten.Add(float64(result.Overwritten.Samples))
	return result, nil
}

// Place takes a place in the order of what this process writes, for Delete. What was acknowledged before is below it, and
// what arrives later is above it.
func (in *Ingest) Place(ctx context.Context) (*blocks.Place, error) {
	if err := in.unfit(); err != nil {
		return nil, err
	}
	// A caller that has left does not wait for its place.
	taken := make(chan *blocks.Place, 1)
	// A commit under way has made its chunks, and they cannot be read yet.
	err := in.between(ctx, func(ctx context.Context) error {
		at, err := in.places.Place(ctx)
		taken <- at
		return err
	})
	if err != nil {
		return nil, err
	}
	return <-taken, nil
}

// Delete overwrites the samples that have the given schedules and times with tombstones. A sample that arrives after the
// place was taken stays. So samples must have been read after that. Delete does not keep its argument, and returns when
// the tombstones are durable. It wraps a storage error if the store failed.
func (in *Ingest) Delete(ctx context.Context, at *blocks.Place, samples []metric.Sample) error {
	if err := in.unfit(); err != nil {
		return err
	}
	if len(samples) == 0 {
		return nil
	}
	// The commit may go on after the end of ctx.
	c := &commit{samples: slices.Clone(samples), at: at}
	for i := range c.samples {
		c.samples[i].Value = metric.Tombstone()
	}
	// They are a commit of their own: within one commit the last sample stays, and a chunk has one place.
	return in.between(ctx, func(ctx context.Context) error {
		in.commit(ctx, new(grouper), c)
		return c.outcome(c.samples)
	})
}

// unfit returns why nothing may be written, as an error for callers.
func (in *Ingest) unfit() error {
	if err := in.opts.Unfit(); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	}
	return nil
}

// UntilSeal returns the time until the grace of the current slice has passed, which is when to call
// Seal. The rest of the delay then remains before the run.
func (in *Ingest) UntilSeal() time.Duration {
	now := in.clk.Now()
	slice := in.store.Settings().Ladder.SliceAt(metric.Raw, now.Add(-in.grace).UnixMilli())
	return time.UnixMilli(slice.EndMs).Add(in.grace).Sub(now)
}

// Seal lets the runs of closed slices use the cache; see cache.Writer.Seal. See UntilSeal for when to
// call it.
func (in *Ingest) Seal(ctx context.Context) error {
	return in.between(ctx, func(ctx context.Context) error {
		if err := in.unfit(); err != nil {
			return err
		}
		in.writer.Hurry()
		return errors.Join(in.settle(ctx), in.writer.Seal(ctx))
	})
}

// Settle writes the chunks of failed commits again, so that they are stored for good; see
// cache.Writer.Settle. Call it each SettleEvery: the next commit may be far away.
func (in *Ingest) Settle(ctx context.Context) error { return in.between(ctx, in.settle) }

func (in *Ingest) settle(ctx context.Context) error {
	if err := in.unfit(); err != nil {
		if in.writer.Owes() {
			return err
		}
		return nil
	}
	return in.writer.Settle(ctx)
}

// Close rejects new reports, makes those under way durable, and waits until that is done. It is
// called once.
func (in *Ingest) Close() error {
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return errors.New("ingest closed twice")
	}
	in.closed = true
	in.mu.Unlock()
	close(in.closing)
	<-in.stopped
	return nil
}
