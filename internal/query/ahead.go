package query

import (
	"context"
	"sync"
	"time"

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
)

// ahead caches how far the store's samples reach beyond the current future limit. Samples can lie
// there if the limit was lowered or the clock was set back. They were acknowledged, so queries read
// them.
type ahead struct {
	asking limits.Errand

	mu      sync.Mutex
	known   bool
	askedMs int64 // when the store was last asked, by the clock
	nextMs  int64 // when it is to be asked again
	endMs   int64 // of the last slice then
}

const (
	// aheadFor is how long it may take until samples show that another process takes by a clock that is ahead.
	aheadFor = 10 * time.Minute
	// aheadAgain is when a store is asked again that did not answer.
	aheadAgain = 10 * time.Second
)

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
	if err := a.asking.Do(ctx, a.due(nowMs), q.askAhead); err != nil {
		return endMs
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.known {
		return endMs
	}
	return min(endMs, max(limitMs, a.endMs))
}

func (a *ahead) due(nowMs int64) func() bool {
	return func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return nowMs >= a.nextMs || nowMs < a.askedMs
	}
}

// askAhead asks the store, and keeps that it did not answer.
func (q *Querier) askAhead(ctx context.Context) error {
	nowMs := q.nowMs()
	opened, err := q.store.Slices(ctx, metric.Raw, q.ladder.SliceAt(metric.Raw, nowMs).StartMs, maxTimeMs)
	endMs := int64(0)
	for _, s := range opened {
		endMs = max(endMs, q.ladder.SliceAt(metric.Raw, s.StartMs).EndMs)
	}
	serves := aheadFor
	if err != nil {
		serves = aheadAgain
	}
	a := &q.ahead
	a.mu.Lock()
	defer a.mu.Unlock()
	a.known, a.endMs = err == nil, endMs
	a.askedMs = q.nowMs()
	a.nextMs = a.askedMs + serves.Milliseconds()
	return err
}
