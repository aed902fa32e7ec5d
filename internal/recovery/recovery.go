// Package recovery decides what becomes of work that did not go as it should have:
// slices whose run was missed, blocks that failed, marks that are too old, input
// that has expired.
package recovery

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Options are the bounds of what is still dealt with.
type Options struct {
	// AgeCap is how long after it was first due work is still done, and how old a
	// sample may be to be taken. The default is 24h.
	AgeCap time.Duration
	// Retention is how long the input of each bucket rests.
	Retention storage.Retention
}

// Recovery applies the rules of missed, failed and outdated work.
type Recovery struct {
	store  storage.Store
	cache  *cache.Cache
	ladder metric.Ladder
	clk    clock.Clock
	opts   Options

	mu sync.Mutex
	// floor is, by bucket, the time before which no slice is outstanding nor will be,
	// as long as the clock does not go back behind lookedMs, when it was last raised.
	floor    []int64
	lookedMs int64

	// seen is what was outstanding at the last look.
	seen atomic.Pointer[[]storage.SliceKey]
}

// New makes the rules over a store.
func New(store storage.Store, c *cache.Cache, clk clock.Clock, opts Options) *Recovery {
	if opts.AgeCap == 0 {
		opts.AgeCap = 24 * time.Hour
	}
	r := &Recovery{store: store, cache: c, ladder: store.Settings().Ladder, clk: clk, opts: opts}
	r.floor = make([]int64, r.ladder.Top())
	r.lookBack(clock.NowMs(clk))
	return r
}

// maxOutage is how far back slices left open are looked for. What is older than
// the age cap is dropped when found; looking further back than this for nothing
// but dropping it is not worth the reads.
const maxOutage = 30 * 24 * time.Hour

// lookBack lowers the floors to where the first look begins: it finds what earlier
// processes left, or this one under a clock that was ahead.
func (r *Recovery) lookBack(nowMs int64) {
	for _, b := range r.ladder.Ground() {
		r.floor[b] = r.ladder.SliceAt(b, nowMs-maxOutage.Milliseconds()).StartMs
	}
}

// Outstanding are all slices that have been opened and not completed, in the order
// in which they must be run: by end, and at the same end finest first. So every slice comes
// after all slices that lie within it, which the cascade relies on.
func (r *Recovery) Outstanding(ctx context.Context) ([]storage.SliceKey, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []storage.SliceKey
	now := clock.NowMs(r.clk)
	if now < r.lookedMs {
		r.lookBack(now)
	}
	r.lookedMs = now
	// Ingest opens no slice that is long closed, also under a clock that goes back between two
	// looks; a run opens one only around the slice that it grinds. So the floor of
	// each bucket follows from what is outstanding below it. A slice that is not due is open yet,
	// however low the age cap.
	floor := now - max(r.opts.AgeCap, r.cache.Timing().Delay).Milliseconds()
	for _, b := range r.ladder.Ground() {
		states, err := r.store.Slices(ctx, b, r.floor[b], now+1)
		if err != nil {
			return nil, fmt.Errorf("read the slices of %s: %w", r.ladder.Name(b), err)
		}
		for _, s := range states {
			if !s.Complete {
				out = append(out, s.SliceKey)
				floor = min(floor, s.StartMs)
			}
		}
		floor = r.ladder.SliceAt(b, floor).StartMs
		r.floor[b] = max(r.floor[b], floor)
	}
	slices.SortFunc(out, func(a, b storage.SliceKey) int {
		return cmp.Or(cmp.Compare(r.slice(a).EndMs, r.slice(b).EndMs), cmp.Compare(a.Bucket, b.Bucket))
	})
	seen := slices.Clone(out)
	r.seen.Store(&seen)
	return out, nil
}

// NextDue is the first outstanding slice whose run may begin; ok is false when there
// is none. Slices that were set aside are passed over, and so are those that they lie within.
func (r *Recovery) NextDue(ctx context.Context, aside []storage.SliceKey) (k storage.SliceKey, ok bool, err error) {
	out, err := r.Outstanding(ctx)
	if err != nil {
		return storage.SliceKey{}, false, err
	}
	now := clock.NowMs(r.clk)
	for _, k := range out {
		waits := slices.ContainsFunc(aside, func(a storage.SliceKey) bool {
			return a.Bucket <= k.Bucket && r.slice(k).Contains(a.StartMs)
		})
		if !waits {
			return k, r.cache.Timing().Due(r.slice(k), now), nil
		}
	}
	return storage.SliceKey{}, false, nil
}

func (r *Recovery) slice(k storage.SliceKey) metric.Slice {
	return r.ladder.SliceAt(k.Bucket, k.StartMs)
}

// Verdict is what becomes of work before it is begun.
type Verdict int

const (
	// Grind it.
	Grind Verdict = iota
	// TooOld: it has waited longer than the age cap since it was first due.
	TooOld
	// Expired: part of its input may have outlived its retention, and a roll-up is
	// never recomputed from part of its input.
	Expired
)

// String says the verdict in words, as errors and logs show it.
func (v Verdict) String() string {
	switch v {
	case TooOld:
		return "older than the age cap"
	case Expired:
		return "its input has expired"
	}
	return "to be ground"
}

// Judge says whether work is still to be done. The age counts from when the work
// was first due, not from the time of its data: a sample taken at exactly the age
// cap has still to travel up the whole ladder. A slice's width comes on top, since that long
// work that is put off waits for its next attempt, and at the upper levels that alone
// is a day.
func (r *Recovery) Judge(w *cache.Work) Verdict { return r.JudgeAt(w, clock.NowMs(r.clk)) }

// JudgeAt is what Judge says at nowMs, of a run that is still to come for example.
func (r *Recovery) JudgeAt(w *cache.Work, nowMs int64) Verdict {
	switch {
	case nowMs-w.DueMs() > r.opts.AgeCap.Milliseconds()+w.Slice.EndMs-w.Slice.StartMs:
		return TooOld
	case w.Slice.StartMs < r.KeptFrom(w.Bucket(), nowMs):
		return Expired
	}
	return Grind
}

// KeptFrom is the time from which on a bucket is whole at nowMs: the input of slices that begin before may have
// expired in part.
func (r *Recovery) KeptFrom(b metric.Bucket, nowMs int64) int64 {
	keep := r.opts.Retention.Of(b)
	if keep == 0 {
		return math.MinInt64
	}
	return nowMs - keep.Milliseconds()
}

// Drop gives work up: its cache block and the marks that were read are deleted.
func (r *Recovery) Drop(ctx context.Context, fence storage.Fence, w *cache.Work) error {
	return r.cache.Done(ctx, fence, w)
}

// Reschedule puts failed work off to the bucket's current slice: one mark with the
// original time is inserted first, the marks that were read are deleted after. The
// cache block stays.
func (r *Recovery) Reschedule(ctx context.Context, fence storage.Fence, w *cache.Work, cause error) error {
	m := storage.Mark{
		Start: w.Block.Start, TimeMs: w.Slice.StartMs,
		Kind: storage.MarkRetry, Schedules: w.Schedules(),
		DueMs: w.DueMs(), Attempt: w.Attempt() + 1, LastError: cause.Error(),
	}
	if err := r.cache.Put(ctx, fence, w.Bucket(), []storage.Mark{m}); err != nil {
		return fmt.Errorf("reschedule block %d: %w", w.Block.Start, err)
	}
	return r.cache.Unmark(ctx, fence, w)
}
