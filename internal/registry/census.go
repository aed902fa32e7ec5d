package registry

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// census counts the series of the whole store against their limit. Without a limit
// it counts nothing. Series of which nothing is left are taken off where the limit is reached.
type census struct {
	store storage.Registry
	max   int

	// turn guards what follows; it is a channel because the first count reads all
	// series, and waiting for that can be called off.
	turn    chan struct{}
	counted bool
	n       int
	leaving leaving
	// gone is what leaving has counted, for who has no turn.
	gone atomic.Int64
}

func newCensus(store storage.Registry, opts Options) *census {
	return &census{store: store, max: opts.MaxSeries, turn: make(chan struct{}, 1), leaving: newLeaving(opts)}
}

// reserve counts up to n more series and returns how many there is room for.
func (c *census) reserve(ctx context.Context, n int) (int, error) {
	if c.max <= 0 || n == 0 {
		return n, nil
	}
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	if !c.counted {
		if err := c.count(ctx); err != nil {
			return 0, fmt.Errorf("count the series: %w", err)
		}
	}
	if n > c.max-c.n+c.leaving.n {
		if err := c.leaving.count(ctx, func() []metric.ScheduleID { return nil }); err != nil {
			return 0, err
		}
		c.gone.Store(int64(c.leaving.n))
	}
	n = max(0, min(n, c.max-c.n+c.leaving.n))
	c.n += n
	return n, nil
}

func (c *census) count(ctx context.Context) error {
	c.n = 0
	ids, err := c.store.LeasedIDs(ctx)
	if err != nil {
		return err
	}
	for _, err := range c.store.Schedules(ctx, ids) {
		if err != nil {
			return err
		}
		c.n++
	}
	c.counted = true
	return nil
}

// release takes back n of what was reserved: series that turned out not to be new,
// or could not be registered.
func (c *census) release(n int) {
	if c.max <= 0 || n == 0 {
		return
	}
	c.turn <- struct{}{}
	c.n -= n
	<-c.turn
}
