package query

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/recovery/late"
	"github.com/quern/quern/internal/storage"
)

// part is a time range that one bucket answers. For raw it covers the samples with times in
// [fromMs, toMs), for a roll-up level the rows that start there.
type part struct {
	bucket metric.Bucket
	fromMs int64
	toMs   int64
}

// Plan says what to read for a range: rows as far as they have been ground, then finer rows, then samples. See Planner.
type Plan struct {
	ladder metric.Ladder
	parts  []part
}

// For returns the plan for a group. Late data can make the plans of two groups differ.
func (p *Planner) For(g Group) *Plan {
	parts := p.parts
	if late := p.forGroup(g); late != p {
		parts = late.plan()
	}
	return &Plan{ladder: p.ladder, parts: parts}
}

// Planner cuts a range into parts and chooses the best bucket for each.
//
//  1. Parts follow each other without overlap, and a row is used only if it lies entirely within a
//     part. So no sample counts twice, whatever the retention and however many buckets take part.
//  2. A row is used only if it has been ground, or if its slice had nothing to grind. For an open
//     slice, samples or finer rows are read instead. The same holds while late data waits to be
//     ground into the row, or into a row that it is made of. If nothing finer is left, the row is
//     used all the same, with a warning.
//  3. A bucket is read only for times that it still has. Its cut-off lies where a row of the next
//     bucket begins.
//
// If only rows too coarse for the range's ends are left, a row counts at the time at which it
// starts.
type Planner struct {
	ladder         metric.Ladder
	startMs, endMs int64
	// levels are those whose rows may be used, coarsest first. borders returns the next border after a time that no row may
	// straddle; nil means that only the range's ends are borders.
	levels  []metric.Bucket
	borders func(tMs int64) int64
	warn    *Warnings
	parts   []part // those of all groups without late data

	// keptMs is, for each bucket, the time from which its rows still exist.
	keptMs []int64
	// openMs is the time from which no row of a level has been ground. ungroundMs are the starts of
	// earlier rows that are outstanding, sorted. Both are indexed by bucket.
	openMs     []int64
	ungroundMs [][]int64
	// unreadMs is, by level, the time from which nobody knows what is ground: the slices are out of reach. Such rows count
	// as not ground, since the level below is right too.
	unreadMs map[metric.Bucket]int64
	// late holds the late data of [fromMs, toMs), which covers all rows of the range. It is nil if
	// no rows are read or no data is late.
	late         *late.View
	fromMs, toMs int64
	// wereOpen are slices that count as not complete; see late.View.Open.
	wereOpen []storage.SliceKey
}

// planner finds out what there is to read now in [startMs, endMs) at the given levels; see Planner. Warnings say what is
// missing, and when it may not know all late data.
func (q *Querier) planner(
	ctx context.Context, startMs, endMs int64, levels []metric.Bucket, borders func(tMs int64) int64, warn *Warnings,
) (*Planner, error) {
	endMs = q.untilMs(ctx, endMs)
	n := int(q.ladder.Top()) + 1
	p := &Planner{
		ladder: q.ladder, startMs: startMs, endMs: endMs, levels: levels, borders: borders, warn: warn,
		keptMs: q.keptMs(q.nowMs()), openMs: make([]int64, n), ungroundMs: make([][]int64, n),
	}
	if len(levels) > 0 || startMs < p.keptMs[metric.Raw] {
		if err := q.addLate(ctx, p); err != nil {
			return nil, err
		}
	}
	if len(levels) > 0 {
		if err := q.addOutstanding(ctx, p); err != nil {
			return nil, err
		}
	}
	p.parts = p.plan()
	return p, nil
}

// addOutstanding has the planner know which rows of its levels, and of finer ones, have not been ground.
func (q *Querier) addOutstanding(ctx context.Context, p *Planner) error {
	nowMs, startMs, endMs, levels := q.nowMs(), p.startMs, p.endMs, p.levels
	fromMs, coarsest := metric.AlignDown(startMs, q.ladder.WidthMs(q.ladder.Top())), slices.Max(levels)
	open, err := q.outstanding(ctx, coarsest, fromMs, min(endMs, nowMs))
	var unread storage.UnreadError
	if err != nil && !errors.As(err, &unread) {
		return err
	}
	p.unreadMs = make(map[metric.Bucket]int64)
	for level := metric.Bucket(1); level <= coarsest; level++ {
		width := q.ladder.WidthMs(level)
		p.openMs[level] = metric.AlignDown(nowMs, width)
		for _, u := range unread {
			if u.Bucket < level {
				p.openMs[level] = min(p.openMs[level], metric.AlignDown(max(u.FromMs, fromMs), width))
				p.unreadMs[level] = p.openMs[level]
			}
		}
		toMs := min(endMs, p.openMs[level])
		var unground []int64
		// A row is outstanding when a row that it is made of is outstanding.
		for _, t := range p.ungroundMs[level-1] {
			unground = append(unground, metric.AlignDown(t, width))
		}
		for _, k := range slices.Concat(open, p.wereOpen) {
			if k.Bucket == level-1 && fromMs <= k.StartMs && k.StartMs < toMs {
				unground = append(unground, k.StartMs)
			}
		}
		slices.Sort(unground)
		p.ungroundMs[level] = slices.Compact(unground)
	}
	return nil
}

