package promquery

import (
	"context"
	"sort"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
)

// points are samples of one series, sorted by time.
type points []promql.FPoint

func (p *points) add(tMs int64, v float64) { *p = append(*p, promql.FPoint{T: tMs, F: v}) }

// after returns the index of the first point later than tMs, which is not before from. It looks at nearby points first, since
// windows mostly advance in small steps.
func (p points) after(from int, tMs int64) int {
	rest := p[min(from, len(p)):]
	step := 1
	for step < len(rest) && rest[step].T <= tMs {
		step *= 2
	}
	least := step / 2
	return from + least + sort.Search(min(step+1, len(rest))-min(least, len(rest)), func(i int) bool { return rest[least+i].T > tMs })
}

// iterator is a chunkenc.Iterator over points, or carries the error of reading them.
type iterator struct {
	points
	ctx context.Context //nolint:containedctx // that of Select: the engine passes none
	at  int
	err error
}

func (it *iterator) Next() chunkenc.ValueType {
	if it.at++; it.at >= len(it.points) {
		it.at = len(it.points)
		return chunkenc.ValNone
	}
	const some = 1024
	if it.at%some == 0 && it.ended() {
		return chunkenc.ValNone
	}
	return chunkenc.ValFloat
}

// unixMs is an alias of int64: with plain int64, vet confuses Seek with io.Seeker's.
type unixMs = int64

// ended returns whether the context has ended, and is why there are no further points then.
func (it *iterator) ended() bool {
	err := it.ctx.Err()
	if err != nil {
		it.points, it.at, it.err = nil, 0, err
	}
	return err != nil
}

func (it *iterator) Seek(tMs unixMs) chunkenc.ValueType {
	if it.ended() {
		return chunkenc.ValNone
	}
	it.at = it.points.after(max(it.at, 0), tMs-1)
	if it.at >= len(it.points) {
		return chunkenc.ValNone
	}
	return chunkenc.ValFloat
}

func (it *iterator) At() (int64, float64) { return it.points[it.at].T, it.points[it.at].F }

func (it *iterator) AtT() int64 { return it.points[it.at].T }

// AtST implements chunkenc.Iterator. Start times are unknown.
func (*iterator) AtST() int64 { return 0 }

func (it *iterator) Err() error { return it.err }

// AtHistogram implements chunkenc.Iterator. It is not called: all values are floats.
func (*iterator) AtHistogram(*histogram.Histogram) (int64, *histogram.Histogram) { return 0, nil }

// AtFloatHistogram implements chunkenc.Iterator. It is not called: all values are floats.
func (*iterator) AtFloatHistogram(*histogram.FloatHistogram) (int64, *histogram.FloatHistogram) {
	return 0, nil
}
