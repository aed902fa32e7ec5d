package query

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/sketch"
)

// Samples are raw samples of one series, sorted by time.
type Samples struct {
	ID      metric.ScheduleID
	Labels  metric.Labels
	Samples []metric.Sample
}

// exportSamples is the number of samples of a group, about 24 MB, that are collected slice by slice
// before they are yielded.
const exportSamples = 1 << 20

// pieceSamples bounds the samples of one piece. As a line of an export, a piece stays below 1 MB,
// which every importer accepts.
const pieceSamples = 10_000

// Export reads the raw samples in [startMs, endMs). A series with many samples comes in several
// pieces, in order of time, with pieces of other series between them. The returned error may be a
// *RequestError; an error from All never is.
func (q *Querier) Export(ctx context.Context, sels []Selector, startMs, endMs int64) (*Result[Samples], error) {
	if err := checkRange(startMs, endMs); err != nil {
		return nil, err
	}
	groups, err := q.groups(ctx, sels, math.MaxInt)
	if err != nil {
		return nil, err
	}
	r := new(Result[Samples])
	r.all = func(yield func(Samples, error) bool) {
		fromMs, toMs := q.sinceMs(metric.Raw, startMs), q.untilMs(ctx, endMs)
		if fromMs >= toMs {
			return
		}
		e := exporter{q: q, fromMs: fromMs, toMs: toMs, warn: &r.warnings, yield: yield}
		e.set = q.sets.Get().(*blocks.SampleSet)
		defer q.sets.Put(e.set)
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
	yield  func(Samples, error) bool
	set    *blocks.SampleSet
}

// group yields the samples of one group; more is false if the consumer wants no more.
func (e *exporter) group(ctx context.Context, g group) (more bool, err error) {
	slice := metric.Slice{StartMs: math.MinInt64}
	g.reset(e.set, e.fromMs, e.toMs)
	sinceMs := e.q.ladder.SliceAt(metric.Raw, e.fromMs).StartMs
	for ch, err := range e.q.store.RawChunks(ctx, g.span(), sinceMs, e.toMs) {
		if err != nil {
			return false, e.q.readError(metric.Raw, g, err)
		}
		if ch.SliceMs != slice.StartMs {
			if e.set.Len() >= exportSamples && !e.flush(g) {
				return false, nil
			}
			slice = e.q.ladder.SliceAt(metric.Raw, ch.SliceMs)
		}
		e.q.addChunk(e.set, ch, slice, e.warn)
	}
	return e.flush(g), nil
}

// flush yields the contents of the set and empties it.
func (e *exporter) flush(g group) (more bool) {
	for i, samples := range g.in(e.set) {
		id := g.ids[i]
		for piece := range slices.Chunk(samples, pieceSamples) {
			if !e.yield(Samples{ID: id, Labels: e.q.index.Labels(id), Samples: piece}, nil) {
				return false
			}
		}
	}
	g.reset(e.set, e.fromMs, e.toMs)
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
// lack late samples. The returned error may be a *RequestError; an error from All never is.
func (q *Querier) Rollups(ctx context.Context, sels []Selector, level metric.Bucket, startMs, endMs int64) (*Result[Row], error) {
	if err := checkRange(startMs, endMs); err != nil {
		return nil, err
	}
	if level < 1 || level > q.ladder.Top() {
		return nil, badRequest("there is no level %d", level)
	}
	groups, err := q.groups(ctx, sels, math.MaxInt)
	if err != nil {
		return nil, err
	}
	r := new(Result[Row])
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
					out.P50, out.P90, out.P99 = percentiles(&sk, row.Min, row.Max)
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