// outstanding returns the open slices of the buckets below coarsest, at least those that start in
// [fromMs, toMs). The error may be a storage.UnreadError.
func (q *Querier) outstanding(ctx context.Context, coarsest metric.Bucket, fromMs, toMs int64) ([]storage.SliceKey, error) {
	if q.opts.Outstanding != nil {
		return q.opts.Outstanding(ctx)
	}
	var out []storage.SliceKey
	for b := metric.Raw; b < coarsest && fromMs < toMs; b++ {
		states, err := q.store.Slices(ctx, b, fromMs, toMs)
		if err != nil {
			return nil, fmt.Errorf("look for open slices of %s: %w", q.ladder.Name(b), err)
		}
		for _, s := range states {
			if !s.Complete {
				out = append(out, s.SliceKey)
			}
		}
	}
	return out, nil
}

// addLate loads the late data into the planner. It MUST run before slice states are read; see
// package late.
func (q *Querier) addLate(ctx context.Context, p *Planner) error {
	if q.opts.Late == nil {
		return nil
	}
	view, err := q.opts.Late.View(ctx)
	switch {
	case view == nil: // nobody waited for it
		return err
	case err != nil:
		p.warn.Add("incomplete: late samples may be missing from roll-up rows: %v", err)
		for _, b := range p.ladder.Levels() {
			p.warn.reads.late(b, p.startMs, p.endMs)
		}
	}
	p.wereOpen = view.Open()
	if !view.Empty() {
		width := p.ladder.WidthMs(p.ladder.Top())
		p.late, p.fromMs, p.toMs = view, metric.AlignDown(p.startMs, width), metric.AlignUp(p.endMs, width)
	}
	return nil
}

// forGroup returns the planner for the series of a group: late data differs by block.
func (p *Planner) forGroup(g Group) *Planner {
	if p.late == nil {
		return p
	}
	found := false
	out := *p
	out.ungroundMs = slices.Clone(p.ungroundMs)
	var lateMs []int64 // the late rows of a level
	for level := metric.Bucket(1); level <= p.ladder.Top(); level++ {
		width := p.ladder.WidthMs(level)
		for i, t := range lateMs {
			lateMs[i] = metric.AlignDown(t, width)
		}
		lateMs = append(lateMs, p.late.Slices(level-1, g.span(), p.fromMs, p.toMs)...)
		if len(lateMs) == 0 {
			continue
		}
		slices.Sort(lateMs)
		lateMs = slices.Compact(lateMs)
		found = true
		out.ungroundMs[level] = slices.Concat(p.ungroundMs[level], lateMs)
		slices.Sort(out.ungroundMs[level])
		out.ungroundMs[level] = slices.Compact(out.ungroundMs[level])
	}
	if !found {
		return p
	}
	return &out
}

// warnUnground names the rows that the parts read before they are ground, or may be, because nothing finer is left.
func (p *Planner) warnUnground(parts []part) {
	for _, part := range parts {
		warn := func(fromMs, toMs int64) {
			p.warn.Add("incomplete: samples from %s to %s are not yet ground into the %s rows",
				metric.Slice{StartMs: fromMs}, metric.Slice{StartMs: toMs}, p.ladder.Name(part.bucket))
			p.warn.reads.late(part.bucket, fromMs, toMs)
		}
		if part.bucket == metric.Raw {
			continue
		}
		all := p.ungroundMs[part.bucket]
		width := p.ladder.WidthMs(part.bucket)
		first, _ := slices.BinarySearch(all, metric.AlignDown(part.fromMs, width))
		all = all[first:]
		for len(all) > 0 && all[0] < part.toMs {
			n := 1
			for n < len(all) && all[n] < part.toMs && all[n] == all[n-1]+width {
				n++
			}
			warn(all[0], all[n-1]+width)
			all = all[n:]
		}
		if unreadMs, ok := p.unreadMs[part.bucket]; ok && unreadMs < part.toMs {
			warn(max(unreadMs, part.fromMs), part.toMs)
		}
	}
}

