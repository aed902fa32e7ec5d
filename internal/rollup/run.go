// Package rollup grinds: it computes one roll-up row per schedule from the samples of a slice
// (Grinder, a pure function), and does so for all blocks of a slice.
//
// A run keeps these invariants, numbered as in docs/architecture.md:
//
//  3. No lost mark: a block's marks are deleted last, after its rows are stored and handed on to
//     the next bucket.
//  5. One winner: every write carries the fence of the shard's lease.
//  6. Cost: without late data a run reads each block once and each index partition once.
//  7. Bounded: a run holds only the blocks that it is grinding, whatever N is.
package rollup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/invariants"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery"
	"github.com/quern/quern/internal/shards"
	"github.com/quern/quern/internal/storage"
)

// ErrShared says that this worker has ground its part of a slice, and another worker has not.
var ErrShared = errors.New("other workers are not done with the slice")

// errLeft says that blocks of a slice could be neither ground nor put off: the part of the store
// that they need is away, while other parts answer.
var errLeft = errors.New("left for a later run")

// errState says that a slice is left because states of slices are out of reach. Nothing of its
// progress is kept: the slice stays open, and a clock that goes back may have more marked in it.
var errState = fmt.Errorf("%w: states of slices are out of reach", errLeft)

// errGaveUp says that too many blocks of a shard are left.
var errGaveUp = errors.New("too many blocks in a row were left for a later run")

// mostLeft is how many blocks in a row are tried in a shard that come to that. The next run goes on after them. Where the whole
// store is away, the lease of the next shard cannot be had either.
const mostLeft = 8

// mostAway is how many unavailable blocks a run retries with pauses. After that it does not retry
// such blocks, so that blocks in reach do not wait for the pauses.
const mostAway = 8

// Options tunes a run.
type Options struct {
	// Parallel is the number of blocks ground at once. The default is one per processor.
	Parallel int
	// Samples is how many samples of a block are held at a time; a block with more is ground in parts, for each of which its
	// table is read again. The default is 4 million, which take some 200 MB, and fewer where more than 8 blocks are ground at
	// once: 32 million for all together.
	Samples int
	// Attempts is how often a block is tried within a run before it is put off. The default is 3.
	Attempts int
	// Backoff is the wait before the second attempt. It doubles with each attempt. The default is
	// 100ms.
	Backoff time.Duration
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
	told     told

	// known holds the progress of slices that could not be completed. mine are the shards of this
	// worker.
	known map[storage.SliceKey]*known
	mine  []int
	// aside are the slices that passes skip for now. moved says that something changed in this pass
	// that may concern them.
	aside []aside
	moved bool
}

// known is the progress of a slice that this worker could not complete.
type known struct {
	// ended says of each shard whether no mark was left in it.
	ended []bool
	// left is, by shard, the first mark that the last look found. The next look starts there: all
	// marks before it are gone, and the shard is not done before that mark is gone too.
	left []storage.MarkKey
	// cut is, by shard, the mark up to which a run had come when it gave up. The next goes on after it, and does
	// what is before it last: so each is tried in its turn.
	cut []storage.MarkKey
	// waits is how often in a row it could not be completed.
	waits int
}

// aside is a slice that a pass set aside, and the reason.
type aside struct {
	storage.SliceKey

	err error
	// at is the time of the look, by the clock's Elapsed.
	at time.Duration
}

// asideFor is the maximum time for which a slice is set aside.
const asideFor = 30 * time.Second

// Parts are what a Runner works with. All are required.
type Parts struct {
	Store    storage.Store
	Member   *shards.Member
	Cache    *cache.Cache
	Recovery *recovery.Recovery
	Clock    clock.Clock
}

// NewRunner returns a runner over a store, for one member of the workers that share it.
func NewRunner(p Parts, opts Options) *Runner {
	opts.ensureDefaults()
	ladder := p.Store.Settings().Ladder
	return &Runner{
		store: p.Store, member: p.Member, cache: p.Cache, recovery: p.Recovery, ladder: ladder,
		clk: p.Clock, opts: opts, metrics: newMetrics(opts.Metrics, ladder),
		known: make(map[storage.SliceKey]*known),
	}
}

