package recovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// search says where slices may be outstanding, by bucket. A look reads only these times: the store may keep years. It is not
// changed, but replaced.
type search struct {
	// times are sorted, and the last span has no end. At other times no slice is outstanding or will be, unless the clock goes back.
	times []spans
	// toMs is the time from which on no slice is outstanding until the clock gets there. After the first look it lies ahead of
	// the clock if an earlier process, whose clock was ahead, has opened slices there.
	toMs []int64
	// gaps are the parts of times that the last look could not read.
	gaps []storage.Gap
}

// everywhere is the search of the first look: it finds what earlier processes left open, however long ago, or while their
// clock was ahead. The store drops the record of a slice soon after its work has expired.
func everywhere(buckets metric.Bucket) search {
	return search{
		times: slices.Repeat([]spans{{{math.MinInt64, math.MaxInt64}}}, int(buckets)),
		toMs:  slices.Repeat([]int64{math.MaxInt64}, int(buckets)),
	}
}

const (
	// unreadFor is how long a part of the slices table that could not be read is not tried again.
	unreadFor = 5 * time.Second
	// surveyEvery is the time between looks everywhere. A write that failed may come to light days later, by a hint or a repair
	// of a cluster, and the slice that it opens then lies behind all other looks.
	surveyEvery = 24 * time.Hour
)

// look is one look at the slices of the store.
type look struct {
	nowMs int64
	search
	skips   bool // the gaps are not tried
	widened int  // Recovery.widened when the look began
}

// Outstanding returns all slices that were opened and not completed, also future ones, in the order in
// which they must be run: by end, and at the same end finest first. So every slice comes after all slices
// that lie within it; the cascade relies on this.
//
// If some slices cannot be read, Outstanding returns the others, and a *storage.GapsError.
func (r *Recovery) Outstanding(ctx context.Context) ([]storage.SliceKey, error) {
	l := r.begin()
	out, next := []storage.SliceKey(nil), search{times: r.openable(l.nowMs), toMs: make([]int64, len(l.toMs))}
	for _, b := range r.ladder.Ground() {
		if b > metric.Raw {
			// A run opens slices only around the slice that it grinds.
			next.times[b] = next.times[b].with(r.around(b, next.times[b-1])...)
		}
		var unread spans
		missing := func(gaps []storage.Gap) {
			for _, g := range gaps {
				if g.Bucket == b {
					next.gaps = append(next.gaps, g)
					unread = unread.with(span{g.FromMs, g.ToMs})
					next.toMs[b] = max(next.toMs[b], g.ToMs)
				}
			}
		}
		if l.skips {
			missing(l.gaps)
		}
		toMs := max(l.nowMs+r.cache.Timing().MostAhead().Milliseconds(), l.toMs[b]-1) + 1
		for _, p := range l.times[b].without(unread) {
			states, err := r.store.Slices(ctx, b, p.fromMs, min(p.toMs, toMs))
			var some *storage.GapsError
			if errors.As(err, &some) {
				missing(some.Gaps)
			} else if err != nil {
				return nil, fmt.Errorf("read the slices of %s: %w", r.ladder.Name(b), err)
			}
			for _, s := range states {
				if !s.Complete {
					out = append(out, s.SliceKey)
					next.times[b] = next.times[b].with(span{s.StartMs, p.toMs})
					next.toMs[b] = max(next.toMs[b], s.StartMs+1)
				}
			}
		}
		next.times[b] = next.times[b].with(unread...)
	}
	r.looked(l, next)
	slices.SortFunc(out, r.order)
	seen := slices.Clone(out)
	r.seen.Store(&seen)
	if len(next.gaps) > 0 {
		return out, &storage.GapsError{Gaps: next.gaps}
	}
	return out, nil
}

// begin begins a look. If the clock went back, slices may be opened at the earlier time from now on. A look may go by a clock
// that the store refuses, since reads do, so the step may be large.
func (r *Recovery) begin() *look {
	r.mu.Lock()
	defer r.mu.Unlock()
	nowMs, elapsed := clock.NowMs(r.clk), r.clk.Elapsed()
	if nowMs < r.lookedMs {
		r.widen(search{times: r.openable(nowMs), toMs: r.search.toMs})
	}
	r.lookedMs = nowMs
	l := &look{nowMs: nowMs, search: r.search, skips: elapsed < r.retryAt, widened: r.widened}
	if !l.skips && len(l.gaps) > 0 {
		r.retryAt = elapsed + unreadFor // others need not try while this look does
	}
	return l
}

