package registry

import (
	"context"
	"fmt"

	"github.com/quern/quern/internal/storage"
)

// census counts the series of the whole store against their limit. Without a limit
// it counts nothing.
type census struct {
	store storage.Registry
	max   int

	// turn guards what follows; it is a channel because the first count reads all
	// series, and waiting for that can be called off.
	turn    chan struct{}
	counted bool
	n       int
}

func newCensus(store storage.Registry, limit int) census {
	return census{store: store, max: limit, turn: make(chan struct{}, 1)}
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
	n = max(0, min(n, c.max-c.n))
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
