package query

import (
	"context"
	"sync"
	"time"

	"github.com/quern/quern/internal/metric"
)

// ahead caches how far the store's samples reach beyond the current future limit. Samples can lie
// there if the limit was lowered or the clock was set back. They were acknowledged, so queries read
// them.
type ahead struct {
	mu      sync.Mutex
	known   bool
	askedMs int64 // when the store was asked, by the clock
	endMs   int64 // end of the last slice at that time
}

// aheadFor is how long the cached answer is used. For as long, samples from another process whose
// clock is ahead may stay unseen.
const aheadFor = 10 * time.Minute

// untilMs returns endMs, or the end of all data that the store may have if that is earlier: reading
// further would cost reads. A sample's slice is opened before the sample is written, so the store's
// slices cover everything except samples that are just being ingested. Ingest reports those to
// Sightings. If the store does not answer, untilMs returns endMs.
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
