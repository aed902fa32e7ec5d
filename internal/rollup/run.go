// Package rollup grinds: it turns the samples of a slice into one roll-up row per
// schedule (Grinder, a pure function), and runs that over the blocks of a slice.
//
// A run keeps these invariants, numbered as in docs/architecture.md:
//
//  3. No lost mark: a block's marks are deleted last, after its rows are stored and
//     passed on to the next bucket.
//  5. One winner: every write carries the fence of the shard's lease.
//  6. Cost: without late data a run reads each block once and each index partition once.
//  7. Bounded: a run holds the blocks that it is grinding, and no more of N.
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

// ErrShared says that this worker's part of a slice is ground, and another's is not yet.
var ErrShared = errors.New("other workers are not done with the slice")

// errLeft says that blocks of a slice could neither be ground nor put off: what they need of the store is out of reach, and
// other parts of it are not.
var errLeft = errors.New("is left for a later run")

// errGaveUp says that too many blocks of a shard are left.
var errGaveUp = errors.New("too many blocks in a row are left")

// mostLeft is how many blocks in a row are tried in a shard that come to that. The next run goes on after them. Where the whole
// store is away, the lease of the next shard cannot be had either.
const mostLeft = 8

// mostAway is how many blocks that are out of reach a run tries again, with pauses. Of the others it is believed at once, so
// that however many they are, those in reach do not wait for the pauses.
const mostAway = 8

// Options tune a run.
type Options struct {
	// Parallel is the number of blocks ground at once. The default is one for each processor.
	Parallel int
	// Samples is how many samples of a block are held at a time; a block with more is ground in parts, for each of which its
	// table is read again. The default is 4 million, which take some 200 MB, and fewer where more than 8 blocks are ground at
	// once: 32 million for all together.
	Samples int
	// Attempts is how often a block is tried within a run before it is put off. The default is 3.
	Attempts int
	// Backoff is the wait before the second attempt; it doubles. The default is 100ms.
	Backoff time.Duration
	// Logger takes what an operator should know. The default discards.
	Logger *slog.Logger
	// Metrics takes the runs' own metrics. The default is nobody.
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

// Runner runs slices. One Runner runs one slice at a time.
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

	// known is what was found out about slices that could not be completed, and mine are the shards that were this worker's.
	known map[storage.SliceKey]*known
	mine  []int
	// aside are the slices that are not looked at for now. moved: something has changed in this pass for those too.
	aside []aside
	moved bool
}

// known is what a worker knows of a slice that it could not complete.
type known struct {
	// ended are the shards in which no mark was left.
	ended []bool
	// left is, by shard, the first mark that the last look has found there, from which the next goes on: all before it are
	// gone, and the shard's worker has to be past it too before it is done.
	left []storage.MarkKey
	// cut is, by shard, the mark up to which the last run had come when it ended early. The next goes on after it, and does
	// what is before it last: so each is tried in its turn.
	cut []storage.MarkKey
	// waits is how often in a row it could not be completed.
	waits int
}

// aside is a slice that was set aside in a pass, and why.
type aside struct {
	storage.SliceKey

	err error
	// at is when it was looked at, by the clock's Elapsed.
	at time.Duration
}

// asideFor is for how long a slice is left aside at most.
const asideFor = 30 * time.Second

