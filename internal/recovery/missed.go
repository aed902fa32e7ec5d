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
	// fromMs is the time before which no slice is outstanding or will be, unless the clock goes back.
	fromMs []int64
	// toMs is the time from which on no slice is outstanding until the clock gets there. After the first look it lies ahead of
	// the clock if an earlier process, whose clock was ahead, has opened slices there.
	toMs []int64
	// unread is what the last look could not read.
	unread storage.UnreadError
}

// everywhere is the search of the first look: it finds what earlier processes left open, however long ago, or while their
// clock was ahead. The store drops the record of a slice soon after its work has expired.
func everywhere(buckets metric.Bucket) search {
	return search{
		fromMs: slices.Repeat([]int64{math.MinInt64}, int(buckets)),
		toMs:   slices.Repeat([]int64{math.MaxInt64}, int(buckets)),
	}
}

const (
	// unreadFor is how long a bucket whose slices could not be read is not tried again.
	unreadFor = 5 * time.Second
	// surveyEvery is the time between looks everywhere. A write that failed may come to light days later, by a hint or a repair
	// of a cluster, and the slice that it opens then lies behind all other looks.
	surveyEvery = 24 * time.Hour
)

// look is one look at the slices of the store.
type look struct {
	nowMs int64
	search
	skips   bool // what is unread is not tried
	widened int  // Recovery.widened when the look began
}

