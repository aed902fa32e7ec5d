package query

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/quern/quern/internal/blocks/sketch"
	"github.com/quern/quern/internal/metric"
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
		for _, g := range groups {
			err := g.Pieces(ctx, startMs, endMs, &r.warnings, func(i int, samples []metric.Sample) error {
				if !yield(Samples{ID: g.ids[i], Labels: q.index.Labels(g.ids[i]), Samples: samples}, nil) {
					return errEnough
				}
				return nil
			})
			if errors.Is(err, errEnough) {
				return
			}
			if err != nil {
				yield(Samples{}, err)
				return
			}
		}
	}
	return r, nil
}

// errEnough says that a consumer wants no more.
var errEnough = errors.New("the consumer wants no more")

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
		fromMs, toMs := q.kept(ctx, level, startMs, endMs)
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
					r.warnings.Add("%s of %s: percentiles are missing: %v", q.rowName(level, row.TimeMs), out.Labels, err)
				} else {
					var off error
					if out.P50, out.P90, out.P99, off = percentiles(&sk, row.Min, row.Max); off != nil {
						r.warnings.Add("%s of %s: percentiles: %v", q.rowName(level, row.TimeMs), out.Labels, off)
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
