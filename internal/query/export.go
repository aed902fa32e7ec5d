package query

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/sketch"
)

// Samples are raw samples of one series, sorted by time.
type Samples struct {
	ID      metric.ScheduleID
	Labels  metric.Labels
	Samples []metric.Sample
}

// exportSamples is the number of samples of a group, about 8 MB, that are collected slice by slice
// before they are yielded. A slow client holds them for as long as it reads.
const exportSamples = 1 << 17

// pieceSamples bounds the samples of one piece. As a line of an export, a piece stays below 1 MB,
// which every importer accepts.
const pieceSamples = 10_000

// Export reads the raw samples in [startMs, endMs). A series with many samples comes in several
// pieces, in order of time, with pieces of other series between them. The returned error may be a
// *RequestError.
func (q *Querier) Export(ctx context.Context, sels []Selector, startMs, endMs int64) (*Result[Samples], error) {
	if err := CheckRange(startMs, endMs); err != nil {
		return nil, err
	}
	r := new(Result[Samples])
	groups, err := q.streamed(ctx, sels, &r.warnings)
	if err != nil {
		return nil, err
	}
	r.all = func(yield func(Samples, error) bool) {
		fromMs, toMs := q.sinceMs(metric.Raw, startMs), q.untilMs(ctx, endMs)
		if fromMs >= toMs {
			return
		}
		e := exporter{q: q, fromMs: fromMs, toMs: toMs, warn: &r.warnings, memory: NewMemory(ctx, q.opts.Memory, 1), yield: yield}
		for _, g := range groups {
			more, err := e.group(ctx, g)
			if err != nil {
				yield(Samples{}, err)
			}
			if err != nil || !more {
				return
			}
		}
	}
	return r, nil
}

type exporter struct {
	q      *Querier
	fromMs int64
	toMs   int64
	warn   *warnings
	memory *Memory
	yield  func(Samples, error) bool
}

// group yields the samples of one group; more is false if the consumer wants no more.
func (e *exporter) group(ctx context.Context, g group) (more bool, err error) {
	more = true
	err = inParts(e.fromMs, e.toMs, func(fromMs, toMs int64) (metric.Slice, error) {
		if !more {
			return metric.Slice{}, nil
		}
		var part metric.Slice
		part, more, err = e.part(ctx, g, fromMs, toMs)
		return part, err
	})
	return more, err
}

// part yields the samples in [fromMs, toMs), or ends with errTooMany and what it has not yielded of
// the slices that it has read.
func (e *exporter) part(ctx context.Context, g group, fromMs, toMs int64) (left metric.Slice, more bool, err error) {
	most := e.q.opts.MaxSamples
	slice := metric.Slice{StartMs: math.MinInt64}
	left.StartMs = fromMs
	set := e.q.set(e.memory)
	defer set.close()
	g.reset(set, fromMs, toMs)
	sinceMs := e.q.ladder.SliceAt(metric.Raw, fromMs).StartMs
	for ch, err := range e.q.chunks(ctx, g, sinceMs, toMs) {
		if err != nil {
			return left, false, e.q.readError(metric.Raw, g, err)
		}
		if ch.SliceMs != slice.StartMs {
			slice = e.q.ladder.SliceAt(metric.Raw, ch.SliceMs)
			if set.Len() >= min(exportSamples, most) {
				if !e.flush(g, set) {
					return left, false, nil
				}
				g.reset(set, fromMs, toMs)
				left.StartMs = slice.StartMs
			}
		}
		left.EndMs = slice.EndMs
		in, err := set.admit(ch, fromMs, toMs)
		if err != nil {
			return left, true, err
		}
		e.q.addChunk(in, ch, slice, e.warn)
		if set.Distinct() > most && toMs-fromMs > 1 {
			return left, true, errTooMany
		}
	}
	return left, e.flush(g, set), nil
}

// flush yields the contents of the set.
func (e *exporter) flush(g group, set *countedSet) (more bool) {
	for i, samples := range g.in(set) {
		id := g.ids[i]
		for piece := range slices.Chunk(samples, pieceSamples) {
			if !e.yield(Samples{ID: id, Labels: e.q.index.Labels(id), Samples: piece}, nil) {
				return false
			}
		}
	}
	return true
}

// Row is a stored roll-up row with the percentiles of its sketch, within 1 %. They are NaN if the
// sketch is damaged.
type Row struct {
	Labels metric.Labels
	metric.RollupRow
	P50 float64
	P90 float64
	P99 float64
}

// Rollups reads the stored rows of a level that start in [startMs, endMs). The rows of each series
// are sorted by time; the series of a group come in no particular order. A warning names rows that
// lack late samples. The returned error may be a *RequestError.
func (q *Querier) Rollups(ctx context.Context, sels []Selector, level metric.Bucket, startMs, endMs int64) (*Result[Row], error) {
	if err := CheckRange(startMs, endMs); err != nil {
		return nil, err
	}
	if level < 1 || level > q.ladder.Top() {
		return nil, badRequest("there is no level %d", level)
	}
	r := new(Result[Row])
	groups, err := q.streamed(ctx, sels, &r.warnings)
	if err != nil {
		return nil, err
	}
	r.all = func(yield func(Row, error) bool) {
		fromMs, toMs := q.sinceMs(level, startMs), q.untilMs(ctx, endMs)
		if fromMs >= toMs {
			return
		}
		late, err := q.lateRows(ctx, level, fromMs, toMs, &r.warnings)
		if err != nil {
			yield(Row{}, err)
			return
		}
		var sk sketch.Sketch
		for _, g := range groups {
			late(g)
			for row, err := range q.rows(ctx, g, level, fromMs, toMs, &r.warnings) {
				if err != nil {
					yield(Row{}, err)
					return
				}
				out := Row{Labels: q.index.Labels(row.Schedule), RollupRow: *row.RollupRow}
				out.P50, out.P90, out.P99 = math.NaN(), math.NaN(), math.NaN()
				sk.Reset()
				if err := sk.Merge(row.Sketch); err != nil {
					r.warnings.add("%s of %s: percentiles are missing: %v", q.rowName(level, row.TimeMs), out.Labels, err)
				} else {
					var off error
					if out.P50, out.P90, out.P99, off = percentiles(&sk, row.Min, row.Max); off != nil {
						r.warnings.add("%s of %s: percentiles: %v", q.rowName(level, row.TimeMs), out.Labels, off)
					}
				}
				if !yield(out, nil) {
					return
				}
			}
		}
	}
	return r, nil
}

// rowName names a stored row in a warning.
func (q *Querier) rowName(level metric.Bucket, tMs int64) string {
	return fmt.Sprintf("the %s row at %s", q.ladder.Name(level), metric.Slice{StartMs: tMs})
}