// RunDue runs every slice that is due, oldest first, including those that earlier
// runs or an outage left open, and returns how many it completed. It stops at the
// first run that is aborted: what is left stays outstanding. A slice that waits for other workers, or whose index
// is damaged or in part out of reach, is set aside for half a minute, with those that it lies within, and later slices are run. The
// error says why. What has been set aside for longer is looked at again in turn with slices that this pass has not looked at yet:
// neither keeps the other waiting, and the pass ends when there are no more of the latter, however long a look takes.
//
// A slice does not stop the pass if it waits for other workers, or if its state or part of its index
// is damaged or away. RunDue sets such a slice aside for half a minute, together with the slices around it,
// and runs later slices. The error says why.
//
// While slices wait for other workers, passes follow each other closely. Each pass looks only at
// the oldest waiting slice, unless something has changed: the worker that ends a slice last
// completes it.
func (r *Runner) RunDue(ctx context.Context) (int, error) {
	began := r.clk.Elapsed()
	set := slices.DeleteFunc(r.aside, func(a aside) bool { return began-a.at >= asideFor })
	r.aside, r.moved = nil, false
	n := 0
	for again := false; ; {
		leave := set
		if again {
			leave = withoutOldest(set, r.clk.Elapsed()-asideFor)
		}
		k, due, err := r.recovery.NextDue(ctx, keys(leave))
		var unread *storage.GapsError
		if err != nil && !errors.As(err, &unread) {
			return n, errors.Join(why(set), err)
		}
		// The next pass tries again. If the clock is refused, heartbeats say so.
		if err := r.recovery.BringBack(ctx); err != nil && !errors.Is(err, storage.ErrSettings) {
			r.opts.Logger.Warn("aggregation", "err", err)
		}
		if !due {
			set = r.leaveAside(set, began)
			return n, errors.Join(why(set), err)
		}
		before := len(set)
		set = slices.DeleteFunc(set, func(a aside) bool { return a.SliceKey == k })
		again = len(set) == before
		switch _, err := r.Run(ctx, k); {
		case err == nil:
			n++
			r.moved = true
		case errors.Is(err, shards.ErrUnfit):
			return n, errors.Join(why(set), err)
		case errors.Is(err, ErrShared), errors.Is(err, storage.ErrCorrupt), errors.Is(err, errLeft):
			set = append(set, aside{k, err, r.clk.Elapsed()})
		default:
			return n, errors.Join(why(set), err)
		}
	}
}

// withoutOldest is a set without what has been in it for longest, if that was set aside by the time at.
func withoutOldest(set []aside, at time.Duration) []aside {
	if len(set) == 0 {
		return set
	}
	oldest := slices.MinFunc(set, func(a, b aside) int { return cmp.Compare(a.at, b.at) })
	return slices.DeleteFunc(slices.Clone(set), func(a aside) bool { return a.SliceKey == oldest.SliceKey && a.at <= at })
}

// leaveAside chooses what the next pass does not look at of what has been set aside. It returns of this what is still outstanding.
func (r *Runner) leaveAside(set []aside, began time.Duration) []aside {
	set = slices.DeleteFunc(set, func(a aside) bool { return !r.recovery.Seen(a.SliceKey) })
	maps.DeleteFunc(r.known, func(k storage.SliceKey, _ *known) bool { return !slices.Contains(keys(set), k) })
	slices.SortFunc(set, func(a, b aside) int { return r.recovery.Order(a.SliceKey, b.SliceKey) })
	oldest := slices.IndexFunc(set, func(a aside) bool { return errors.Is(a.err, ErrShared) })
	for i, a := range set {
		if oldest >= 0 && i != oldest && (a.at >= began || !r.moved) {
			r.aside = append(r.aside, a)
		}
	}
	return set
}

func keys(set []aside) []storage.SliceKey {
	out := make([]storage.SliceKey, len(set))
	for i, a := range set {
		out[i] = a.SliceKey
	}
	return out
}

func why(set []aside) error {
	errs := make([]error, len(set))
	for i, a := range set {
		errs[i] = a.err
	}
	return errors.Join(errs...)
}

