package ingest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/registry"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/throttle"
)

// Options tune and limit ingest.
type Options struct {
	// Window is how long the first sample of a commit waits for others, beside those that come while the commit before is
	// under way. The default is 0, not at all.
	Window time.Duration
	// FlushSamples end the window early. The default is 131072.
	FlushSamples int
	// MaxPending is the number of samples that may wait or be under way; more are
	// answered with ErrBusy. It bounds ingest's memory at about 50 bytes each. The default is 2097152.
	MaxPending int
	// AgeCap is how old a sample may be; exactly that old is taken. The default is 24h.
	AgeCap time.Duration
	// FutureLimit is how far ahead of this process's clock a sample may be. The default is 10m.
	FutureLimit time.Duration
	// OnSamples is told of samples that are durable, or may be, before they are acknowledged. It keeps nothing of its argument.
	// The default is nobody.
	OnSamples func(samples []metric.Sample)
	// Unfit says why nothing may be written now, because this process's clock or settings are in doubt: what it takes to be on
	// time may belong to a slice that is ground. The default is that nothing is in doubt.
	Unfit func() error
	// Limits bound names, labels and values.
	Limits Limits
	// Logger takes what an operator should know. The default discards.
	Logger *slog.Logger
	// Metrics takes ingest's own metrics. The default is nobody.
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
	o.Limits.ensureDefaults()
}

// warnEvery is how often a failing commit is logged.
const warnEvery = 10 * time.Second

// ErrClosed says that ingest is draining: nothing was taken.
var ErrClosed = fmt.Errorf("shutting down: %w", storage.ErrUnavailable)

// errForgotten: the samples are stored, but the store may have forgotten their series, or the samples too.
var errForgotten = fmt.Errorf("samples not known to be stored: %w for a moment, and may have forgotten what it had", storage.ErrUnavailable)

// Ingest takes reports. Many goroutines may Append; one goroutine commits what they brought
// together, one commit after the other.
type Ingest struct {
	store    storage.Store
	registry *registry.Registry
	writer   *cache.Writer
	clk      clock.Clock
	opts     Options
	metrics  *metrics
	scratch  sync.Pool

	// While the store takes nothing every commit fails.
	warnings *throttle.Throttle

	mu      sync.Mutex
	open    *commit // takes samples
	pending int     // samples in open and in the commit under way
	closed  bool

	wake    chan struct{} // has a value when open holds samples
	tasks   chan task
	closing chan struct{}
	stopped chan struct{}
}

// commit is the samples that become durable together.
type commit struct {
	samples  []metric.Sample
	openedAt time.Duration // by the clock's Elapsed
	full     chan struct{} // closed when waiting for more gains nothing
	done     chan struct{} // closed when err is final
	err      error
	// overwritten is what the grouper lists. It is final with err, and not changed afterwards.
	overwritten []metric.Sample
	// failed is why, by block, nil where err is about all. settings are those that they were cut by.
	failed   map[groupKey]error
	settings storage.Settings
}

// outcome is what has become of some of the commit's samples.
func (c *commit) outcome(samples []metric.Sample) error {
	if c.err == nil || c.failed == nil {
		return c.err
	}
	var refused error
	for _, s := range samples {
		switch err := c.failed[keyOf(&c.settings, s)]; {
		case err == nil:
		case errors.Is(err, storage.ErrRefused):
			refused = notStored(err)
		default:
			return notStored(err) // the others may be taken when they are sent again
		}
	}
	return refused
}

func notStored(err error) error { return fmt.Errorf("samples not stored: %w", err) }

func newCommit(buf []metric.Sample) *commit {
	return &commit{samples: buf[:0], full: make(chan struct{}), done: make(chan struct{})}
}

