package query

import (
	"context"
	"math"

	"github.com/quern/quern/internal/metric"
)

// Point aggregates the finite samples of one interval of a range. Count 0 means a gap; the other
// fields then mean nothing.
type Point struct {
	Count uint64
	Sum   float64
	Min   float64
	Max   float64
}

// Avg returns the mean, NaN for a gap.
func (p *Point) Avg() float64 { return p.Sum / float64(p.Count) }

func (p *Point) add(v float64) {
	if p.Count == 0 {
		p.Min, p.Max = v, v
	}
	p.Count++
	p.Sum += v
	p.Min = min(p.Min, v)
	p.Max = max(p.Max, v)
}

func (p *Point) merge(r *metric.Rollup) {
	if p.Count == 0 {
		p.Min, p.Max = r.Min, r.Max
	}
	p.Count += r.Count
	p.Sum += r.Sum
	p.Min = min(p.Min, r.Min)
	p.Max = max(p.Max, r.Max)
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Range is [StartMs, EndMs) cut into N intervals of equal width, to within a millisecond.
type Range struct {
	StartMs int64
	EndMs   int64
	N       int
}

// IntervalMs returns the start of interval i.
func (r Range) IntervalMs(i int) int64 {
	// Rounding up ensures IntervalMs(interval(t)) <= t for every t.
	return r.StartMs + (int64(i)*(r.EndMs-r.StartMs)+int64(r.N)-1)/int64(r.N)
}

// interval returns the index of the interval that contains tMs.
func (r Range) interval(tMs int64) int {
	return int((tMs - r.StartMs) * int64(r.N) / (r.EndMs - r.StartMs))
}

// SeriesPoints are the points of one series, one for each interval of the range.
type SeriesPoints struct {
	ID     metric.ScheduleID
	Labels metric.Labels
	Points []Point
}

const (
	// MaxPoints bounds the intervals of a request: it is more than any screen shows.
	MaxPoints = 11_000
	// pointCells bounds the points held for one group at a time, to 16 MB.
	pointCells = 1 << 19
)

// unalignedRows is the minimum interval width, in rows of the finest level, for reading rows when
// intervals are not aligned to them. Raw samples are then read around each border that lies within a
// row. In narrower intervals, reading all samples is cheaper.
const unalignedRows = 8

// Points reads min, avg, max and count over the intervals of a range. It leaves out series without
// samples in the range. It reads the coarsest level whose rows fit into the intervals. It falls back
// to raw where no level fits or is ground yet, and to what is left where raw has expired. The
// returned error may be a *RequestError.
func (q *Querier) Points(ctx context.Context, sels []Selector, rng Range) (*Result[SeriesPoints], error) {
	if err := CheckRange(rng.StartMs, rng.EndMs); err != nil {
		return nil, err
	}
	if rng.N < 1 || rng.N > MaxPoints {
		return nil, badRequest("buckets must be between 1 and %d", MaxPoints)
	}
	r := new(Result[SeriesPoints])
	groups, err := q.groups(ctx, sels, pointCells/rng.N, &r.warnings)
	if err != nil {
		return nil, err
	}
	levels, borders := q.fitting(rng)
	p, err := q.planner(ctx, rng.StartMs, rng.EndMs, levels, borders, &r.warnings)
	if err != nil {
		return nil, err
	}
	r.all = inOrder(ctx, q, groups, func(ctx context.Context, g Group) ([]SeriesPoints, error) {
		return q.groupPoints(ctx, g, rng, p.For(g).parts, &r.warnings)
	})
	return r, nil
}

// fitting returns the levels whose rows may fill the intervals of a range, coarsest first, and a
// function that yields the borders that those rows might straddle.
func (q *Querier) fitting(rng Range) ([]metric.Bucket, func(tMs int64) int64) {
	var levels []metric.Bucket
	spanMs, n := rng.EndMs-rng.StartMs, int64(rng.N)
	for b := q.ladder.Top(); b >= 1; b-- {
		width := q.ladder.WidthMs(b)
		if spanMs%(n*width) == 0 && metric.AlignDown(rng.StartMs, width) == rng.StartMs {
			levels = append(levels, b)
		}
	}
	if len(levels) > 0 || spanMs < unalignedRows*n*q.ladder.WidthMs(1) {
		return levels, nil
	}
	return []metric.Bucket{1}, func(tMs int64) int64 {
		return rng.IntervalMs(rng.interval(tMs) + 1)
	}
}

func (q *Querier) groupPoints(ctx context.Context, g Group, rng Range, parts []part, warn *Warnings) ([]SeriesPoints, error) {
	cells := make([]Point, len(g.ids)*rng.N)
	some := make([]bool, len(g.ids))
	err := q.read(ctx, g, parts, warn, nil, q.rows, func(i int, samples []metric.Sample) error {
		some[i] = rng.addSamples(cells[i*rng.N:(i+1)*rng.N], samples) || some[i]
		return nil
	}, func(_ metric.Bucket, row groupRow) error {
		cells[row.i*rng.N+rng.interval(row.TimeMs)].merge(&row.Rollup)
		some[row.i] = true
		return nil
	})
	if err != nil {
		return nil, err
	}
	var out []SeriesPoints
	for i, id := range g.ids {
		if some[i] {
			out = append(out, SeriesPoints{ID: id, Labels: q.index.Labels(id), Points: cells[i*rng.N : (i+1)*rng.N]})
		}
	}
	return out, nil
}

// addSamples adds samples, sorted by time, to the points of their intervals. It returns whether any
// sample is finite.
func (r Range) addSamples(points []Point, samples []metric.Sample) (some bool) {
	at, untilMs := 0, int64(math.MinInt64)
	for i := range samples {
		s := &samples[i]
		if !finite(s.Value) {
			continue
		}
		if s.TimeMs >= untilMs {
			at = r.interval(s.TimeMs)
			untilMs = r.IntervalMs(at + 1)
		}
		points[at].add(s.Value)
		some = true
	}
	return some
}