// tally holds the counts of a run, and the state that its blocks share while they are ground side
// by side.
type tally struct {
	blocks, schedules          atomic.Int64
	blockQueries, indexQueries atomic.Int64
	late, rescheduled, dropped atomic.Int64
	// away counts the blocks that were unavailable at each attempt.
	away  atomic.Int64
	began clock.Reading

	mu sync.Mutex
	// begun says that the run has begun, and next is what cache.Next returned then.
	begun bool
	next  cache.Next
	// left is the first error that left something for a later run.
	left error
}

// leave records that something is left for a later run.
func (t *tally) leave(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == nil {
		t.left = err
	}
}

// Run runs one slice over this worker's shards. It completes the slice if no other worker has work
// left in it, and returns ErrShared otherwise. The record says what was done, also if the run was
// aborted and the error is not nil.
func (r *Runner) Run(ctx context.Context, k storage.SliceKey) (storage.Run, error) {
	started := r.clk.Elapsed()
	rec := storage.Run{SliceKey: k, Worker: r.member.ID(), StartedMs: clock.NowMs(r.clk)}
	t := tally{began: clock.Read(r.clk)}
	if err := r.due(ctx, k, &t); err != nil {
		return rec, fmt.Errorf("run of %s slice %s not started: %w", r.ladder.Name(k.Bucket), r.slice(k), err)
	}
	err := r.grindShards(ctx, k, &t)
	r.waited(k, err)
	rec.Duration = r.clk.Elapsed() - started
	rec.Blocks, rec.Schedules = int(t.blocks.Load()), int(t.schedules.Load())
	rec.BlockQueries, rec.IndexQueries = int(t.blockQueries.Load()), int(t.indexQueries.Load())
	rec.Late, rec.Rescheduled, rec.Dropped = int(t.late.Load()), int(t.rescheduled.Load()), int(t.dropped.Load())
	if err != nil {
		err = fmt.Errorf("run of %s slice %s: %w", r.ladder.Name(k.Bucket), r.slice(k), err)
		waits := errors.Is(err, ErrShared)
		if ctx.Err() != nil || waits && rec.Blocks+rec.Rescheduled+rec.Dropped == 0 {
			return rec, err // stopped or waiting: nothing went wrong, and the slice stays open
		}
		if !waits {
			rec.Err = err.Error()
			r.report(ctx, k, -1, err)
		}
	}
	r.metrics.run(r.ladder.Name(k.Bucket), r.slice(k), rec, err)
	if rerr := r.store.RecordRun(ctx, rec); rerr != nil && err == nil {
		// The slice is complete. A missing record is no reason to run it again.
		r.opts.Logger.Warn("cannot record the run", "slice", r.slice(k), "err", rerr)
	}
	level := slog.LevelInfo
	if rec.Err != "" {
		level = slog.LevelWarn
	}
	r.opts.Logger.Log(ctx, level, "run", "bucket", r.ladder.Name(k.Bucket), "slice", r.slice(k),
		"blocks", rec.Blocks, "schedules", rec.Schedules, "block_queries", rec.BlockQueries,
		"index_queries", rec.IndexQueries, "late", rec.Late, "rescheduled", rec.Rescheduled,
		"dropped", rec.Dropped, "seconds", rec.Duration.Seconds(), "err", err)
	return rec, err
}

func (r *Runner) slice(k storage.SliceKey) metric.Slice { return r.ladder.SliceAt(k.Bucket, k.StartMs) }

// mostWaits is how many looks in a row rely on the cached shard progress. At one look per second
// this is about as long as a lease lasts.
const mostWaits = 30

// waited drops the cached progress of a slice's shards, unless the run waits for other workers or
// for an unavailable part of the store, and has not waited for long. A closed slice gets no new
// marks, but a shard that has ended may still hold some:
//
//   - a mark that was written on time, by a clock that has gone back since;
//   - a mark so late that no delete under the shard's lease covered it, by a writer that died
//     before it deleted the mark.
//
// Two workers that each relied on such a shard would wait for each other.
func (r *Runner) waited(k storage.SliceKey, err error) {
	about := r.known[k]
	if about != nil && (errors.Is(err, ErrShared) || errors.Is(err, errLeft) && !errors.Is(err, errState)) && about.waits < mostWaits {
		about.waits++
		return
	}
	delete(r.known, k)
	if about != nil && errors.Is(err, errLeft) { // where a run goes on is no knowledge of what there is
		r.know(k).cut = about.cut
	}
}

