// Package recovery decides what becomes of work that did not go as it should have:
// slices whose run was missed, blocks that failed, input that has expired.
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
	// AgeCap is how old a sample may be to be taken, so that ingest opens no slice that ended longer ago. It bounds how
	// far back each look for open slices goes, and not what is done about them. The default is 24h.
	AgeCap time.Duration
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
	// as long as the clock does not go back behind lookedMs, when a look last began. Floors that were
	// found before the clock went back, which lookBacks counts, are not taken.
	floor     []int64
	lookedMs  int64
	lookBacks int

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
	r.lookBack()
	return r
}

// lookBack lowers the floors so that the next look is at all slices that the store has: it finds what earlier
// processes left, however long ago, or this one under a clock that was ahead. The store keeps the
// record of a slice for little longer than there is work to do for it.
func (r *Recovery) lookBack() {
	for _, b := range r.ladder.Ground() {
		r.floor[b] = math.MinInt64
	}
}

// Outstanding are all slices that have been opened and not completed, in the order
// in which they must be run: by end, and at the same end finest first. So every slice comes
// after all slices that lie within it, which the cascade relies on.
func (r *Recovery) Outstanding(ctx context.Context) ([]storage.SliceKey, error) {
	now, from, lookBacks := r.begin()
	var out []storage.SliceKey
	// Ingest opens no slice that is long closed, also under a clock that goes back between two
	// looks; a run opens one only around the slice that it grinds. So the floor of
	// each bucket follows from what is outstanding below it. A slice that is not due is open yet,
	// however low the age cap.
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

// begin says what the time of a look is, and from when on it looks, by bucket.
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

// raise takes the floors that a look has found. Looks that go on at the same time may end in any order.
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

// NextDue is the first outstanding slice whose run may begin; ok is false when there
// is none. Slices that were set aside are passed over, and so are those that they lie within as long as they are outstanding.
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

// Verdict is what becomes of work before it is begun.
type Verdict int

const (
	// Grind it.
	Grind Verdict = iota
	// Expired: part of its input may have outlived its retention, and a roll-up is
	// never recomputed from part of its input.
	Expired
)

// String says the verdict in words, as errors and logs show it.
func (v Verdict) String() string {
	if v == Expired {
		return "its input has expired"
	}
	return "to be ground"
}

// Judge says whether work is still to be done: as long as its input is whole, however long it has waited or failed.
func (r *Recovery) Judge(w *cache.Work) Verdict { return r.JudgeAt(w, clock.NowMs(r.clk)) }

// JudgeAt is what Judge says at nowMs, of a run that is still to come for example.
func (r *Recovery) JudgeAt(w *cache.Work, nowMs int64) Verdict {
	if w.Slice.StartMs < r.store.WholeFrom(w.Bucket(), nowMs) {
		return Expired
	}
	return Grind
}

// Reschedule puts failed work off to the bucket's current slice: one mark with the
// original time, and one for what it takes back, are inserted first, the marks that were read are deleted after. The
// cache block stays.
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
