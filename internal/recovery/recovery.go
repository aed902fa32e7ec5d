// Package recovery decides what happens to work that did not go as planned: slices whose run was
// missed (missed.go), rows that lack late data (package late), blocks that failed, and input that has expired.
package recovery

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quern/quern/internal/cache"
	"github.com/quern/quern/internal/clock"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// Options bound what Recovery looks for.
type Options struct {
	// AgeCap is the maximum age of a sample, so ingest opens no slice that ended longer ago. It
	// bounds how far back each look for open slices goes, not what is done about them. The default
	// is 24h.
	AgeCap time.Duration
}

// Recovery applies the rules for missed, failed and expired work.
type Recovery struct {
	store  storage.Store
	cache  *cache.Cache
	ladder metric.Ladder
	clk    clock.Clock
	opts   Options

	mu     sync.Mutex
	search search
	// widened counts how often search was widened beside what looks find.
	widened int
	// lookedMs is the start of the last look.
	lookedMs int64
	// Until retryAt, by the clock's Elapsed, looks do not try what is unread. At surveyAt the next survey is due.
	retryAt, surveyAt time.Duration

	// seen is what was outstanding at the last look.
	seen atomic.Pointer[[]storage.SliceKey]
}

// New makes a Recovery over a store.
func New(store storage.Store, c *cache.Cache, clk clock.Clock, opts Options) *Recovery {
	if opts.AgeCap == 0 {
		opts.AgeCap = 24 * time.Hour
	}
	r := &Recovery{store: store, cache: c, ladder: store.Settings().Ladder, clk: clk, opts: opts, surveyAt: clk.Elapsed() + surveyEvery}
	r.search = everywhere(r.ladder.Top())
	return r
}

// Expired says whether part of the work's input may have outlived its retention at nowMs. A roll-up is never recomputed from
// part of its input. All other work is done, however long it has waited and however often it failed.
func (r *Recovery) Expired(w *cache.Work, nowMs int64) bool {
	return !storage.Whole(r.store, w.Bucket(), w.Slice, nowMs)
}

// Reschedule puts failed work off to the bucket's current slice. First it writes a mark with the
// original time, and a second one for the rows to take back. Then it deletes the marks that were
// read. The cache block stays.
func (r *Recovery) Reschedule(ctx context.Context, fence storage.Fence, w *cache.Work, cause error) error {
	m := storage.Mark{
		Start: w.Block.Start, TimeMs: w.Slice.StartMs,
		Kind: storage.MarkRetry, Schedules: w.Schedules(),
		DueMs: w.DueMs(), Attempt: w.Attempt() + 1, LastError: cause.Error(),
	}
	marks := []storage.Mark{m}
	if ids := w.TakesBack(); len(ids) > 0 {
		m.Kind, m.Schedules = storage.MarkTakeBack, ids
		marks = append(marks, m)
	}
	if err := r.cache.Put(ctx, fence, w.Bucket(), marks); err != nil {
		return fmt.Errorf("reschedule block %d: %w", w.Block.Start, err)
	}
	return r.cache.Unmark(ctx, fence, w)
}