// know is what is known of a slice.
func (r *Runner) know(k storage.SliceKey) *known {
	if r.known[k] == nil {
		n := r.store.Settings().IndexPartitions
		r.known[k] = &known{ended: make([]bool, n), left: make([]storage.MarkKey, n), cut: make([]storage.MarkKey, n)}
	}
	return r.known[k]
}

// shardsAtOnce is the number of shards held at the same time. While one shard is acquired or
// released, or its last blocks are ground, the other provides work.
const shardsAtOnce = 2

func (r *Runner) grindShards(ctx context.Context, k storage.SliceKey, t *tally) error {
	mine, err := r.member.Mine(ctx)
	if errors.Is(err, shards.ErrUnfit) {
		return fmt.Errorf("%w: %w", ErrShared, err)
	}
	if err != nil {
		return err
	}
	if !slices.Equal(mine, r.mine) {
		r.mine, r.moved = mine, true
	}
	about := r.know(k)
	free := make(chan *grind, r.opts.Parallel)
	for range cap(free) {
		free <- newGrind(r, t)
	}
	g, held := errgroup.WithContext(ctx)
	g.SetLimit(min(shardsAtOnce, r.opts.Parallel))
	ended := slices.Clone(about.ended)
	for _, shard := range mine {
		if about.ended[shard] {
			continue
		}
		g.Go(func() error {
			if held.Err() != nil {
				return context.Cause(held)
			}
			err := r.hold(held, storage.IndexPartition{SliceKey: k, Shard: shard}, t, free, &about.cut[shard])
			if lost(err) && held.Err() == nil {
				r.opts.Logger.Info("shard left to another worker", "bucket", r.ladder.Name(k.Bucket), "slice", r.slice(k), "err", err)
				return nil
			}
			if (errors.Is(err, errLeft) || errors.Is(err, storage.ErrCorrupt)) && held.Err() == nil {
				t.leave(err)
				return nil // the other shards lie in other partitions, which may be available
			}
			about.ended[shard] = err == nil
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	r.moved = r.moved || !slices.Equal(about.ended, ended)
	if t.left != nil {
		return t.left
	}
	if err := r.othersEnded(ctx, k, about, t); err != nil {
		return err
	}
	if invariants.Enabled {
		if err := r.checkComplete(ctx, k); err != nil {
			return r.orLeaveState(ctx, err)
		}
	}
	// What comes for a slice that is complete is late, also for those whose clock says that it is not over.
	if err := r.due(ctx, k, t); err != nil {
		return err
	}
	return r.orLeaveState(ctx, r.store.CompleteSlice(ctx, k))
}

// due is nil while the slice is to be run, by a clock that the store confirms. It may have been ahead when the slice was chosen.
func (r *Runner) due(ctx context.Context, k storage.SliceKey, t *tally) error {
	if err := r.store.CheckFit(ctx); err != nil {
		return fmt.Errorf("the clock is not confirmed: %w", err)
	}
	if err := r.steady(t); err != nil {
		return err
	}
	if now := r.clk.Now(); !r.cache.Timing().Due(r.slice(k), now.UnixMilli()) {
		return fmt.Errorf("the slice is not due at %s: the clock was set back", now.Format(time.RFC3339))
	}
	return nil
}

// steady is nil if the clock was not set since the run began.
func (r *Runner) steady(t *tally) error {
	if step := t.began.Step(r.clk); step.Abs() > r.cache.Timing().MostStep() {
		return fmt.Errorf("the clock was set by %s during the run: the run starts again", step.Round(time.Second))
	}
	return nil
}

// hold grinds one index partition under the lease of its shard.
func (r *Runner) hold(ctx context.Context, p storage.IndexPartition, t *tally, free chan *grind, cut *storage.MarkKey) error {
	return r.member.Hold(ctx, p.Shard, func(ctx context.Context, l *shards.Lease) error {
		if done, err := r.begin(ctx, p.SliceKey, t); done || err != nil {
			return r.orLeaveState(ctx, err)
		}
		t.indexQueries.Add(1)
		return r.shard(ctx, p, l, free, cut)
	})
}

// begin checks, under a shard's lease, whether others have completed the slice since it was found
// due. If so, a mark in it came too late, and its writer is about to delete it. If not, begin records
// that the run has begun, before the run reads any mark: from then on nobody relies on marks and cache
// of the slice (ADR 34).
func (r *Runner) begin(ctx context.Context, k storage.SliceKey, t *tally) (done bool, err error) {
	state, err := r.cache.State(ctx, k)
	if state.Complete || err != nil {
		return state.Complete, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun {
		return false, nil
	}
	if t.next, err = r.cache.Next(ctx, k); err != nil {
		return false, err
	}
	if !state.Begun {
		if err := r.store.BeginSlice(ctx, k); err != nil {
			return false, fmt.Errorf("record the beginning: %w", err)
		}
	}
	t.begun = true
	return false, nil
}

// othersEnded looks for marks in the shards that this worker has not ground. A closed slice gets no
// new marks, so the worker that ends last finds none. It returns ErrShared if there are marks, and
// errLeft if a shard is unavailable.
func (r *Runner) othersEnded(ctx context.Context, k storage.SliceKey, about *known, t *tally) error {
	for shard := range about.ended {
		if about.ended[shard] {
			continue
		}
		t.indexQueries.Add(1)
		first, left, err := r.store.FirstMark(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}, about.left[shard])
		if err != nil {
			return r.orLeave(ctx, fmt.Errorf("read the index of shard %d: %w", shard, err))
		}
		if left {
			about.left[shard] = first
			return fmt.Errorf("shard %d: %w", shard, ErrShared)
		}
		about.ended[shard] = true
	}
	return nil
}

// lost reports whether err means that another worker holds the shard.
func lost(err error) bool {
	return errors.Is(err, storage.ErrFenced) || errors.Is(err, storage.ErrConflict)
}

// checkComplete asserts what the cascade relies on: a slice is completed only after all slices
// within it (see cache.Pass).
func (r *Runner) checkComplete(ctx context.Context, k storage.SliceKey) error {
	s := r.slice(k)
	for b := metric.Raw; b < k.Bucket; b++ {
		parts, err := r.store.Slices(ctx, b, s.StartMs, s.EndMs)
		if err != nil {
			return err
		}
		for _, p := range parts {
			invariants.Check(p.Complete, "slice %s of %s is completed before its part %s of %s",
				s, r.ladder.Name(k.Bucket), r.slice(p.SliceKey), r.ladder.Name(b))
		}
	}
	return nil
}

// shard grinds the blocks marked in one index partition, as many side by side as workplaces are free. The
// first error that concerns more than one block ends it. Blocks that are out of reach are left, and it goes on with others;
// so it ends with errLeft. After too many in a row it gives up, and notes in cut where: it begins after what is noted there.
func (r *Runner) shard(ctx context.Context, p storage.IndexPartition, l *shards.Lease, free chan *grind, cut *storage.MarkKey) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		left  error
		inRow int
	)
	gaveUp := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return inRow >= mostLeft
	}
	finished := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case errors.Is(err, errLeft):
			if left == nil {
				left = err
			}
			inRow++
		case err != nil:
			cancel(err)
		default:
			inRow = 0
		}
	}
	from, last := *cut, *cut
	// read takes the work that is after from, or that which is not, and says whether there is other work.
	read := func(after bool) (others bool, _ error) {
		for w, err := range r.cache.Read(ctx, p) {
			if storage.IsAway(err) {
				return others, leftOver(err)
			}
			if err != nil {
				return others, err
			}
			at := w.Marks[len(w.Marks)-1].Key()
			if (at.Compare(from) > 0) != after {
				others = true
				continue
			}
			select {
			case g := <-free:
				if gaveUp() {
					free <- g
					return others, errGaveUp
				}
				last = at
				wg.Go(func() {
					g.lease = l
					finished(r.finishBlock(ctx, g, w))
					free <- g
				})
			case <-ctx.Done():
				return others, context.Cause(ctx)
			}
		}
		return others, nil
	}
	before, err := read(true)
	if before && err == nil {
		wg.Wait()
		_, err = read(false)
	}
	wg.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	switch {
	case err == nil: // all were tried
		*cut = storage.MarkKey{}
		return left
	case errors.Is(err, errGaveUp):
		*cut = last
		return left
	}
	return err
}