// NewRunner makes a runner over a store, for a member of those that share it.
func NewRunner(store storage.Store, m *shards.Member, c *cache.Cache, r *recovery.Recovery, clk clock.Clock, opts Options) *Runner {
	opts.ensureDefaults()
	return &Runner{
		store: store, member: m, cache: c, recovery: r, ladder: store.Settings().Ladder,
		clk: clk, opts: opts, metrics: newMetrics(opts.Metrics, store.Settings().Ladder),
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
// While some wait for others, passes follow each other closely. Each looks at the oldest of those that wait, and leaves the rest
// aside, unless something has changed: whoever ends a slice last completes it.
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
		if err != nil {
			return n, errors.Join(why(set), err)
		}
		if !due {
			set = r.leaveAside(set, began)
			return n, why(set)
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

// tally counts what a run does, and is what its blocks, which are ground side by
// side, have in common.
type tally struct {
	blocks, schedules          atomic.Int64
	blockQueries, indexQueries atomic.Int64
	late, rescheduled, dropped atomic.Int64
	// away are the blocks that were out of reach at each attempt.
	away  atomic.Int64
	began clock.Reading

	mu sync.Mutex
	// nextOpen is what cache.NextOpen said when the run had begun.
	begun, nextOpen bool
	// left is the first error of those because of which something was left.
	left error
}

// leave notes that something is left for a later run.
func (t *tally) leave(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.left == nil {
		t.left = err
	}
}

// Run runs one slice over the shards that are this worker's, and completes it when none is left to
// another; ErrShared when one is. The record says what was done, also when
// the run was aborted and the error is not nil.
func (r *Runner) Run(ctx context.Context, k storage.SliceKey) (storage.Run, error) {
	started := r.clk.Now()
	rec := storage.Run{SliceKey: k, Worker: r.member.ID(), StartedMs: started.UnixMilli()}
	t := tally{began: clock.Read(r.clk)}
	if err := r.due(ctx, k, &t); err != nil {
		return rec, fmt.Errorf("run of %s slice %s not begun: %w", r.ladder.Name(k.Bucket), r.slice(k), err)
	}
	err := r.shards(ctx, k, &t)
	r.waited(k, err)
	rec.Duration = r.clk.Now().Sub(started)
	rec.Blocks, rec.Schedules = int(t.blocks.Load()), int(t.schedules.Load())
	rec.BlockQueries, rec.IndexQueries = int(t.blockQueries.Load()), int(t.indexQueries.Load())
	rec.Late, rec.Rescheduled, rec.Dropped = int(t.late.Load()), int(t.rescheduled.Load()), int(t.dropped.Load())
	if err != nil {
		err = fmt.Errorf("run of %s slice %s: %w", r.ladder.Name(k.Bucket), r.slice(k), err)
		waits := errors.Is(err, ErrShared)
		if ctx.Err() != nil || waits && rec.Blocks+rec.Rescheduled+rec.Dropped == 0 {
			return rec, err // told to stop, or waiting: nothing went wrong, and the slice stays open
		}
		if !waits {
			rec.Err = err.Error()
			r.report(ctx, k, -1, err)
		}
	}
	r.metrics.run(r.ladder.Name(k.Bucket), r.slice(k), rec, err)
	if rerr := r.store.RecordRun(ctx, rec); rerr != nil && err == nil {
		// The slice is complete; that its record is missing is no reason to run it again.
		r.opts.Logger.Warn("run not recorded", "slice", r.slice(k), "err", rerr)
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

// mostWaits is how many looks in a row a worker relies on what it knows of a slice's shards: at one a second, for about as
// long as a lease lasts.
const mostWaits = 30

// waited has what is known of a slice's shards forgotten, unless it waits for other workers or for what is out of reach, and for
// long then. A closed slice gets no new marks, but there may be some in a shard that has ended all the same: written on time, by a
// clock that has gone back since, or so late that no delete under the shard's lease covered them, by a writer that
// died before it took them back. Two workers that each had such marks would wait for each other.
func (r *Runner) waited(k storage.SliceKey, err error) {
	about := r.known[k]
	if about != nil && (errors.Is(err, ErrShared) || errors.Is(err, errLeft)) && about.waits < mostWaits {
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

// shardsAtOnce are held at the same time, so that while one is taken or given back, or its last blocks are
// ground, there is work from the other.
const shardsAtOnce = 2

func (r *Runner) shards(ctx context.Context, k storage.SliceKey, t *tally) error {
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
				r.opts.Logger.Info("left to another worker", "bucket", r.ladder.Name(k.Bucket), "slice", r.slice(k), "err", err)
				return nil
			}
			if (errors.Is(err, errLeft) || errors.Is(err, storage.ErrCorrupt)) && held.Err() == nil {
				t.leave(err)
				return nil // the other shards are elsewhere
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
			return err
		}
	}
	// What comes for a slice that is complete is late, also for those whose clock says that it is not over.
	if err := r.due(ctx, k, t); err != nil {
		return err
	}
	return r.store.CompleteSlice(ctx, k)
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
		return fmt.Errorf("the clock was set by %s while the run went on: it begins again", step.Round(time.Second))
	}
	return nil
}

// hold grinds one index partition under the lease of its shard.
func (r *Runner) hold(ctx context.Context, p storage.IndexPartition, t *tally, free chan *grind, cut *storage.MarkKey) error {
	return r.member.Hold(ctx, p.Shard, func(ctx context.Context, l *shards.Lease) error {
		if done, err := r.begin(ctx, p.SliceKey, t); done || err != nil {
			return err
		}
		t.indexQueries.Add(1)
		return r.shard(ctx, p, l, free, cut)
	})
}

// begin looks, under a shard's lease, whether others have completed the slice since it was found to be due. If so, a
// mark that is in it came too late, and is about to be taken back by who wrote it. If not, no slice that it lies
// within has been run.
func (r *Runner) begin(ctx context.Context, k storage.SliceKey, t *tally) (done bool, err error) {
	if done, err = r.cache.Complete(ctx, k); done || err != nil {
		return done, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.begun {
		return false, nil
	}
	t.nextOpen, err = r.cache.NextOpen(ctx, k)
	t.begun = err == nil
	return false, err
}

// othersEnded looks for marks in the shards that this worker has not ground. A closed slice gets no new ones,
// so whoever of several workers ends last finds none. The error is ErrShared when there are, and errLeft when a shard is out of
// reach.
func (r *Runner) othersEnded(ctx context.Context, k storage.SliceKey, about *known, t *tally) error {
	for shard := range about.ended {
		if about.ended[shard] {
			continue
		}
		t.indexQueries.Add(1)
		first, left, err := r.store.FirstMark(ctx, storage.IndexPartition{SliceKey: k, Shard: shard}, about.left[shard])
		if err != nil {
			return r.orLeave(ctx, fmt.Errorf("look into the index of shard %d: %w", shard, err))
		}
		if left {
			about.left[shard] = first
			return fmt.Errorf("shard %d: %w", shard, ErrShared)
		}
		about.ended[shard] = true
	}
	return nil
}

// lost says whether err means that a shard is another worker's.
func lost(err error) bool {
	return errors.Is(err, storage.ErrFenced) || errors.Is(err, storage.ErrConflict)
}

// checkComplete asserts what the cascade relies on: a slice is completed only after
// all slices that lie within it (see cache.Pass).
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
	settled := func(err error) {
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
	from := *cut
	// read takes the work that is after from, or that which is not, and says whether there is other work.
	read := func(after bool) (others bool, _ error) {
		for w, err := range r.cache.Read(ctx, p) {
			if storage.IsAway(err) {
				return others, leftOver(err)
			}
			if err != nil {
				return others, err
			}
			if (last(w).Compare(from) > 0) != after {
				others = true
				continue
			}
			select {
			case g := <-free:
				if gaveUp() {
					free <- g
					return others, errGaveUp
				}
				*cut = last(w)
				wg.Go(func() {
					g.lease = l
					settled(r.settle(ctx, g, w))
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
		return left
	}
	return err
}

// last is the last mark of what is to be done.
func last(w *cache.Work) storage.MarkKey { return w.Marks[len(w.Marks)-1].Key() }

// leftOver makes of an error of the store's why something is left.
func leftOver(err error) error { return fmt.Errorf("%w: %w", errLeft, err) }

// settle brings one block to an end: ground, put off, or given up. An error means
// that the run cannot go on.
func (r *Runner) settle(ctx context.Context, g *grind, w *cache.Work) error {
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
		// What is dropped is gone, and by a clock that has gone wrong since the last heartbeat everything is to be dropped.
		if err := r.store.CheckFit(ctx); err != nil {
			return leftOver(fmt.Errorf("%d marks of slice %s are not dropped: %w", len(w.Marks), w.Slice, err))
		}
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
	// One block that always times out, or whose copies are gone, must not hold up all others. Where the mark cannot be
	// put off either, it stays where it is, and the slice open.
	if rerr := r.recovery.Reschedule(ctx, g.lease.Fence, w, err); rerr != nil {
		return r.orLeave(ctx, fmt.Errorf("%w, because of %w", rerr, err))
	}
	g.tally.rescheduled.Add(1)
	r.report(ctx, w.Partition.SliceKey, w.Block.Start, fmt.Errorf("block of slice %s put off: %w", w.Slice, err))
	return nil
}

// orLeave is err, as why a block is left if only what that needs of the store is out of reach.
func (r *Runner) orLeave(ctx context.Context, err error) error {
	if storage.IsAway(err) && !stops(ctx, err) {
		return leftOver(err)
	}
	return err
}

// stops says whether err ends the run at once: another attempt cannot help.
func stops(ctx context.Context, err error) bool {
	return ctx.Err() != nil || lost(err)
}

// report logs an error and keeps it among the last ones that the status shows.
func (r *Runner) report(ctx context.Context, k storage.SliceKey, start metric.ScheduleID, err error) {
	r.opts.Logger.Warn("aggregation", "bucket", r.ladder.Name(k.Bucket), "slice", r.slice(k), "block", start, "err", err)
	if rerr := r.store.RecordError(ctx, storage.ComponentError{
		Component: "aggregator", Worker: r.member.ID(), TimeMs: clock.NowMs(r.clk),
		SliceKey: k, Start: start, Message: err.Error(),
	}); rerr != nil {
		r.opts.Logger.Warn("error not recorded", "err", rerr)
	}
}
