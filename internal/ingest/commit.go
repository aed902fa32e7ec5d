package ingest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// commit holds the samples that become durable together.
type commit struct {
	samples  []metric.Sample
	clients  map[limits.Client]int // the number of samples of each
	at       *blocks.Place         // nil unless the samples count as written earlier
	openedAt time.Duration         // by the clock's Elapsed
	full     chan struct{}         // closed when waiting for more gains nothing
	done     chan struct{}         // closed when what follows is final

	err         error
	overwritten []metric.Sample // the grouper's list
	// failed holds the error of each failed block; nil if err concerns all samples. settings are those that the blocks were cut by.
	failed   map[groupKey]error
	settings storage.Settings
}

// outcome returns the error for some of the commit's samples.
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
	return &commit{samples: buf[:0], clients: make(map[limits.Client]int), full: make(chan struct{}), done: make(chan struct{})}
}

// wait returns when the samples are durable. The commit may hold samples of other calls:
// overwritten lists those of all calls that another sample of the same series and time replaced.
// The samples take the room that is held.
func (in *Ingest) wait(ctx context.Context, samples []metric.Sample, held *hold) (overwritten []metric.Sample, err error) {
	if len(samples) == 0 {
		return nil, nil
	}
	c, err := in.enqueue(samples, held)
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

func (in *Ingest) enqueue(samples []metric.Sample, held *hold) (*commit, error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.leave(held.client, held.room)
	held.room = 0
	if err := in.admit(held.client, len(samples)); err != nil {
		return nil, err
	}
	c := in.open
	c.clients[held.client] += len(samples)
	first, few := len(c.samples) == 0, len(c.samples) < in.opts.FlushSamples
	c.samples = append(c.samples, samples...)
	if first {
		c.openedAt = in.clk.Elapsed()
		in.wake <- struct{}{}
	}
	if few && len(c.samples) >= in.opts.FlushSamples {
		close(c.full)
	}
	return c, nil
}

// admit counts n samples as pending if there is room for them. One client has up to half of the room, so that it does not
// keep all others out; a report of any size is taken when nothing else waits. The caller holds mu.
func (in *Ingest) admit(client limits.Client, n int) error {
	if in.closed {
		return ErrClosed
	}
	waits, share := in.pendingOf[client], (in.opts.MaxPending+1)/2
	switch {
	case in.pending > 0 && in.pending+n > in.opts.MaxPending:
		in.metrics.busy.Inc()
		return ErrBusy
	case client != limits.Client{} && waits > 0 && waits+n > share:
		in.metrics.busy.Inc()
		return fmt.Errorf("%w: %d of this client. One client may have %d, half of what may wait: send less at once, or try again",
			ErrBusy, waits, share)
	}
	in.pendingOf[client] += n
	in.pending += n
	in.metrics.pending.Set(float64(in.pending))
	return nil
}

// leave takes back n samples of a client that admit has counted. The caller holds mu.
func (in *Ingest) leave(client limits.Client, n int) {
	in.pending -= n
	in.metrics.pending.Set(float64(in.pending))
	if in.pendingOf[client] -= n; in.pendingOf[client] == 0 {
		delete(in.pendingOf, client)
	}
}

// commits makes one commit after the other durable. On Close it commits what is left and returns.
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
				in.writer.Hurry()
				if err := in.settle(ctx); err != nil {
					in.opts.Logger.Warn("cannot rewrite the chunks of a failed commit", "err", err)
				}
				return
			}
		}
		c := in.take(ctx, spare)
		in.commit(ctx, &g, c)
		c.overwritten = g.overwritten

		// Whoever has got an answer finds the room free that its samples took.
		in.mu.Lock()
		for client, n := range c.clients {
			in.leave(client, n)
		}
		in.mu.Unlock()
		close(c.done)
		spare = c.samples
	}
}

// take waits for the end of the open commit's window and opens a new commit.
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
	started := in.clk.Elapsed()
	defer func() { in.metrics.flush(in.clk.Elapsed()-started, len(c.samples), c.err) }()
	if c.err = in.unfit(); c.err != nil { // fitness may have changed since the samples arrived
		return
	}
	c.settings = in.store.Settings()
	groups := g.group(c.settings.Ladder, c.settings.Epochs, c.samples)
	err := in.writer.FlushAt(ctx, groups, c.at)
	in.opts.OnSamples(c.samples)
	if err == nil {
		return
	}
	c.err = notStored(err)
	refused := 0
	var some *cache.BlocksError
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

// task is work that runs between two commits.
type task struct {
	do    func(context.Context) error
	reply chan error
}

// between runs do between two commits.
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
