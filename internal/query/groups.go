package query

import (
	"cmp"
	"context"
	"math"
	"runtime"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// Group is a set of selected series that one read of the store serves.
type Group struct {
	group
	q *Querier
	// place is that among the groups of the selection.
	place int
}

// Groups finds the series that match any of the selectors. The error is a *RequestError or the
// cause of ctx's end.
func (q *Querier) Groups(ctx context.Context, sels ...Selector) ([]Group, error) {
	ids, err := q.selected(ctx, sels)
	if err != nil {
		return nil, err
	}
	return q.asGroups(ids), nil
}

func (q *Querier) asGroups(ids []metric.ScheduleID) []Group {
	groups := q.grouped(ids, math.MaxInt)
	out := make([]Group, len(groups))
	for i, g := range groups {
		out[i] = Group{group: g, q: q, place: i}
	}
	return out
}

// IDs returns the ids of the series, sorted. Callers MUST NOT change them.
func (g Group) IDs() []metric.ScheduleID { return g.ids }

// Labels returns the labels of the series at index i. Callers MUST NOT change them.
func (g Group) Labels(i int) metric.Labels { return g.q.index.Labels(g.ids[i]) }

// Index returns the label index.
func (q *Querier) Index() *Index { return q.index }

// Warnings collect what is missing from an answer. The zero value is empty.
type Warnings struct{ warnings }

// Add adds a warning.
func (w *Warnings) Add(format string, args ...any) { w.add(format, args...) }

// List returns the warnings: the first maxWarnings in full, then the number of the others.
func (w *Warnings) List() []string { return w.list() }

// A stretch of a range has at least stretchSlices raw slices. A range has at most maxStretches.
const (
	stretchSlices = 24
	maxStretches  = 4
)

// Borders returns those of stretches of [fromMs, toMs) that Samples may read at the same time: of one, if more would not pay.
func (g Group) Borders(fromMs, toMs int64) []int64 {
	firstMs, lastMs := g.q.sinceMs(metric.Raw, max(fromMs, minTimeMs)), min(toMs, g.q.nowMs())
	slice := g.q.ladder.SliceAt(metric.Raw, firstMs)
	n := min(maxStretches, (lastMs-slice.StartMs)/(stretchSlices*(slice.EndMs-slice.StartMs)))
	borders := []int64{fromMs}
	for i := int64(1); i < n && runtime.GOMAXPROCS(0) > 1; i++ {
		borders = append(borders, g.q.ladder.SliceAt(metric.Raw, firstMs+(lastMs-firstMs)/n*i).StartMs)
	}
	return append(borders, toMs)
}

// Samples reads the raw samples in [fromMs, toMs) and calls with for each series in each
// slice, slices in order: i is the series' place, samples are by time and valid during
// the call, which MUST NOT wait, since the store is being read. Loading is called with how many samples more, or less, are
// held on the way, and its error ends the reading.
func (g Group) Samples(
	ctx context.Context, fromMs, toMs int64, warn *Warnings,
	loading func(n int) error, with func(i int, samples []metric.Sample) error,
) error {
	return g.samples(ctx, fromMs, toMs, warn, warn.reads.of(g), loading, with)
}

func (g Group) samples(
	ctx context.Context, fromMs, toMs int64, warn *Warnings, reads *Reads,
	loading func(n int) error, with func(i int, samples []metric.Sample) error,
) error {
	fromMs, toMs = g.q.sinceMs(metric.Raw, max(fromMs, minTimeMs)), g.q.untilMs(ctx, min(toMs, maxTimeMs))
	if fromMs >= toMs {
		return nil
	}
	reads.add(metric.Raw, fromMs, toMs, len(g.ids))
	return g.q.rawSlices(ctx, g.group, fromMs, toMs, &warn.warnings, loading, with)
}

// Span is an aggregate of the samples of one series in [StartMs, EndMs). It is either a roll-up row
// over its slice, or one finite sample over the millisecond that begins at its time.
type Span struct {
	StartMs int64
	EndMs   int64
	metric.Rollup
}

// LastMs returns the time of the sample, or the last millisecond of the row's slice.
func (s *Span) LastMs() int64 { return s.EndMs - 1 }

// LevelFor returns the best bucket for reading a range that starts at fromMs:
//  1. Raw, if raw still has the whole range.
//  2. Else, of the levels that have the whole range, the coarsest level that satisfies the first of
//     wanted; if none does, the second of wanted, and so on; else the finest of these levels.
//  3. If no level has the whole range, the level that reaches back furthest.
func (q *Querier) LevelFor(fromMs int64, wanted ...func(widthMs int64) bool) metric.Bucket {
	nowMs := q.nowMs()
	since := func(b metric.Bucket) int64 { return q.wholeFrom(b, nowMs) }
	if since(metric.Raw) <= fromMs {
		return metric.Raw
	}
	levels := q.ladder.Levels()
	kept := slices.DeleteFunc(slices.Clone(levels), func(b metric.Bucket) bool { return since(b) > fromMs })
	if len(kept) == 0 {
		return slices.MinFunc(levels, func(a, b metric.Bucket) int { return cmp.Compare(since(a), since(b)) })
	}
	for _, want := range wanted {
		for _, b := range slices.Backward(kept) {
			if want(q.ladder.WidthMs(b)) {
				return b
			}
		}
	}
	return kept[0]
}

// Plan says what to read for a range at a level: its rows as far as they have been ground, then
// finer rows, then samples. See planner.
type Plan struct {
	ladder metric.Ladder
	parts  []part
}

// Planner makes plans for groups.
type Planner struct {
	ladder metric.Ladder
	parts  func(groups ...group) []part
}

// For returns the plan for a group. Late data can make the plans of two groups differ.
func (p *Planner) For(g Group) *Plan { return &Plan{ladder: p.ladder, parts: p.parts(g.group)} }

// Planner finds out what there is to read in [fromMs, toMs), at a level and below. Warnings say
// what is missing.
func (q *Querier) Planner(ctx context.Context, level metric.Bucket, fromMs, toMs int64, warn *Warnings) (*Planner, error) {
	levels := q.ladder.Levels()[:level]
	slices.Reverse(levels)
	fromMs = metric.AlignDown(max(fromMs, minTimeMs), q.ladder.WidthMs(level))
	toMs = q.untilMs(ctx, min(toMs, maxTimeMs))
	p, err := q.planner(ctx, fromMs, toMs, levels, &warn.warnings)
	if err != nil {
		return nil, err
	}
	return &Planner{ladder: q.ladder, parts: p.forGroups(&warn.warnings, func(p *planner) []part {
		return p.plan(fromMs, toMs, levels, nil)
	})}, nil
}

// Floor returns the latest time, not after tMs, that no row straddles: the start of the row whose
// slice contains tMs, or tMs itself.
func (p *Plan) Floor(tMs int64) int64 {
	i, _ := slices.BinarySearchFunc(p.parts, tMs, func(part part, tMs int64) int {
		if part.toMs < tMs {
			return -1 // a row may extend beyond the end of the data
		}
		return 1
	})
	if i == len(p.parts) || tMs < p.parts[i].fromMs || p.parts[i].bucket == metric.Raw {
		return tMs
	}
	return metric.AlignDown(tMs, p.ladder.WidthMs(p.parts[i].bucket))
}

// Spans reads what the plan says and calls with for each span, those of a series in order
// of time: i is the series' place, the span is valid during the call. Loading is as of Samples.
func (g Group) Spans(
	ctx context.Context, p *Plan, warn *Warnings, loading func(n int) error, with func(i int, s *Span) error,
) error {
	span := new(Span)
	reads := warn.reads.of(g)
	for _, part := range p.parts {
		if part.bucket == metric.Raw {
			err := g.samples(ctx, part.fromMs, part.toMs, warn, reads, loading, func(i int, samples []metric.Sample) error {
				for _, s := range samples {
					if !finite(s.Value) {
						continue
					}
					*span = Span{StartMs: s.TimeMs, EndMs: s.TimeMs + 1, Rollup: metric.Rollup{
						Count: 1, Sum: s.Value, Min: s.Value, Max: s.Value, First: s.Value, Last: s.Value,
					}}
					if err := with(i, span); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			continue
		}
		width := p.ladder.WidthMs(part.bucket)
		reads.add(part.bucket, part.fromMs, part.toMs, len(g.ids))
		for row, err := range g.q.rows(ctx, g.group, part.bucket, part.fromMs, part.toMs, &warn.warnings) {
			if err != nil {
				return err
			}
			if row.Partial {
				warn.add("%s of %s is partial: samples may be missing from it",
					g.q.rowName(part.bucket, row.TimeMs), g.q.index.Labels(row.Schedule))
				warn.reads.partial(part.bucket, row.TimeMs, row.TimeMs+width)
			}
			*span = Span{StartMs: row.TimeMs, EndMs: row.TimeMs + width, Rollup: row.Rollup}
			if err := with(row.i, span); err != nil {
				return err
			}
		}
	}
	return nil
}
