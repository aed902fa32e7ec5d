package promquery

import (
	"context"
	"math"

	"github.com/prometheus/prometheus/model/value"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// reading is what a selector reads in place of raw samples: for each time of the grid, the value of
// function over the spans in the window. Without a function, an instant selector gets the average
// of the latest span in each window, and a range selector the average of every span.
//
//  1. A function's window is [t-range, t), as the slices of rows are, even where it holds samples.
//     So adjacent windows contain each sample once.
//  2. A window consists of whole spans. It ends with the last span that ends by t. It begins with
//     the span that contains the point one range before this end; see query.Plan.Floor. A window
//     whose ends lie on row borders contains exactly the samples between them.
//  3. If a window is thus longer than its range, its first row counts in proportion to the part of it
//     that lies within the range, in all values that grow with the length (sum, count, increase) and
//     those that are made of them. All other rows, and samples, count as they are. So a window that
//     begins among samples is exact.
//  4. The increase sums the steps to each sample in the window from the sample before it, unless
//     they are separated by a gap of more than a row's width. A step down counts as the value after
//     it. Nothing is extrapolated to the ends of the window.
//  5. The delta, which is read only for extended selectors, is the last value in the window less the
//     sample before the window, or less the first value if there is a gap as in 4.
//  6. Without a function, a span counts at its last millisecond, and is found in (t-range, t] as
//     samples are.
type reading struct {
	function string
	level    metric.Bucket
	grid     grid
	rangeMs  int64
	instant  bool
	extended bool    // the selector is anchored or smoothed: one sample is enough for an increase, of 0
	rank     float64 // argument of quantile_over_time
}

// averaged returns whether the reading has a point per span, rather than per time of the grid.
func (r *reading) averaged() bool { return r.function == "" && !r.instant }

// around is the number of rows before a window that may affect it. The window may begin inside one
// row and end inside another; the increase needs one row before it, across a gap of one row.
const around = 4

// fromMs returns the earliest time to read.
func (r *reading) fromMs(q *query.Querier) int64 {
	return r.grid.startMs - r.rangeMs - around*q.Ladder().WidthMs(r.level)
}

// newPlanner finds out what there is to read.
func (r *reading) newPlanner(ctx context.Context, q *query.Querier, warn *query.Warnings) (*query.Planner, error) {
	toMs := r.grid.last()
	if r.instant || r.averaged() {
		toMs++
	}
	return q.Planner(ctx, r.level, r.fromMs(q), toMs, warn)
}

// rowEstimate returns roughly how many rows a series may have.
func (r *reading) rowEstimate(q *query.Querier) int {
	return int(min((r.grid.last()-r.fromMs(q))/q.Ladder().WidthMs(r.level)+1, 1024))
}

// keep returns the part of a span that is held until the points of its group are made.
func (r *reading) keep(s *query.Span) query.Span {
	out := *s
	if r.function != "quantile_over_time" {
		out.Sketch = nil
	}
	return out
}

// collect returns the spans of a group that read visits, for each series, and how much of what is held is for it.
func (r *reading) collect(
	q *query.Querier, g query.Group, hold func(n int) error, read func(visit func(i int, s *query.Span) error) error,
) (spans [][]query.Span, held []int, err error) {
	spans, held = make([][]query.Span, len(g.IDs())), make([]int, len(g.IDs()))
	holdFor := func(i, n int) error {
		held[i] += n
		return hold(n)
	}
	return spans, held, read(func(i int, s *query.Span) error {
		if n := len(spans[i]); n == cap(spans[i]) {
			size := max(2*n, r.rowEstimate(q))
			if err := holdFor(i, samplesIn((size-n)*spanBytes)); err != nil {
				return err
			}
			spans[i] = append(make([]query.Span, 0, size), spans[i]...)
		}
		kept := r.keep(s)
		spans[i] = append(spans[i], kept)
		return holdFor(i, samplesIn(len(kept.Sketch)))
	})
}

// points are what spans, which are by time, come to. It calls hold for what it makes.
func (r *reading) points(
	ctx context.Context, p *query.Plan, widthMs int64, spans []query.Span, hold func(n int) error, warn func(format string, args ...any),
) (points, error) {
	if r.averaged() {
		return r.averages(spans, hold)
	}
	w := window{reading: r, widthMs: widthMs, all: spans, warn: warn}
	var out points
	shown := false
	for t, last := r.grid.startMs, r.grid.last(); t <= last; t += max(r.grid.stepMs, 1) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		beginMs, endMs := t+1-r.rangeMs, t+1
		if !r.instant {
			endMs = p.Floor(t)
			w.fromMs = endMs - r.rangeMs
			beginMs = p.Floor(w.fromMs)
		}
		for w.hi < len(spans) && spans[w.hi].EndMs <= endMs {
			w.hi++
		}
		for w.lo < w.hi && spans[w.lo].StartMs < beginMs && !(r.instant && spans[w.lo].EndMs > beginMs) {
			w.lo++
		}
		v, ok := 0.0, false
		if w.lo < w.hi {
			v, ok = w.value()
		}
		if !ok && !shown {
			continue
		}
		if !ok { // otherwise an instant selector would look back to the value before
			v = math.Float64frombits(value.StaleNaN)
		}
		shown = ok
		if err := hold(1); err != nil {
			return nil, err
		}
		out.add(t, v)
	}
	return out, nil
}

