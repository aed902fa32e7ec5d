// Package recovery decides what happens to work that did not go as planned: slices whose run was
// missed, blocks that failed, input that has expired.
package recovery

import (
	"cmp"
	"context"
	"errors"
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
	// search are, by bucket, the times in which slices may be outstanding. At other times none is or
	// will be, unless a clock goes back before lookedMs, the start of the last look. The last span has
	// no end.
	search   []spans
	lookedMs int64
	// searchToMs is, by bucket, the time from which on no slice is outstanding until the clock gets
	// there. After the first look it lies ahead of the clock if an earlier process, whose clock was ahead, has opened slices there.
	searchToMs []int64
	// looks are the looks under way. Each notes what is added to search meanwhile.
	looks map[*look]struct{}
	// unread are the gaps of the last look. Until retryAt, by the clock's Elapsed, looks do not try
	// to read them.
	unread  []storage.Gap
	retryAt time.Duration
	// surveyAt is when the next survey is due, by the clock's Elapsed.
	surveyAt time.Duration

	// seen is what was outstanding at the last look.
	seen atomic.Pointer[[]storage.SliceKey]
}

// New makes a Recovery over a store.
func New(store storage.Store, c *cache.Cache, clk clock.Clock, opts Options) *Recovery {
	if opts.AgeCap == 0 {
		opts.AgeCap = 24 * time.Hour
	}
	r := &Recovery{store: store, cache: c, ladder: store.Settings().Ladder, clk: clk, opts: opts, surveyAt: clk.Elapsed() + surveyEvery, looks: make(map[*look]struct{})}
	for range r.ladder.Ground() {
		// The first look covers all slices in the store: those that earlier processes left, however
		// long ago, or while their clock was ahead. The store drops the record of a slice soon
		// after its work has expired.
		r.search = append(r.search, spans{{math.MinInt64, math.MaxInt64}})
		r.searchToMs = append(r.searchToMs, math.MaxInt64)
	}
	return r
}

// unreadFor is how long a part of the slices table that could not be read is not tried again.
const unreadFor = 5 * time.Second

// look is one look at the slices of the store.
type look struct {
	nowMs int64
	// search is what is searched, by bucket, up to the present, or to searchToMs if that lies ahead.
	// skipped are the gaps in it that are not tried.
	search     []spans
	searchToMs []int64
	skipped    []storage.Gap
	// added is what was added since the look began, by bucket: it may have read these times before.
	added []spans
}

// Outstanding returns all slices that were opened and not completed, also future ones, in the order in
// which they must be run: by end, and at the same end finest first. So every slice comes after all slices
// that lie within it; the cascade relies on this.
//
// If some slices cannot be read, Outstanding returns the others, and a *storage.GapsError.
func (r *Recovery) Outstanding(ctx context.Context) ([]storage.SliceKey, error) {
	l := r.begin()
	defer r.end(l)
	var out []storage.SliceKey
	var gaps []storage.Gap
	// next and nextToMs are what the next look has to search.
	next, nextToMs := r.openable(l.nowMs), make([]int64, len(l.searchToMs))
	for _, b := range r.ladder.Ground() {
		if b > metric.Raw {
			// A run opens slices only around the slice that it grinds.
			next[b] = next[b].with(r.around(b, next[b-1])...)
		}
		toMs := max(l.nowMs+r.cache.Timing().MostAhead().Milliseconds(), l.searchToMs[b]-1) + 1
		missing := spans{}
		for _, g := range l.skipped {
			if g.Bucket == b {
				gaps = append(gaps, g)
				missing = missing.with(span{g.FromMs, g.ToMs})
			}
		}
		for _, p := range l.search[b].without(missing) {
			states, err := r.store.Slices(ctx, b, p.fromMs, min(p.toMs, toMs))
			var some *storage.GapsError
			if err != nil && !errors.As(err, &some) {
				return nil, fmt.Errorf("read the slices of %s: %w", r.ladder.Name(b), err)
			}
			if some != nil {
				gaps = append(gaps, some.Gaps...)
				for _, g := range some.Gaps {
					missing = missing.with(span{g.FromMs, g.ToMs})
				}
			}
			for _, s := range states {
				if !s.Complete {
					out = append(out, s.SliceKey)
					next[b] = next[b].with(span{s.StartMs, p.toMs})
					nextToMs[b] = max(nextToMs[b], s.StartMs+1)
				}
			}
		}
		next[b] = next[b].with(missing...)
		if n := len(missing); n > 0 {
			nextToMs[b] = max(nextToMs[b], missing[n-1].toMs)
		}
	}
	r.looked(l, next, nextToMs, gaps)
	slices.SortFunc(out, r.Order)
	seen := slices.Clone(out)
	r.seen.Store(&seen)
	if len(gaps) > 0 {
		return out, &storage.GapsError{Gaps: gaps}
	}
	return out, nil
}