// Outstanding returns all slices that were opened and not completed, also future ones, in the order in
// which they must be run: by end, and at the same end finest first. So every slice comes after all slices
// that lie within it; the cascade relies on this.
//
// If the slices of some buckets are out of reach, Outstanding returns those of the others, and a storage.UnreadError.
func (r *Recovery) Outstanding(ctx context.Context) ([]storage.SliceKey, error) {
	l := r.begin()
	out, next := []storage.SliceKey(nil), search{fromMs: r.openable(l.nowMs), toMs: make([]int64, len(l.toMs))}
	for _, b := range r.ladder.Ground() {
		if b > metric.Raw {
			// A run opens slices only around the slice that it grinds.
			next.fromMs[b] = min(next.fromMs[b], r.startAround(b, next.fromMs[b-1]))
		}
		fromMs, toMs := l.fromMs[b], max(l.nowMs+r.cache.Timing().MostAhead().Milliseconds()+1, l.toMs[b])
		states, err := r.states(ctx, l, b, toMs)
		if storage.IsAway(err) && ctx.Err() == nil {
			next.unread = append(next.unread, storage.UnreadSlices{Bucket: b, FromMs: fromMs, Err: err})
			next.fromMs[b], next.toMs[b] = min(next.fromMs[b], fromMs), toMs
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, s := range states {
			if !s.Complete {
				out = append(out, s.SliceKey)
				next.fromMs[b] = min(next.fromMs[b], s.StartMs)
				next.toMs[b] = max(next.toMs[b], s.StartMs+1)
			}
		}
	}
	r.looked(l, next)
	slices.SortFunc(out, r.order)
	seen := slices.Clone(out)
	r.seen.Store(&seen)
	if len(next.unread) > 0 {
		return out, next.unread
	}
	return out, nil
}

// states returns the slices of a bucket from where the look searches until toMs. If the look skips the bucket, states returns
// the error of the last look.
func (r *Recovery) states(ctx context.Context, l *look, b metric.Bucket, toMs int64) ([]storage.SliceState, error) {
	i := slices.IndexFunc(l.unread, func(u storage.UnreadSlices) bool { return u.Bucket == b })
	if l.skips && i >= 0 {
		return nil, l.unread[i].Err
	}
	states, err := r.store.Slices(ctx, b, l.fromMs[b], toMs)
	if err != nil {
		err = fmt.Errorf("read the slices of %s: %w", r.ladder.Name(b), err)
	}
	return states, err
}

// begin begins a look. If the clock went back, slices may be opened at the earlier time from now on. A look may go by a clock
// that the store refuses, since reads do, so the step may be large.
func (r *Recovery) begin() *look {
	r.mu.Lock()
	defer r.mu.Unlock()
	nowMs, elapsed := clock.NowMs(r.clk), r.clk.Elapsed()
	if nowMs < r.lookedMs {
		r.widen(search{fromMs: r.openable(nowMs), toMs: r.search.toMs})
	}
	r.lookedMs = nowMs
	l := &look{nowMs: nowMs, search: r.search, skips: elapsed < r.retryAt, widened: r.widened}
	if !l.skips && len(l.unread) > 0 {
		r.retryAt = elapsed + unreadFor // others need not try while this look does
	}
	return l
}

// looked takes over what the next look has to search. Looks may overlap, and end in any order: all that is open by then was
// open when a look read it, or lies in openable or around such slices, or search was widened since.
func (r *Recovery) looked(l *look, next search) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !l.skips && len(next.unread) > 0 || len(next.unread) > len(l.unread) {
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
	wide := search{unread: r.search.unread}
	for b := range r.search.fromMs {
		wide.fromMs = append(wide.fromMs, min(r.search.fromMs[b], more.fromMs[b]))
		wide.toMs = append(wide.toMs, max(r.search.toMs[b], more.toMs[b]))
	}
	r.search = wide
	r.widened++
}

// openable returns, by bucket, the time from which on slices may be opened after nowMs. Ingest opens
// no slice that closed long ago, even if the clock goes back between two looks. A slice that is not
// due is still open, however low the age cap.
func (r *Recovery) openable(nowMs int64) []int64 {
	out := make([]int64, r.ladder.Top())
	fromMs := nowMs - max(r.opts.AgeCap, r.cache.Timing().Delay).Milliseconds()
	for _, b := range r.ladder.Ground() {
		fromMs = r.startAround(b, fromMs)
		out[b] = fromMs
	}
	return out
}

// startAround returns the start of the slice of bucket b at ms, which may be math.MinInt64.
func (r *Recovery) startAround(b metric.Bucket, ms int64) int64 {
	if ms == math.MinInt64 {
		return ms
	}
	return r.ladder.SliceAt(b, ms).StartMs
}

// NextDue returns the first outstanding slice whose run may begin; ok is false if there is none. It
// skips the slices in aside. It also skips a slice while an outstanding slice within it is skipped,
// or while something cannot be read that the run depends on: slices within it, or the slice of the next bucket around it,
// whose state decides where the rows go. If ok is false and some slices cannot be read, the error is a
// storage.UnreadError.
func (r *Recovery) NextDue(ctx context.Context, aside []storage.SliceKey) (k storage.SliceKey, ok bool, err error) {
	r.mu.Lock()
	if elapsed := r.clk.Elapsed(); elapsed >= r.surveyAt {
		r.surveyAt = elapsed + surveyEvery
		r.widen(everywhere(r.ladder.Top()))
	}
	r.mu.Unlock()
	out, err := r.Outstanding(ctx)
	var unread storage.UnreadError
	if err != nil && !errors.As(err, &unread) {
		return storage.SliceKey{}, false, err
	}
	now := clock.NowMs(r.clk)
	var skipped []storage.SliceKey
	for _, k := range out {
		within := func(a storage.SliceKey) bool { return a.Bucket < k.Bucket && r.slice(k).Contains(a.StartMs) }
		waits := func(u storage.UnreadSlices) bool { return u.Bucket <= k.Bucket+1 && u.FromMs < r.slice(k).EndMs }
		switch {
		case slices.Contains(aside, k) || slices.ContainsFunc(skipped, within) || slices.ContainsFunc(unread, waits):
			skipped = append(skipped, k)
		case r.cache.Timing().Due(r.slice(k), now):
			return k, true, nil
		default:
			return storage.SliceKey{}, false, err
		}
	}
	return storage.SliceKey{}, false, err
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