func (r *reading) averages(spans []query.Span, hold func(n int) error) (points, error) {
	var out points
	for i := range spans {
		if t := spans[i].AtMs(); t > r.grid.startMs-r.rangeMs && t <= r.grid.last() {
			if err := hold(1); err != nil {
				return nil, err
			}
			out.add(t, spans[i].Avg())
		}
	}
	return out, nil
}

// window is the spans all[lo:hi]. Its range begins at fromMs, which may lie within the first of them.
type window struct {
	*reading
	widthMs int64
	all     []query.Span
	lo, hi  int
	fromMs  int64
	sketch  sketch.Sketch
	warn    func(format string, args ...any)
}

// value returns the function's value; ok is false if there is none. The window must not be empty.
func (w *window) value() (v float64, ok bool) {
	in := w.all[w.lo:w.hi]
	first, last := &in[0], &in[len(in)-1]
	switch w.function {
	case "":
		return last.Avg(), true
	case "timestamp":
		return float64(last.AtMs()) / 1000, true
	case "first_over_time":
		return first.First, true
	case "last_over_time":
		return last.Last, true
	case "present_over_time", "absent_over_time":
		return 1, true
	case "rate", "increase":
		v, ok := w.increase()
		if w.function == "rate" {
			return v / (float64(w.rangeMs) / 1000), ok
		}
		return v, ok
	case "delta":
		return w.delta(), true
	case "quantile_over_time":
		return w.quantile(), true
	}
	least, most, sum, count := w.total()
	switch w.function {
	case "min_over_time":
		return least, true
	case "max_over_time":
		return most, true
	case "sum_over_time":
		return sum, true
	case "count_over_time":
		return count, true
	}
	if math.IsInf(sum, 0) { // the average may be finite all the same
		sum, count = w.average(count), 1
	}
	return min(max(sum/count, least), most), true // of equal values, exactly this value
}

// average returns the average of count samples, whose sum overflows.
func (w *window) average(count float64) (v float64) {
	for i := w.lo; i < w.hi; i++ {
		v += w.all[i].Sum / count * w.share(i)
	}
	return v
}

// total returns the least and the greatest value in the window, and the sum and number of its samples.
func (w *window) total() (least, most, sum, count float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for i := w.lo; i < w.hi; i++ {
		s, share := &w.all[i], w.share(i)
		least, most = min(least, s.Min), max(most, s.Max)
		sum += s.Sum * share
		count += float64(s.Count) * share
	}
	return least, most, sum, count
}

// share returns the part of the span all[i] that lies within the range.
func (w *window) share(i int) float64 {
	s := &w.all[i]
	if s.StartMs >= w.fromMs {
		return 1
	}
	return float64(s.EndMs-w.fromMs) / float64(s.EndMs-s.StartMs)
}

// before returns the span before all[i], nil if there is none or a gap of more than a row's width.
func (w *window) before(i int) *query.Span {
	if i == 0 || w.all[i].StartMs-w.all[i-1].EndMs > w.widthMs {
		return nil
	}
	return &w.all[i-1]
}

// delta returns the difference of the last value in the window to the value when its range begins.
func (w *window) delta() float64 {
	first := &w.all[w.lo]
	from := first.First
	if before := w.before(w.lo); before != nil {
		from = before.Last
	}
	if share := w.share(w.lo); share < 1 {
		from = first.Last - (first.Last-from)*share
	}
	return w.all[w.hi-1].Last - from
}

// increase returns the sum of the steps in the window; ok is false if there is none and one is needed.
func (w *window) increase() (sum float64, ok bool) {
	ok = w.extended
	for i := w.lo; i < w.hi; i++ {
		s, share := &w.all[i], w.share(i)
		sum += s.Increase * share
		ok = ok || s.Count > 1
		before := w.before(i)
		if before == nil {
			continue
		}
		sum += grown(before.Last, s.First) * share
		ok = true
	}
	return sum, ok
}

// grown returns the growth of a counter from one sample to the next. A step down is a reset.
func grown(from, to float64) float64 {
	if to < from {
		return to
	}
	return to - from
}

// quantile computes quantile_over_time. It warns where it may not be within the sketch's accuracy.
func (w *window) quantile() float64 {
	w.sketch.Reset()
	least, most := math.Inf(1), math.Inf(-1)
	for i := w.lo; i < w.hi; i++ {
		s := &w.all[i]
		least, most = min(least, s.Min), max(most, s.Max)
		if len(s.Sketch) == 0 {
			w.sketch.Add(s.Last) // the span is a single sample
		} else if err := w.sketch.Merge(s.Sketch); err != nil {
			w.warn("percentiles are missing: %v", err)
			return math.NaN()
		}
	}
	v, err := w.sketch.Quantile(w.rank, least, most)
	if err != nil {
		w.warn("quantile_over_time: %v", err)
	}
	return v
}