// openable returns, by bucket, the times in which slices may be opened from nowMs on. Ingest opens
// no slice that closed long ago, even if the clock goes back between two looks. A slice that is not
// due is still open, however low the age cap.
func (r *Recovery) openable(nowMs int64) []spans {
	out := make([]spans, r.ladder.Top())
	fromMs := nowMs - max(r.opts.AgeCap, r.cache.Timing().Delay).Milliseconds()
	for _, b := range r.ladder.Ground() {
		fromMs = r.ladder.SliceAt(b, fromMs).StartMs
		out[b] = spans{{fromMs, math.MaxInt64}}
	}
	return out
}

// around widens spans to whole slices of bucket b.
func (r *Recovery) around(b metric.Bucket, of spans) spans {
	out := slices.Clone(of)
	for i, p := range of {
		if p.fromMs != math.MinInt64 {
			out[i].fromMs = r.ladder.SliceAt(b, p.fromMs).StartMs
		}
		if p.toMs != math.MaxInt64 {
			out[i].toMs = r.ladder.SliceAt(b, p.toMs-1).EndMs
		}
	}
	return out
}

// add adds the time of a slice to search, with the slices around it, which its run opens.
func (r *Recovery) add(k storage.SliceKey) {
	at := spans{{k.StartMs, k.StartMs + 1}}
	for b := k.Bucket; b < r.ladder.Top(); b++ {
		if b > k.Bucket {
			at = r.around(b, at)
		}
		r.widen(b, at)
	}
}

// widen adds times to search.
func (r *Recovery) widen(b metric.Bucket, at spans) {
	r.search[b] = r.search[b].with(at...)
	for l := range r.looks {
		l.added[b] = l.added[b].with(at...)
	}
}

// begin begins a look. If the clock went back, slices may be opened at the earlier time from now on. A look may go by a clock
// that the store refuses, since reads do, so the step may be large.
func (r *Recovery) begin() *look {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &look{nowMs: clock.NowMs(r.clk), added: make([]spans, len(r.search))}
	if l.nowMs < r.lookedMs {
		for b, o := range r.openable(l.nowMs) {
			r.widen(metric.Bucket(b), o)
		}
	}
	r.lookedMs = l.nowMs
	r.looks[l] = struct{}{}
	l.search, l.searchToMs = slices.Clone(r.search), slices.Clone(r.searchToMs)
	if elapsed := r.clk.Elapsed(); elapsed < r.retryAt {
		for _, g := range r.unread {
			for _, p := range (spans{{g.FromMs, g.ToMs}}).in(l.search[g.Bucket]) {
				l.skipped = append(l.skipped, storage.Gap{Bucket: g.Bucket, FromMs: p.fromMs, ToMs: p.toMs, Err: g.Err})
			}
		}
	} else if len(r.unread) > 0 {
		r.retryAt = elapsed + unreadFor // others need not try while this look does
	}
	return l
}

// end ends a look, whether it could read what it wanted or not.
func (r *Recovery) end(l *look) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.looks, l)
}

// looked takes over what a look found. Concurrent looks may end in any order.
func (r *Recovery) looked(l *look, next []spans, nextToMs []int64, gaps []storage.Gap) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for b := range r.search {
		r.search[b] = r.search[b].in(next[b].with(l.added[b]...))
		r.searchToMs[b] = min(r.searchToMs[b], nextToMs[b])
	}
	if r.unread = gaps; len(gaps) > len(l.skipped) {
		r.retryAt = r.clk.Elapsed() + unreadFor
	}
}

const (
	// surveyEvery is the time between surveys, and surveyAgain after a survey that could not read
	// everything.
	surveyEvery = 24 * time.Hour
	surveyAgain = time.Hour
)