// leftOver makes of an error of the store's why something is left.
func leftOver(err error) error { return fmt.Errorf("%w: %w", errLeft, err) }

// finishBlock brings one block to an end: ground, put off, or given up. An error means that the run
// cannot go on.
func (r *Runner) finishBlock(ctx context.Context, g *grind, w *cache.Work) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	if err := g.lease.Check(); err != nil {
		return err
	}
	if err := r.steady(g.tally); err != nil {
		return err
	}
	v := r.recovery.Judge(w)
	if v == recovery.Expired {
		// A drop is final, and if the clock has gone wrong since the last heartbeat all work looks
		// expired. The clock may be right again by now, so the store's answer holds for a verdict
		// reached after it.
		if err := r.store.CheckFit(ctx); err != nil {
			return leftOver(fmt.Errorf("%d marks of slice %s are not dropped: %w", len(w.Marks), w.Slice, err))
		}
		v = r.recovery.Judge(w)
	}
	err := g.block(ctx, w, v)
	for attempt := 1; err != nil && attempt < r.opts.Attempts && !stops(ctx, err); attempt++ {
		if storage.IsAway(err) && g.tally.away.Load() >= mostAway {
			break
		}
		if serr := r.clk.Sleep(ctx, r.opts.Backoff<<(attempt-1)); serr != nil {
			return serr
		}
		err = g.block(ctx, w, v)
	}
	switch {
	case err == nil && v == recovery.Expired:
		r.report(ctx, w.Partition.SliceKey, w.Block.Start, fmt.Errorf("%d marks of slice %s dropped: %s", len(w.Marks), w.Slice, v))
		return nil
	case err == nil:
		return nil
	case stops(ctx, err):
		return err
	}
	if storage.IsAway(err) {
		g.tally.away.Add(1)
	}
	// A block that always times out, or whose copies are gone, must not hold up the others. If its
	// mark cannot be put off either, the mark stays where it is, and the slice stays open.
	if rerr := r.recovery.Reschedule(ctx, g.lease.Fence, w, err); rerr != nil {
		return r.orLeave(ctx, fmt.Errorf("%w, because of %w", rerr, err))
	}
	g.tally.rescheduled.Add(1)
	r.report(ctx, w.Partition.SliceKey, w.Block.Start, fmt.Errorf("block of slice %s put off: %w", w.Slice, err))
	return nil
}

