package query

import (
	"context"
	"sync"
	"time"

	"github.com/quern/quern/internal/metric"
)

// ahead is how far the samples of a store go beyond what may be taken in now. They may go there since the future limit was lowered, or the
// clock was set back: they have been acknowledged, and are read.
type ahead struct {
	mu      sync.Mutex
	known   bool
	askedMs int64 // when, by the clock
	endMs   int64 // of the last slice then
}

// aheadFor is how long it may take until samples show that another process takes by a clock that is ahead.
const aheadFor = 10 * time.Minute

// untilMs is endMs, or the end of all that the store may have if that is earlier: looking for more would cost reads. Samples lie in
// slices that were opened before they were written, so that the store knows of all but those that are being taken in; of the latter
// ingest tells. A store that does not answer is asked for everything.
func (q *Querier) untilMs(ctx context.Context, endMs int64) int64 {
	nowMs := q.nowMs()
	limitMs := nowMs + q.opts.FutureLimit.Milliseconds() + 1 // the last millisecond is within the limit
	if endMs <= limitMs {
		return endMs
	}
	limitMs = max(limitMs, q.opts.Sightings.newest()+1)
	a := &q.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := nowMs - a.askedMs; !a.known || old < 0 || old >= aheadFor.Milliseconds() {
		opened, err := q.store.Slices(ctx, metric.Raw, q.ladder.SliceAt(metric.Raw, nowMs).StartMs, maxTimeMs)
		if err != nil {
			return endMs
		}
		a.known, a.askedMs, a.endMs = true, nowMs, 0
		for _, s := range opened {
			a.endMs = max(a.endMs, q.ladder.SliceAt(metric.Raw, s.StartMs).EndMs)
		}
	}
	return min(endMs, max(limitMs, a.endMs))
}