// survey looks for open slices at all times, once a day. A write that failed may come to light days later, by a hint or a
// repair of a cluster, and the slice that it opens then lies behind all looks. What the survey cannot read makes no gap:
// what was known of it before still holds.
func (r *Recovery) survey(ctx context.Context) {
	r.mu.Lock()
	due := r.clk.Elapsed() >= r.surveyAt
	if due {
		r.surveyAt = r.clk.Elapsed() + surveyEvery // others need not while this one does
	}
	r.mu.Unlock()
	if !due {
		return
	}
	for _, b := range r.ladder.Ground() {
		states, err := r.store.Slices(ctx, b, math.MinInt64, math.MaxInt64)
		r.mu.Lock()
		for _, s := range states {
			if s.Complete {
				continue
			}
			r.add(s.SliceKey)
		}
		if err != nil {
			r.surveyAt = r.clk.Elapsed() + surveyAgain
		}
		r.mu.Unlock()
	}
}

// Order compares slices by when they must be run: by end, and at the same end finest first.
func (r *Recovery) Order(a, b storage.SliceKey) int {
	return cmp.Or(cmp.Compare(r.slice(a).EndMs, r.slice(b).EndMs), cmp.Compare(a.Bucket, b.Bucket))
}

// NextDue returns the first outstanding slice whose run may begin; ok is false if there is none. It
// skips the slices in aside. It also skips a slice while an outstanding slice within it is skipped,
// or while something cannot be read that the run depends on. If ok is false and some
// slices cannot be read, the error is a *storage.GapsError.
func (r *Recovery) NextDue(ctx context.Context, aside []storage.SliceKey) (k storage.SliceKey, ok bool, err error) {
	r.survey(ctx)
	out, err := r.Outstanding(ctx)
	unread := &storage.GapsError{}
	if err != nil && !errors.As(err, &unread) {
		return storage.SliceKey{}, false, err
	}
	now := clock.NowMs(r.clk)
	var over []storage.SliceKey
	for _, k := range out {
		waits := slices.Contains(aside, k) || slices.ContainsFunc(over, func(a storage.SliceKey) bool {
			return a.Bucket < k.Bucket && r.slice(k).Contains(a.StartMs)
		}) || slices.ContainsFunc(unread.Gaps, func(g storage.Gap) bool { return r.needs(k, g) })
		if !waits {
			if !r.cache.Timing().Due(r.slice(k), now) {
				break
			}
			return k, true, nil
		}
		over = append(over, k)
	}
	return storage.SliceKey{}, false, err
}

// needs reports whether the run of slice k has to wait until a gap can be read. The gap may hold
// outstanding slices that lie within k. Or it holds the slice of the next bucket that k lies in,
// whose state decides where the rows of k go.
func (r *Recovery) needs(k storage.SliceKey, g storage.Gap) bool {
	s := r.slice(k)
	if g.Bucket == k.Bucket+1 {
		around := r.ladder.SliceAt(g.Bucket, s.StartMs)
		return g.FromMs <= around.StartMs && around.StartMs < g.ToMs
	}
	return g.Bucket < k.Bucket && g.FromMs < s.EndMs && s.StartMs < g.ToMs
}

// Seen says whether a slice was outstanding at the last look.
func (r *Recovery) Seen(k storage.SliceKey) bool {
	seen := r.seen.Load()
	return seen != nil && slices.Contains(*seen, k)
}

// RunAtMs returns the time at which a slice is due, in Unix ms.
func (r *Recovery) RunAtMs(k storage.SliceKey) int64 { return r.cache.Timing().RunAtMs(r.slice(k)) }

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

// Judge says whether work is still to be done: yes while its input is whole, however long the work
// has waited and however often it failed.
func (r *Recovery) Judge(w *cache.Work) Verdict { return r.JudgeAt(w, clock.NowMs(r.clk)) }

// JudgeAt is Judge at nowMs, for example for a future run.
func (r *Recovery) JudgeAt(w *cache.Work, nowMs int64) Verdict {
	if !storage.Whole(r.store, w.Bucket(), w.Slice, nowMs) {
		return Expired
	}
	return Grind
}

// Reschedule puts failed work off to the bucket's current slice. First it writes a mark with the
// original time, and a second one for the rows to take back. Then it deletes the marks that were
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
