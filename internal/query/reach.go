package query

import (
	"context"
	"time"

	"github.com/quern/quern/internal/metric"
)

// reach is how far the store's samples reach, and when it was asked, by the clock.
type reach struct{ askedMs, endMs int64 }

// reachFor is how long it may take until samples show that another process takes by a clock that is ahead.
const reachFor = 10 * time.Minute

// untilMs returns endMs, or the end of all data that the store may have if that is earlier: reading
// further would cost reads. Samples may lie beyond the future limit if it was lowered or the clock was
// set back. They were acknowledged, so queries read them. A sample's slice is opened before the sample is
// written, so the store's slices cover everything except samples that are just being ingested. Ingest
// reports those to Sightings. If the store does not answer, untilMs returns endMs.
func (q *Querier) untilMs(ctx context.Context, endMs int64) int64 {
	nowMs := q.nowMs()
	limitMs := nowMs + q.opts.FutureLimit.Milliseconds() + 1 // the last millisecond is within the limit
	if endMs <= limitMs {
		return endMs
	}
	known := q.reach.Load()
	if known == nil || nowMs < known.askedMs || nowMs >= known.askedMs+reachFor.Milliseconds() {
		opened, err := q.store.Slices(ctx, metric.Raw, q.ladder.SliceAt(metric.Raw, nowMs).StartMs, maxTimeMs)
		if err != nil {
			return endMs
		}
		known = &reach{askedMs: nowMs}
		for _, s := range opened {
			known.endMs = max(known.endMs, q.ladder.SliceAt(metric.Raw, s.StartMs).EndMs)
		}
		q.reach.Store(known)
	}
	return min(endMs, max(limitMs, known.endMs, q.opts.Sightings.newest()+1))
}