// Start makes an Ingest and starts its committing goroutine. Cancelling ctx breaks
// off the commit under way; Close drains instead and must be called in any case.
func Start(ctx context.Context, store storage.Store, reg *registry.Registry, c *cache.Cache, clk clock.Clock, opts Options) *Ingest {
	opts.ensureDefaults()
	in := &Ingest{
		store: store, registry: reg, writer: cache.NewWriter(c), clk: clk, opts: opts,
		metrics:  newMetrics(opts.Metrics),
		warnings: throttle.New(clk, warnEvery),
		open:     newCommit(nil),
		wake:     make(chan struct{}, 1),
		tasks:    make(chan task),
		closing:  make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	in.scratch.New = func() any { return new(resolver) }
	go func() {
		defer close(in.stopped)
		in.commits(ctx)
	}()
	return in
}

// Append takes the reports and returns when each measurement is durable or rejected.
// It keeps nothing of its argument. The error is not nil when nothing at all may be
// taken as accepted: ErrBusy when the queue is full, one that wraps a
// storage error when the store failed. The caller may then send all of it again; a
// sample that was stored after all counts once.
func (in *Ingest) Append(ctx context.Context, reports []Report) (Result, error) {
	return in.append(ctx, reports, in.opts.AgeCap)
}

// BackFill is Append for history: what is older than the age cap is taken too, for as long as raw samples are kept.
func (in *Ingest) BackFill(ctx context.Context, reports []Report) (Result, error) {
	return in.append(ctx, reports, 0)
}

// append takes samples that are not older than the cap, 0 for any age, nor than what is kept.
func (in *Ingest) append(ctx context.Context, reports []Report, ageCap time.Duration) (Result, error) {
	if err := in.unfit(); err != nil {
		return Result{}, err
	}
	r := in.scratch.Get().(*resolver)
	defer in.scratch.Put(r)
	doubts := in.registry.Doubts()
	if err := r.resolve(ctx, in, reports, ageCap); err != nil {
		return Result{}, err
	}
	overwritten, err := in.wait(ctx, r.samples)
	if err != nil {
		return Result{}, err
	}
	if in.registry.Doubts() != doubts {
		return Result{}, errForgotten
	}
	in.metrics.accepted.Add(float64(len(r.samples)))
	for _, rej := range r.rejected {
		in.metrics.rejected.WithLabelValues(string(rej.Reason)).Inc()
	}
	result := Result{Accepted: len(r.samples), Rejected: r.takeRejected()}
	result.Overwritten = r.overwritten(reports, result.Rejected, overwritten)
	in.metrics.overwritten.Add(float64(result.Overwritten.Samples))
	return result, nil
}

// Delete takes back the samples that have the schedules and times of those given; their values are overwritten. It returns
// when that is durable, and keeps nothing of its argument. The error is as of Append.
func (in *Ingest) Delete(ctx context.Context, samples []metric.Sample) error {
	for i := range samples {
		samples[i].Value = metric.Tombstone()
	}
	if err := in.unfit(); err != nil {
		return err
	}
	doubts := in.registry.Doubts()
	if _, err := in.wait(ctx, samples); err != nil {
		return err
	}
	if in.registry.Doubts() != doubts {
		return errForgotten
	}
	return nil
}

// unfit is why nothing may be written, as callers are told.
func (in *Ingest) unfit() error {
	if err := in.opts.Unfit(); err != nil {
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, err)
	}
	return nil
}

