package registry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quern/quern/internal/errand"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
	"github.com/quern/quern/internal/throttle"
)

// census counts the series of the whole store against their limit. Without a limit it counts
// nothing. When the limit is reached, series without data do not count.
type census struct {
	store   storage.Registry
	max     int
	first   errand.Errand
	leaving *leaving

	mu      sync.Mutex
	counted bool
	n       int
}

func newCensus(store storage.Registry, opts Options) *census {
	return &census{store: store, max: opts.MaxSeries, first: errand.New(opts.Beside), leaving: newLeaving(opts)}
}

// reserve adds up to n series to the count, and returns how many there was room for.
func (c *census) reserve(ctx context.Context, n int) (int, error) {
	if c.max <= 0 || n == 0 {
		return n, nil
	}
	if err := c.first.Do(ctx, func() bool { return !c.isCounted() }, c.count); err != nil {
		return 0, fmt.Errorf("count the series: %w", err)
	}
	if n > c.room() {
		if err := c.leaving.count(ctx, func() []metric.ScheduleID { return nil }); err != nil {
			return 0, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n = max(0, min(n, c.max-c.n+c.leaving.gone()))
	c.n += n
	return n, nil
}

func (c *census) isCounted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted
}

func (c *census) room() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.max - c.n + c.leaving.gone()
}

// count counts the registered series. This process registers none meanwhile.
func (c *census) count(ctx context.Context) error {
	n := 0
	ids, err := c.store.LeasedIDs(ctx)
	if err != nil {
		return err
	}
	for _, err := range c.store.Schedules(ctx, ids) {
		if err != nil {
			return err
		}
		n++
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n, c.counted = n, true
	return nil
}

// release takes back n reserved series that turned out not to be new, or could not be registered.
func (c *census) release(n int) {
	if c.max <= 0 || n == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n -= n
}

// leaving counts the registered series that have no data left.
type leaving struct {
	ask   func(ctx context.Context, ids []metric.ScheduleID) (int, error) // nil if there is nobody to ask
	again *throttle.Throttle
	work  errand.Errand
	n     atomic.Int64
}

func newLeaving(opts Options) *leaving {
	l := &leaving{ask: opts.Gone, work: errand.New(opts.Beside)}
	if l.ask != nil {
		l.again = throttle.New(opts.Clock, recount)
	}
	return l
}

// gone is the result of the last count.
func (l *leaving) gone() int { return int(l.n.Load()) }

// count counts again, unless the last count is recent.
func (l *leaving) count(ctx context.Context, ids func() []metric.ScheduleID) error {
	if l.ask == nil {
		return nil
	}
	due := func() bool {
		_, ok := l.again.Pass()
		return ok
	}
	err := l.work.Do(ctx, due, func(ctx context.Context) error {
		n, err := l.ask(ctx, ids())
		if err != nil {
			return err
		}
		l.n.Store(int64(n))
		_, _ = l.again.Pass() // a count serves from when it ends
		return nil
	})
	if err != nil {
		return fmt.Errorf("count the series of which nothing is left: %w", err)
	}
	return nil
}
