package promquery

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/query"
)

// exact reads the windows of a function of raw samples from rows, wherever these prove that they hold exactly a window's samples.
// The other windows are read from raw samples, and the engine's own function computes them; see windowed.
//
//  1. The ends of all windows are ends of rows. But a window is (t-range, t], and rows are [start, end): a sample exactly where
//     a window begins is taken out of the row that begins there, and one exactly at its end is the first of the next row.
//  2. A row proves nothing if it is partial or damaged, or if its slice has samples that are not finite. Where there is no row,
//     there are no samples, if the slice has been ground.
//  3. Where it has not been, single samples take the place of rows, as long as these are the most.
type exact struct {
	*reading
	raw *samples
	q   *query.Querier

	// held are the samples that spans count as. At most this many leave raw samples their room.
	most int64
	held atomic.Int64

	mu      sync.Mutex
	planned bool
	planner *query.Planner // nil if rows are not to be relied on
	doubts  query.Warnings
}

// planWithin bounds the wait for what is late: on a shared store, somebody has to read the index.
const planWithin = 2 * time.Second

// fromRows lists the functions that rows can prove.
var fromRows = []string{
	"avg_over_time", "sum_over_time", "count_over_time", "min_over_time", "max_over_time", "last_over_time", "present_over_time",
	"absent_over_time", "quantile_over_time", "rate", "increase",
}

// exact returns what windows of raw samples may be read from instead, nil if no rows fit into them.
func (r *rewriter) exact(e *parser.Call, w *windowed) *reading {
	if !slices.Contains(fromRows, w.function) || r.q.LevelFor(w.grid.startMs-w.rangeMs) != metric.Raw {
		return nil
	}
	reads := &reading{function: w.function, grid: w.grid, rangeMs: w.rangeMs}
	for _, level := range r.q.Ladder().Levels() {
		if width := r.q.Ladder().WidthMs(level); w.rangeMs%width == 0 && w.grid.startMs%width == 0 && w.grid.stepMs%width == 0 {
			reads.level = level
		}
	}
	if reads.level == metric.Raw {
		return nil
	}
	if w.function == "quantile_over_time" {
		rank, ok := constant(e.Args[0])
		if !ok || !(rank >= 0 && rank <= 1) {
			return nil
		}
		reads.rank = rank
	}
	return reads
}

// plan returns the plan for reading a group, nil if it is to be read from raw samples.
func (x *exact) plan(ctx context.Context, g query.Group) *query.Plan {
	x.mu.Lock()
	defer x.mu.Unlock()
	if fromMs := x.grid.startMs - x.rangeMs; !x.planned && x.q.LevelFor(fromMs) == metric.Raw {
		planning, cancel := context.WithTimeout(ctx, planWithin)
		defer cancel()
		// One row more, which may begin with the last sample. Without a plan, raw samples are as right.
		x.planner, _ = x.q.Planner(planning, x.level, fromMs, x.grid.last()+x.q.Ladder().WidthMs(1), &x.doubts)
	}
	x.planned = true
	if x.planner == nil {
		return nil
	}
	if plan := x.planner.For(g); plan.MostlyRows(x.grid.last()+1) && len(x.doubts.List()) == 0 {
		return plan
	}
	return nil
}

// read reads a group. A mark has the value of its window, or NaN if that is to be computed from the raw samples. Without marks,
// all are.
func (x *exact) read(ctx context.Context, g query.Group, hold func(n int) error) (raw, marks []points, err error) {
	plan := x.plan(ctx, g)
	if plan == nil {
		raw, err = x.raw.read(ctx, g, hold)
		return raw, nil, err
	}
	taken := 0
	defer func() { x.held.Add(int64(-taken)) }()
	take := func(n int) error {
		if x.held.Add(int64(n)) > x.most {
			x.held.Add(int64(-n))
			return promql.ErrTooManySamples("rows")
		}
		taken += n
		return hold(n)
	}
	spans, held, err := x.collect(x.q, g, take, func(visit func(i int, s *query.Span) error) error {
		return g.Evidence(ctx, plan, x.grid.last()+1, x.raw.warn, take, visit)
	})
	if err != nil && ctx.Err() == nil {
		// Rows that are out of reach, or too many: raw samples are as right, and may be fewer.
		_ = hold(-taken)
		x.mu.Lock()
		x.planner = nil
		x.mu.Unlock()
		raw, err = x.raw.read(ctx, g, hold)
		return raw, nil, err
	}
	if err != nil {
		return nil, nil, err
	}
	raw, marks = make([]points, len(spans)), make([]points, len(spans))
	var open []int // series with windows that are not proven
	fromMs, toMs := x.raw.maxt+1, x.raw.mint
	for i := range spans {
		if marks[i], err = x.marks(ctx, spans[i]); err != nil {
			return nil, nil, err
		}
		for _, m := range marks[i] {
			if !math.IsNaN(m.F) {
				continue
			}
			fromMs, toMs = min(fromMs, m.T-x.rangeMs+1), max(toMs, m.T+1)
			if n := len(open); n == 0 || open[n-1] != i {
				open = append(open, i)
			}
		}
		spans[i] = nil
		if err := hold(cap(marks[i]) - held[i]); err != nil {
			return nil, nil, err
		}
	}
	if len(open) == 0 {
		return raw, marks, nil
	}
	some, err := x.raw.readGroup(ctx, g.Only(open), fromMs, toMs, hold)
	for k, i := range open {
		raw[i] = some[k]
	}
	return raw, marks, err
}

