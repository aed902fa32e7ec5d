// Package recovery decides what happens to work that did not go as planned: slices whose run was
// missed, blocks that failed, input that has expired.
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

// Options bound what Recovery looks for.
type Options struct {
	// AgeCap is the maximum age of a sample, so ingest opens no slice that ended longer ago. It
	// bounds how far back each look for open slices goes, not what is done about them. The default
	// is 24h.
	AgeCap time.Duration
}

// Recovery applies the rules for missed, failed and expired work.
type Recovery struct {
	store  storage.Store
	cache  *cache.Cache
	ladder metric.Ladder
	clk    clock.Clock
	opts   Options

	mu sync.Mutex
	// floor is, by bucket, the time before which no slice is or will be outstanding, as long as the
	// clock does not go back behind lookedMs, the start of the last look. lookBacks counts how
	// often the clock went back. Floors that a look found before that are dropped.
	floor     []int64
	lookedMs  int64
	lookBacks int

	// seen is what was outstanding at the last look.
	seen atomic.Pointer[[]storage.SliceKey]
}

// New makes a Recovery over a store.
func New(store storage.Store, c *cache.Cache, clk clock.Clock, opts Options) *Recovery {
	if opts.AgeCap == 0 {
		opts.AgeCap = 24 * time.Hour
	}
	r := &Recovery{store: store, cache: c, ladder: store.Settings().Ladder, clk: clk, opts: opts}
	r.floor = make([]int64, r.ladder.Top())
	r.lookBack()
	return r
}

// lookBack lowers the floors so that the next look covers all slices in the store. It finds what
// earlier processes left, however long ago, and what this process left while its clock was ahead.
// The store keeps the record of a slice for little longer than there is work to do for it.
func (r *Recovery) lookBack() {
	for _, b := range r.ladder.Ground() {
		r.floor[b] = math.MinInt64
	}
}

// Outstanding returns all slices that were opened and not completed, in the order in which they
// must be run: by end, and at the same end finest first. So every slice comes after all slices that
// lie within it; the cascade relies on this.
func (r *Recovery) Outstanding(ctx context.Context) ([]storage.SliceKey, error) {
	now, from, lookBacks := r.begin()
	var out []storage.SliceKey
	// Ingest opens no slice that closed long ago, even if the clock goes back between two looks. A
	// run opens slices only around the slice that it grinds. So the floor of a bucket follows from
	// what is outstanding in the buckets below it. A slice that is not due is still open, however
	// low the age cap.
	floor := now - max(r.opts.AgeCap, r.cache.Timing().Delay).Milliseconds()
	floors := make([]int64, len(from))
	for _, b := range r.ladder.Ground() {
		states, err := r.store.Slices(ctx, b, from[b], now+1)
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
		floors[b] = floor
	}
	r.raise(floors, lookBacks)
	slices.SortFunc(out, r.Order)
	seen := slices.Clone(out)
	r.seen.Store(&seen)
	return out, nil
}

// begin returns the time of a look, and the time from which the look searches, by bucket.
func (r *Recovery) begin() (nowMs int64, from []int64, lookBacks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	nowMs = clock.NowMs(r.clk)
	if nowMs < r.lookedMs {
		r.lookBack()
		r.lookBacks++
	}
	r.lookedMs = nowMs
	return nowMs, slices.Clone(r.floor), r.lookBacks
}

// raise takes over the floors that a look found. Concurrent looks may end in any order.
func (r *Recovery) raise(floors []int64, lookBacks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lookBacks != r.lookBacks {
		return
	}
	for b := range r.floor {
		r.floor[b] = max(r.floor[b], floors[b])
	}
}

// Order compares slices by when they must be run: by end, and at the same end finest first.
func (r *Recovery) Order(a, b storage.SliceKey) int {
	return cmp.Or(cmp.Compare(r.slice(a).EndMs, r.slice(b).EndMs), cmp.Compare(a.Bucket, b.Bucket))
}

// NextDue returns the first outstanding slice whose run may begin; ok is false if there is none. It
// skips the slices in aside. It also skips a slice while an outstanding slice within it is skipped.
func (r *Recovery) NextDue(ctx context.Context, aside []storage.SliceKey) (k storage.SliceKey, ok bool, err error) {
	out, err := r.Outstanding(ctx)
	if err != nil {
		return storage.SliceKey{}, false, err
	}
	now := clock.NowMs(r.clk)
	var over []storage.SliceKey
	for _, k := range out {
		waits := slices.Contains(aside, k) || slices.ContainsFunc(over, func(a storage.SliceKey) bool {
			return a.Bucket < k.Bucket && r.slice(k).Contains(a.StartMs)
		})
		if !waits {
			return k, r.cache.Timing().Due(r.slice(k), now), nil
		}
		over = append(over, k)
	}
	return storage.SliceKey{}, false, nil
}

// Seen says whether a slice was outstanding at the last look.
func (r *Recovery) Seen(k storage.SliceKey) bool {
	seen := r.seen.Load()
	return seen != nil && slices.Contains(*seen, k)
}

func (r *Recovery) slice(k storage.SliceKey) metric.Slice {
	return r.ladder.SliceAt(k.Bucket, k.StartMs)
}

// Verdict is the decision about work before it is begun.
type Verdict int

const (
	// Grind means that the work is to be done.
	Grind Verdict = iota
	// Expired means that part of the input may have outlived its retention. A roll-up is never
	// recomputed from part of its input.
	Expired
)

// String describes the verdict for errors and logs.
func (v Verdict) String() string {
	if v == Expired {
		return "its input has expired"
	}
	return "to be ground"
}

// Judge says whether work is still to be done. It is as long as its input is whole, however long
// the work has waited and however often it failed.
func (r *Recovery) Judge(w *cache.Work) Verdict { return r.JudgeAt(w, clock.NowMs(r.clk)) }

// JudgeAt is Judge at nowMs, for example for a future run.
func (r *Recovery) JudgeAt(w *cache.Work, nowMs int64) Verdict {
	if w.Slice.StartMs < r.store.WholeFrom(w.Bucket(), nowMs) {
		return Expired
	}
	return Grind
}

// Reschedule puts failed work off to the bucket's current slice. First it writes a mark with the
// original time, and a second one for what the work takes back. Then it deletes the marks that were
// read. The cache block stays.
func (r *Recovery) Reschedule(ctx context.Context, fence storage.Fence, w *cache.Work, cause error) error {
	m := storage.Mark{
		Start: w.Block.Start, TimeMs: w.Slice.StartMs,
		Kind: storage.MarkRetry, Schedules: w.Schedules(),
		DueMs: w.DueMs(), Attempt: w.Attempt() + 1, LastError: cause.Error(),
	}
	marks := []storage.Mark{m}
	if ids := w.TakesBack(); len(ids) > 0 {
		m.Kind, m.Schedules = storage.MarkTakeBack, ids
		marks = append(marks, m)
	}
	if err := r.cache.Put(ctx, fence, w.Bucket(), marks); err != nil {
		return fmt.Errorf("reschedule block %d: %w", w.Block.Start, err)
	}
	return r.cache.Unmark(ctx, fence, w)
}