// lateRows returns a function that warns, for each group, of the rows of a level in [fromMs, toMs)
// that lack late data. It serves requests for exactly these rows.
func (q *Querier) lateRows(ctx context.Context, level metric.Bucket, fromMs, toMs int64, warn *Warnings) (func(g Group), error) {
	p := &Planner{ladder: q.ladder, startMs: fromMs, endMs: toMs, warn: warn, ungroundMs: make([][]int64, q.ladder.Top()+1)}
	if fromMs >= toMs {
		return func(Group) {}, nil
	}
	if err := q.addLate(ctx, p); err != nil {
		return nil, err
	}
	return func(g Group) { p.forGroup(g).warnUnground([]part{{bucket: level, fromMs: fromMs, toMs: toMs}}) }, nil
}

// keptMs returns the time from which each bucket is whole, rounded up to a row of the next bucket.
func (q *Querier) keptMs(nowMs int64) []int64 {
	top := q.ladder.Top()
	out := make([]int64, top+1)
	for b := metric.Raw; b <= top; b++ {
		if out[b] = q.wholeFrom(b, nowMs); out[b] != math.MinInt64 {
			out[b] = metric.AlignUp(out[b], q.ladder.WidthMs(min(b+1, top)))
		}
	}
	return out
}

// plan cuts the range, and warns of rows that are not ground. Where neither the levels nor raw still have data, plan uses
// the finest level that does.
func (p *Planner) plan() []part {
	var parts []part
	for t := p.startMs; t < p.endMs; {
		limit := p.endMs
		if p.borders != nil {
			limit = min(limit, p.borders(t))
		}
		next, ok := p.fromLevels(t, limit)
		if !ok {
			next, ok = p.fromRaw(t)
		}
		if !ok {
			next, ok = p.fromLeft(t)
		}
		t = next.toMs
		if !ok {
			continue
		}
		if n := len(parts); n > 0 && parts[n-1].bucket == next.bucket && parts[n-1].toMs == next.fromMs {
			parts[n-1].toMs = next.toMs
		} else {
			parts = append(parts, next)
		}
	}
	p.warnUnground(parts)
	return parts
}

// fromLevels returns the part starting at t that the coarsest possible level answers.
func (p *Planner) fromLevels(t, limit int64) (part, bool) {
	for i, b := range p.levels {
		width := p.ladder.WidthMs(b)
		if t < p.keptMs[b] || metric.AlignDown(t, width) != t {
			continue
		}
		to := min(metric.AlignDown(limit, width), p.groundUntil(b, t), p.nextChance(t, p.levels[:i]))
		if to > t {
			return part{bucket: b, fromMs: t, toMs: to}, true
		}
	}
	return part{}, false
}

// fromRaw returns the part starting at t that raw answers, up to where a level may answer again.
func (p *Planner) fromRaw(t int64) (part, bool) {
	if t < p.keptMs[metric.Raw] {
		return part{}, false
	}
	return part{bucket: metric.Raw, fromMs: t, toMs: min(p.endMs, p.nextChance(t, p.levels))}, true
}

// fromLeft returns the part starting at t, or after a gap, that any remaining level answers. If ok
// is false, there is a gap up to the part's end.
func (p *Planner) fromLeft(t int64) (part, bool) {
	// A bucket whose data begins later may be better than what is left here.
	until := p.endMs
	for _, kept := range p.keptMs {
		if kept > t {
			until = min(until, kept)
		}
	}
	for b := metric.Bucket(1); b <= p.ladder.Top(); b++ {
		if p.keptMs[b] > t {
			continue
		}
		width := p.ladder.WidthMs(b)
		from := metric.AlignUp(t, width)
		to := min(until, p.nextChance(from, p.levels))
		if from > t && to < until {
			return part{toMs: min(from, until)}, false
		}
		if to < p.endMs {
			to = metric.AlignDown(to, width)
		}
		if from >= to {
			return part{toMs: min(metric.AlignUp(from+1, width), until)}, false
		}
		return part{bucket: b, fromMs: from, toMs: to}, true
	}
	return part{toMs: until}, false
}

// groundUntil returns the end of the ground rows that start at t.
func (p *Planner) groundUntil(b metric.Bucket, t int64) int64 {
	i, _ := slices.BinarySearch(p.ungroundMs[b], t)
	if i < len(p.ungroundMs[b]) {
		return min(p.openMs[b], p.ungroundMs[b][i])
	}
	return p.openMs[b]
}

// nextChance returns the next time after t at which one of the levels may have a row.
func (p *Planner) nextChance(t int64, levels []metric.Bucket) int64 {
	next := int64(math.MaxInt64)
	for _, b := range levels {
		at := max(metric.AlignDown(t, p.ladder.WidthMs(b))+p.ladder.WidthMs(b), p.keptMs[b])
		if at < p.openMs[b] {
			next = min(next, at)
		}
	}
	return next
}
