// Package rollup grinds: it computes one roll-up row per schedule from the samples of a slice
// (Grinder, a pure function), and does so for all blocks of a slice.
//
// A run keeps these invariants, numbered as in docs/architecture.md:
//
//  3. No lost mark: a block's marks are deleted last, after its rows are stored and handed on to
//     the next bucket.
//  5. One winner: every write carries the fence of the shard's lease.
//  6. Cost: without late data a run reads each block once and each index partition once.
//  7. Bounded: a run holds only the blocks being ground, not the whole slice.
package rollup

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// Options tunes a run.
type Options struct {
	// Parallel is the number of blocks ground at once. The default is one per processor.
	Parallel int
	// Samples is the maximum number of samples of a block that are held at a time. A block with more
	// is ground in parts, and its table is read once for each part. The default is 4 million, which
	// take some 200 MB, and fewer if more than 8 blocks are ground at once: 32 million for all
	// together.
	Samples int
	// Attempts is how often a block is tried within a run before it is put off. The default is 3.
	Attempts int
	// Backoff is the wait before the second attempt. It doubles with each attempt. The default is
	// 100ms.
	Backoff time.Duration
	// PackRate is how many bytes a second of raw chunks Pack reads and writes; 0 has it do nothing.
	PackRate int
	// Logger receives what an operator should know. The default discards it.
	Logger *slog.Logger
	// Metrics registers the metrics of the runs. The default is none.
	Metrics prometheus.Registerer
}

func (o *Options) ensureDefaults() {
	if o.Parallel == 0 {
		o.Parallel = runtime.GOMAXPROCS(0)
	}
	if o.Samples == 0 {
		o.Samples = min(4<<20, 32<<20/o.Parallel)
	}
	if o.Attempts == 0 {
		o.Attempts = 3
	}
	if o.Backoff == 0 {
		o.Backoff = 100 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
}

// Parts are what a Runner works with. All are required.
type Parts struct {
	Store    storage.Store
	Member   *shards.Member
	Cache    *cache.Cache
	Recovery *recovery.Recovery
	Clock    clock.Clock
}

// Runner runs slices, one at a time.
type Runner struct {
	store    storage.Store
	member   *shards.Member
	cache    *cache.Cache
	recovery *recovery.Recovery
	ladder   metric.Ladder
	clk      clock.Clock
	opts     Options
	metrics  *metrics
	reported reported
	errors   *storage.ErrorLog
	progress progress
	packer   *packer
}

// NewRunner returns a runner over a store, for one member of the workers that share it.
func NewRunner(p Parts, opts Options) *Runner {
	opts.ensureDefaults()
	settings := p.Store.Settings()
	return &Runner{
		store: p.Store, member: p.Member, cache: p.Cache, recovery: p.Recovery, ladder: settings.Ladder,
		clk: p.Clock, opts: opts, metrics: newMetrics(opts.Metrics, settings.Ladder),
		errors:   storage.NewErrorLog(p.Store, "aggregator", p.Member.ID()),
		progress: newProgress(settings.IndexPartitions), packer: newPacker(p.Clock, opts.PackRate),
	}
}

// RunDue runs every slice that is due, oldest first, including those that earlier runs or an outage
// left open, and returns how many it completed. It stops at the first run that is aborted: what is
// left stays outstanding.
//
// A slice does not stop the pass if it waits for other workers, or if its state or a part of its
// index is damaged or away. RunDue sets such a slice aside, together with the slices around it, runs
// later slices, and returns why. The next pass looks at it again: the worker that ends a slice last
// completes it.
func (r *Runner) RunDue(ctx context.Context) (int, error) {
	var aside []storage.SliceKey
	var why []error
	for n := 0; ; {
		k, due, err := r.recovery.NextDue(ctx, aside)
		if unread := storage.UnreadError(nil); err != nil && !errors.As(err, &unread) {
			return n, errors.Join(append(why, err)...)
		}
		if !due {
			r.progress.keep(aside)
			return n, errors.Join(append(why, err)...)
		}
		switch _, err := r.Run(ctx, k); {
		case err == nil:
			n++
		case !errors.Is(err, shards.ErrUnfit) && (errors.Is(err, ErrShared) || errors.Is(err, storage.ErrCorrupt) || errors.Is(err, errLeft)):
			aside, why = append(aside, k), append(why, err)
		default:
			return n, errors.Join(append(why, err)...)
		}
	}
}

func (r *Runner) slice(k storage.SliceKey) metric.Slice { return r.ladder.SliceAt(k.Bucket, k.StartMs) }

// report logs an error and stores it among the last errors that the status shows.
func (r *Runner) report(ctx context.Context, k storage.SliceKey, start metric.ScheduleID, err error) {
	r.opts.Logger.Warn("aggregation error", "bucket", r.ladder.Name(k.Bucket), "slice", r.slice(k), "block", start, "err", err)
	if rerr := r.errors.Record(ctx, storage.ComponentError{
		TimeMs: clock.NowMs(r.clk), SliceKey: k, Start: start, Message: err.Error(),
	}); rerr != nil {
		r.opts.Logger.Warn("cannot record an error", "err", rerr)
	}
}