// orLeave wraps err in errLeft if only the part of the store that a block needs is away.
func (r *Runner) orLeave(ctx context.Context, err error) error {
	if storage.IsAway(err) && !stops(ctx, err) {
		return leftOver(err)
	}
	return err
}

// orLeaveState wraps err in errState if only the part of the store that has a state is away.
func (r *Runner) orLeaveState(ctx context.Context, err error) error {
	if storage.IsAway(err) && !stops(ctx, err) {
		return fmt.Errorf("%w: %w", errState, err)
	}
	return err
}

// stops reports whether err ends the run at once: another attempt cannot help.
func stops(ctx context.Context, err error) bool {
	return ctx.Err() != nil || lost(err)
}

// report logs an error and stores it among the last errors that the status shows.
func (r *Runner) report(ctx context.Context, k storage.SliceKey, start metric.ScheduleID, err error) {
	r.opts.Logger.Warn("aggregation error", "bucket", r.ladder.Name(k.Bucket), "slice", r.slice(k), "block", start, "err", err)
	if rerr := r.store.RecordError(ctx, storage.ComponentError{
		Component: "aggregator", Worker: r.member.ID(), TimeMs: clock.NowMs(r.clk),
		SliceKey: k, Start: start, Message: err.Error(),
	}); rerr != nil {
		r.opts.Logger.Warn("cannot record an error", "err", rerr)
	}
}