// marks returns the marks of a series with these spans.
func (x *exact) marks(ctx context.Context, spans []query.Span) (points, error) {
	w := window{reading: x.reading, all: spans}
	out, doubt := points{}, false
	w.warn = func(string, ...any) { doubt = true }
	lo, hi := 0, 0
	for t, last := x.grid.startMs, x.grid.last(); t <= last; t += max(x.grid.stepMs, 1) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		w.fromMs = t - x.rangeMs
		for hi < len(spans) && spans[hi].StartMs < t {
			hi++
		}
		for lo < hi && spans[lo].StartMs < w.fromMs {
			lo++
		}
		w.lo, w.hi, doubt = lo, hi, false
		v, ok := w.proven(t)
		if !ok {
			continue
		}
		if doubt || math.IsInf(v, 0) {
			v = math.NaN()
		}
		out.add(t, v)
	}
	return out, nil
}

// proven returns the function's value for the window (fromMs, atMs], whose spans begin in [fromMs, atMs), as all[lo:hi] do, or at
// atMs. It is NaN if the spans do not prove it; ok is false if there is none.
func (w *window) proven(atMs int64) (v float64, ok bool) {
	if w.lo < w.hi && w.all[w.lo].StartMs == w.fromMs {
		first := &w.all[w.lo]
		switch {
		case first.IsSample():
			w.lo++
		case first.FirstMs != w.fromMs, first.Partial, first.NonFinite:
		case first.Count == 1:
			w.lo++
		case first.Count > 1:
			defer func(was query.Span) { *first = was }(*first)
			if !w.takeOut(first) {
				return math.NaN(), true
			}
		}
	}
	if w.hi < len(w.all) && w.all[w.hi].StartMs == atMs {
		next := &w.all[w.hi]
		switch {
		case next.IsSample():
			w.hi++
		case next.Partial, next.NonFinite:
			return math.NaN(), true
		case next.FirstMs == atMs && next.Count > 0:
			defer func(was query.Span) { *next = was }(*next)
			*next = query.SampleSpan(atMs, next.First)
			w.hi++
		}
	}
	in := w.all[w.lo:w.hi]
	if len(in) == 0 {
		return 0, false
	}
	if slices.ContainsFunc(in, func(s query.Span) bool { return s.Partial || s.NonFinite }) {
		return math.NaN(), true
	}
	switch w.function {
	case "rate", "increase":
		return w.extrapolated(atMs)
	case "quantile_over_time":
		if least, most, _, _ := w.total(); least < 0 && most > 0 { // between them, 1 % of either may be more than the quantile
			return math.NaN(), true
		}
	case "avg_over_time", "sum_over_time": // what cancels out leaves its rounding errors
		least, most, sum, count := w.total()
		if math.IsInf(sum, 0) || least < 0 && most > 0 && math.Abs(sum) < count*max(-least, most)/100 {
			return math.NaN(), true
		}
	}
	return w.value()
}

// takeOut takes its first sample out of a row of several; ok is false if the row does not say what the function then is.
func (w *window) takeOut(s *query.Span) (ok bool) {
	s.Count--
	s.Sum -= s.First
	switch w.function {
	case "avg_over_time", "sum_over_time": // the rounding error stays that of the whole
		return math.Abs(s.Sum) >= math.Abs(s.First)/100
	case "min_over_time":
		return s.First > s.Min || s.Min == s.Max
	case "max_over_time":
		return s.First < s.Max || s.Min == s.Max
	}
	return w.function != "rate" && w.function != "increase" && w.function != "quantile_over_time"
}

// extrapolated returns the rate or increase of a counter as the engine computes it from samples (promql.extrapolatedRate): to an
// end of the window that is about as far from the samples as these are from each other, or half of that far.
func (w *window) extrapolated(atMs int64) (v float64, ok bool) {
	in := w.all[w.lo:w.hi]
	first, last := &in[0], &in[len(in)-1]
	count, sum := uint64(0), 0.0
	for i := range in {
		if count += in[i].Count; i > 0 {
			sum += grown(in[i-1].Last, in[i].First)
		}
		sum += in[i].Increase
	}
	if count < 2 {
		return 0, false
	}
	seconds := func(ms int64) float64 { return float64(ms) / 1000 }
	sampled := seconds(last.LastMs - first.FirstMs)
	toStart, toEnd, average := seconds(first.FirstMs-w.fromMs), seconds(atMs-last.LastMs), sampled/float64(count-1)
	if toStart >= average*1.1 {
		toStart = average / 2
	}
	if sum > 0 && first.First >= 0 { // a counter was 0 at the earliest
		toStart = min(toStart, sampled*(first.First/sum))
	}
	if toEnd >= average*1.1 {
		toEnd = average / 2
	}
	v = sum * ((sampled + toStart + toEnd) / sampled)
	if w.function == "rate" {
		v /= seconds(w.rangeMs)
	}
	return v, true
}
