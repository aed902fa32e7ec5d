package query

import (
	"cmp"
	"context"
	"slices"

	"github.com/quern/quern/internal/metric"
)

// Span is an aggregate of the samples of one series in [StartMs, EndMs). It is either a roll-up row
// over its slice, or one finite sample over the millisecond that begins at its time.
type Span struct {
	StartMs int64
	EndMs   int64
	metric.Rollup
}

// IsSample returns whether the span is a sample.
func (s *Span) IsSample() bool { return s.EndMs == s.StartMs+1 }

// AtMs returns the time of the sample, or the last millisecond of the row's slice.
func (s *Span) AtMs() int64 { return s.EndMs - 1 }

// SampleSpan returns the span of a finite sample.
func SampleSpan(tMs int64, v float64) Span {
	return Span{StartMs: tMs, EndMs: tMs + 1, Rollup: metric.Rollup{
		Count: 1, Sum: v, Min: v, Max: v, First: v, Last: v, FirstMs: tMs, LastMs: tMs,
	}}
}

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

// Planner finds out what there is to read in [fromMs, toMs), at a level and below. Warnings say
// what is missing.
func (q *Querier) Planner(ctx context.Context, level metric.Bucket, fromMs, toMs int64, warn *Warnings) (*Planner, error) {
	levels := q.ladder.Levels()[:level]
	slices.Reverse(levels)
	fromMs = metric.AlignDown(max(fromMs, minTimeMs), q.ladder.WidthMs(level))
	return q.planner(ctx, fromMs, min(toMs, maxTimeMs), levels, nil, warn)
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

// Spans reads what the plan says and calls visit for each span, those of a series in order
// of time: i is the series' place, the span is valid during the call. Loading is as of Samples.
func (g Group) Spans(
	ctx context.Context, p *Plan, warn *Warnings, loading func(n int) error, visit func(i int, s *Span) error,
) error {
	span := new(Span)
	return g.q.read(ctx, g, p.parts, warn, loading, g.q.rows, func(i int, samples []metric.Sample) error {
		for _, s := range samples {
			if !finite(s.Value) {
				continue
			}
			*span = SampleSpan(s.TimeMs, s.Value)
			if err := visit(i, span); err != nil {
				return err
			}
		}
		return nil
	}, func(level metric.Bucket, row groupRow) error {
		endMs := row.TimeMs + p.ladder.WidthMs(level)
		if row.Partial {
			warn.Add("%s of %s is partial: samples may be missing from it", g.q.rowName(level, row.TimeMs), g.q.index.Labels(row.Schedule))
			warn.reads.partial(level, row.TimeMs, endMs)
		}
		*span = Span{StartMs: row.TimeMs, EndMs: endMs, Rollup: row.Rollup}
		return visit(row.i, span)
	})
}

// MostlyRows returns whether rows make up three quarters of the time before endMs. A span takes the room of ten samples.
func (p *Plan) MostlyRows(endMs int64) bool {
	var rowsMs, samplesMs int64
	for _, part := range p.parts {
		if ms := max(0, min(part.toMs, endMs)-part.fromMs); part.bucket == metric.Raw {
			samplesMs += ms
		} else {
			rowsMs += ms
		}
	}
	return rowsMs > 0 && rowsMs >= 3*samplesMs
}

// Evidence reads as Spans does, for a reader that reads samples where it learns that a span may lack some. Of samples it reads
// only those before endMs. Spans also come without samples: with NonFinite for a sample that is not finite, and with Partial for
// a row that is damaged. No warning tells of rows.
func (g Group) Evidence(
	ctx context.Context, p *Plan, endMs int64, warn *Warnings, loading func(n int) error, visit func(i int, s *Span) error,
) error {
	parts := slices.Clone(p.parts)
	for i := range parts {
		if parts[i].bucket == metric.Raw {
			parts[i].toMs = min(parts[i].toMs, endMs)
		}
	}
	span := new(Span)
	return g.q.read(ctx, g, parts, warn, loading, g.q.stored, func(i int, samples []metric.Sample) error {
		for _, s := range samples {
			if metric.IsMarker(s.Value) {
				continue
			}
			if *span = SampleSpan(s.TimeMs, s.Value); !finite(s.Value) {
				span.Rollup = metric.Rollup{NonFinite: true}
			}
			if err := visit(i, span); err != nil {
				return err
			}
		}
		return nil
	}, func(level metric.Bucket, row groupRow) error {
		*span = Span{StartMs: row.TimeMs, EndMs: row.TimeMs + p.ladder.WidthMs(level), Rollup: row.Rollup}
		span.Partial = span.Partial || row.Damaged
		if span.Count == 0 && !span.Partial && !span.NonFinite {
			return nil
		}
		return visit(row.i, span)
	})
}