// looked takes over what the next look has to search. Looks may overlap, and end in any order: all that is open by then was
// open when a look read it, or lies in openable or around such slices, or search was widened since.
func (r *Recovery) looked(l *look, next search) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !l.skips && len(next.gaps) > 0 || len(next.gaps) > len(l.gaps) {
		r.retryAt = r.clk.Elapsed() + unreadFor
	}
	before := r.search
	r.search = next
	if r.widened != l.widened {
		r.widen(before)
	}
}

// widen adds times to search.
func (r *Recovery) widen(more search) {
	wide := search{gaps: r.search.gaps}
	for b := range r.search.times {
		wide.times = append(wide.times, r.search.times[b].with(more.times[b]...))
		wide.toMs = append(wide.toMs, max(r.search.toMs[b], more.toMs[b]))
	}
	r.search = wide
	r.widened++
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
func (r *Recovery) around(b metric.Bucket, s spans) spans {
	out := slices.Clone(s)
	for i, p := range s {
		if p.fromMs != math.MinInt64 {
			out[i].fromMs = r.ladder.SliceAt(b, p.fromMs).StartMs
		}
		if p.toMs != math.MaxInt64 {
			out[i].toMs = r.ladder.SliceAt(b, p.toMs-1).EndMs
		}
	}
	return out
}

// NextDue returns the first outstanding slice whose run may begin; ok is false if there is none. It
// skips the slices in aside. It also skips a slice while an outstanding slice within it is skipped,
// or while something cannot be read that the run depends on. If ok is false and some
// slices cannot be read, the error is a *storage.GapsError.
func (r *Recovery) NextDue(ctx context.Context, aside []storage.SliceKey) (k storage.SliceKey, ok bool, err error) {
	r.mu.Lock()
	if elapsed := r.clk.Elapsed(); elapsed >= r.surveyAt {
		r.surveyAt = elapsed + surveyEvery
		r.widen(everywhere(r.ladder.Top()))
	}
	r.mu.Unlock()
	out, err := r.Outstanding(ctx)
	unread := &storage.GapsError{}
	if err != nil && !errors.As(err, &unread) {
		return storage.SliceKey{}, false, err
	}
	now := clock.NowMs(r.clk)
	var skipped []storage.SliceKey
	for _, k := range out {
		within := func(a storage.SliceKey) bool { return a.Bucket < k.Bucket && r.slice(k).Contains(a.StartMs) }
		waits := func(g storage.Gap) bool { return r.needs(k, g) }
		switch {
		case slices.Contains(aside, k) || slices.ContainsFunc(skipped, within) || slices.ContainsFunc(unread.Gaps, waits):
			skipped = append(skipped, k)
		case r.cache.Timing().Due(r.slice(k), now):
			return k, true, nil
		default:
			return storage.SliceKey{}, false, err
		}
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

// order compares slices by when they must be run: by end, and at the same end finest first.
func (r *Recovery) order(a, b storage.SliceKey) int {
	return cmp.Or(cmp.Compare(r.slice(a).EndMs, r.slice(b).EndMs), cmp.Compare(a.Bucket, b.Bucket))
}

// RunAtMs returns the time at which a slice is due, in Unix ms.
func (r *Recovery) RunAtMs(k storage.SliceKey) int64 { return r.cache.Timing().RunAtMs(r.slice(k)) }

func (r *Recovery) slice(k storage.SliceKey) metric.Slice {
	return r.ladder.SliceAt(k.Bucket, k.StartMs)
}

// span is the time [fromMs, toMs), which is not empty.
type span struct{ fromMs, toMs int64 }

// spans are sorted, and no two of them touch.
type spans []span

// with returns the union of s and others, which may be empty and in any order.
func (s spans) with(others ...span) spans {
	all := slices.Concat(s, others)
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.fromMs, b.fromMs) })
	var out spans
	for _, p := range all {
		switch n := len(out); {
		case p.fromMs >= p.toMs:
		case n > 0 && p.fromMs <= out[n-1].toMs:
			out[n-1].toMs = max(out[n-1].toMs, p.toMs)
		default:
			out = append(out, p)
		}
	}
	return out
}

// without returns what of s is not in o.
func (s spans) without(o spans) spans {
	var out spans
	for _, p := range s {
		for _, q := range o {
			if q.toMs <= p.fromMs || p.toMs <= q.fromMs {
				continue
			}
			if p.fromMs < q.fromMs {
				out = append(out, span{p.fromMs, q.fromMs})
			}
			p.fromMs = min(q.toMs, p.toMs)
		}
		if p.fromMs < p.toMs {
			out = append(out, p)
		}
	}
	return out
}