// wait returns when the samples are durable. With them may be samples of others: overwritten are those of the commit that
// others of the same series and time replace.
func (in *Ingest) wait(ctx context.Context, samples []metric.Sample) (overwritten []metric.Sample, err error) {
	if len(samples) == 0 {
		return nil, nil
	}
	c, err := in.enqueue(samples)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.done:
		return c.overwritten, c.outcome(samples)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (in *Ingest) enqueue(samples []metric.Sample) (*commit, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.closed {
		return nil, ErrClosed
	}
	if in.pending > 0 && in.pending+len(samples) > in.opts.MaxPending {
		in.metrics.busy.Inc()
		return nil, ErrBusy
	}
	in.pending += len(samples)
	in.metrics.pending.Set(float64(in.pending))
	c := in.open
	first, below := len(c.samples) == 0, len(c.samples) < in.opts.FlushSamples
	c.samples = append(c.samples, samples...)
	if first {
		c.openedAt = in.clk.Elapsed()
		in.wake <- struct{}{}
	}
	if below && len(c.samples) >= in.opts.FlushSamples {
		close(c.full)
	}
	return c, nil
}

// commits makes one commit after the other durable until Close, then what is left.
func (in *Ingest) commits(ctx context.Context) {
	var g grouper
	var spare []metric.Sample
	for {
		select {
		case <-in.wake:
		case t := <-in.tasks:
			t.reply <- t.do(ctx)
			continue
		case <-in.closing:
			select {
			case <-in.wake:
			default:
				if err := in.settle(ctx); err != nil {
					in.opts.Logger.Warn("what a failed commit may have left is not written again", "err", err)
				}
				return
			}
		}
		c := in.take(ctx, spare)
		started := in.clk.Elapsed()
		in.commit(ctx, &g, c)
		c.overwritten = g.overwritten
		in.metrics.flush(in.clk.Elapsed()-started, len(c.samples), c.err)
		close(c.done)

		in.mu.Lock()
		in.pending -= len(c.samples)
		in.metrics.pending.Set(float64(in.pending))
		in.mu.Unlock()
		spare = c.samples
	}
}

// take waits out the window of the open commit and puts a new one in its place.
func (in *Ingest) take(ctx context.Context, spare []metric.Sample) *commit {
	in.mu.Lock()
	c := in.open
	in.mu.Unlock()
	if left := in.opts.Window - (in.clk.Elapsed() - c.openedAt); left > 0 {
		select {
		case <-in.clk.After(left):
		case <-c.full:
		case <-in.closing:
		case <-ctx.Done():
		}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.open = newCommit(spare)
	return c
}

func (in *Ingest) commit(ctx context.Context, g *grouper, c *commit) {
	if c.err = in.unfit(); c.err != nil { // it was not when the samples came
		return
	}
	c.settings = in.store.Settings()
	groups := g.group(c.settings.Ladder, c.settings.Epochs, c.samples)
	err := in.writer.Flush(ctx, groups)
	in.opts.OnSamples(c.samples)
	if err == nil {
		return
	}
	c.err = notStored(err)
	refused := 0
	var some *cache.GroupsError
	if errors.As(err, &some) {
		c.failed = make(map[groupKey]error, len(some.Failed))
		for n, i := range some.Failed {
			c.failed[groupKey{groups[i].Slice.StartMs, groups[i].Block.Start}] = some.Errs[n]
			if errors.Is(some.Errs[n], storage.ErrRefused) {
				refused += len(groups[i].Samples)
			}
		}
	}
	in.metrics.refused.Add(float64(refused))
	if skipped, ok := in.warnings.Pass(); ok {
		in.opts.Logger.Warn("commit failed", "samples", len(c.samples), "blocks", len(groups), "refused_samples", refused, "more_since_last", skipped, "err", err)
	}
}

// Seal lets the runs of slices that have closed use the cache; see cache.Writer.Seal.
// It is to be called when the grace of a slice has passed.
func (in *Ingest) Seal(ctx context.Context) error {
	return in.between(ctx, func(ctx context.Context) error {
		if err := in.unfit(); err != nil {
			return err
		}
		return errors.Join(in.settle(ctx), in.writer.Seal(ctx))
	})
}

// Settle writes again what commits that failed may have left on some copies, so that it is in the store for good. The next
// commit does so too, but there may be none for long: it is to be called now and again.
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

// task is done between two commits.
type task struct {
	do    func(context.Context) error
	reply chan error
}

// between has something done between two commits.
func (in *Ingest) between(ctx context.Context, do func(context.Context) error) error {
	t := task{do, make(chan error, 1)}
	select {
	case in.tasks <- t:
	case <-in.stopped:
		return ErrClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-t.reply:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close takes no more reports, makes those under way durable, and waits until that
// is done. It is called once.
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
