package query

import (
	"context"
	"math"
	"runtime"
	"slices"

	"github.com/quern/quern/internal/blocks"
	"github.com/quern/quern/internal/metric"
)

// Group is a set of selected series in the same storage group, sorted by id: one read of the store serves them.
type Group struct {
	ids []metric.ScheduleID
	q   *Querier
	// place is that among the groups of the selection.
	place int
}

// IDs returns the ids of the series, sorted. Callers MUST NOT change them.
func (g Group) IDs() []metric.ScheduleID { return g.ids }

// Labels returns the labels of the series at index i. Callers MUST NOT change them.
func (g Group) Labels(i int) metric.Labels { return g.q.index.Labels(g.ids[i]) }

// span returns the id range from the first series to the last.
func (g Group) span() blocks.Range {
	return blocks.Range{Start: g.ids[0], End: g.ids[len(g.ids)-1] + 1}
}

// fewRuns bounds the reads of rows of a group. In an embedded store, one takes as long as ten rows that nobody wants.
const fewRuns = 16

// runs returns ranges of ids that have all series: of few series that lie apart, those of neighbours.
func (g Group) runs() []blocks.Range {
	if len(g.ids) > fewRuns || g.span().Len() <= 2*len(g.ids) {
		return []blocks.Range{g.span()}
	}
	var out []blocks.Range
	for _, id := range g.ids {
		if n := len(out); n > 0 && out[n-1].End == id {
			out[n-1].End++
		} else {
			out = append(out, blocks.Range{Start: id, End: id + 1})
		}
	}
	return out
}

// Only returns the series at these indexes, which ascend.
func (g Group) Only(indexes []int) Group {
	ids := make([]metric.ScheduleID, len(indexes))
	for i, at := range indexes {
		ids[i] = g.ids[at]
	}
	g.ids = ids
	return g
}

// Groups finds the series that match any of the selectors. The error is a *RequestError or the
// cause of ctx's end.
func (q *Querier) Groups(ctx context.Context, sels ...Selector) ([]Group, error) {
	return q.groups(ctx, sels, math.MaxInt, new(Warnings))
}

// WarnUnread warns if an answer may lack series, because their labels are out of reach.
func (q *Querier) WarnUnread(warn *Warnings) {
	if err := q.index.Unread(); err != nil {
		warn.Add("incomplete: %v", err)
	}
}

// streamed selects any number of series and splits them into groups. It is for answers that hold one
// group at a time: beside that, a series takes the few bytes of its id.
func (q *Querier) streamed(ctx context.Context, sels []Selector, warn *Warnings) ([]Group, error) {
	q.WarnUnread(warn)
	ids, err := q.index.Select(ctx, sels...)
	if err != nil {
		return nil, err
	}
	return q.grouped(ids, math.MaxInt), nil
}

// groups selects series, up to the limit of a request, and splits them into groups of at most maxIDs.
func (q *Querier) groups(ctx context.Context, sels []Selector, maxIDs int, warn *Warnings) ([]Group, error) {
	q.WarnUnread(warn)
	ids, err := q.selected(ctx, sels)
	if err != nil {
		return nil, err
	}
	return q.grouped(ids, maxIDs), nil
}

// selected returns the series that match any of the selectors, up to the limit of a request, sorted by
// id.
func (q *Querier) selected(ctx context.Context, sels []Selector) ([]metric.ScheduleID, error) {
	ids, err := q.index.Select(ctx, sels...)
	if err != nil {
		return nil, err
	}
	if len(ids) > q.opts.MaxSeries {
		return nil, badRequest("the selectors match %d series, more than the limit of %d for one request: narrow them",
			len(ids), q.opts.MaxSeries)
	}
	return ids, nil
}

// matchesPerSeries is the number of selectors of one request that may each match MaxSeries series.
const matchesPerSeries = 4

// Bound checks the total number of matches of a request's selectors. A series counts once for each
// selector that matches it. The error is a *RequestError.
func (q *Querier) Bound(matches int) error {
	if most := matchesPerSeries * q.opts.MaxSeries; matches > most {
		return badRequest("the selectors match more than %d series together, each counted for every selector that matches it: "+
			"narrow them, use fewer, or ask in several requests", most)
	}
	return nil
}

// grouped splits series, sorted by id, into groups of at most maxIDs.
func (q *Querier) grouped(ids []metric.ScheduleID, maxIDs int) []Group {
	var out []Group
	for len(ids) > 0 {
		end := blocks.BlockAt(ids[0], q.groupSize).End
		n, _ := slices.BinarySearch(ids, end)
		n = min(n, max(maxIDs, 1))
		out = append(out, Group{ids: ids[:n], q: q, place: len(out)})
		ids = ids[n:]
	}
	return out
}

// A stretch of a range has at least stretchSlices raw slices. A range has at most maxStretches.
const (
	stretchSlices = 24
	maxStretches  = 4
)

// Borders returns the borders of the stretches of [fromMs, toMs) that Samples may read at the same time. There is one stretch
// where more would not pay.
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
