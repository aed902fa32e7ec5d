package registry

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/quern/quern/internal/limits"
	"github.com/quern/quern/internal/metric"
	"github.com/quern/quern/internal/storage"
)

// census holds the series of the whole store against their limits, in number and in bytes. It counts
// those that are there already once there is a limit. Series without data do not count in number. They
// count in bytes, because they stay in memory.
type census struct {
	store          storage.Registry
	max, perSource atomic.Int64
	maxBytes       int64
	memory         Memory
	first          limits.Errand
	leaving        *leaving
	// sources is what the sources in memory take, beside their series.
	sources atomic.Int64

	mu      sync.Mutex
	counted bool
	n       int
	// pending are the bytes of granted series that memory need not know yet.
	pending int64
}

// grant is what reserve had room for.
type grant struct {
	claims []*claim
	bytes  int64
	// refused says why there are not all; nil if there are.
	refused *LimitError
}

func newCensus(store storage.Registry, opts Options) *census {
	c := &census{store: store, maxBytes: opts.MaxBytes, memory: opts.Memory, first: limits.NewErrand(opts.Background), leaving: newLeaving(opts)}
	c.max.Store(int64(opts.MaxSeries))
	c.perSource.Store(int64(opts.MaxSeriesPerSource))
	return c
}

// reserve counts the claims that there is room for. The caller must release the grant.
func (c *census) reserve(ctx context.Context, want []*claim) (grant, error) {
	if len(want) == 0 {
		return grant{claims: want}, nil
	}
	if c.max.Load() > 0 {
		if err := c.first.Do(ctx, func() bool { return !c.isCounted() }, c.count); err != nil {
			return grant{}, fmt.Errorf("count the series: %w", err)
		}
	}
	g := c.grant(want)
	if g.refused == nil {
		return g, nil
	}
	if g.refused.MaxBytes > 0 {
		return g, nil // a count frees no memory
	}
	c.release(g, 0)
	if err := c.leaving.count(ctx, func() []metric.ScheduleID { return nil }); err != nil {
		return grant{}, err
	}
	return c.grant(want), nil
}

// grant counts the claims that there is room for now. One that takes too much is left out, and those
// after it may fit.
func (c *census) grant(want []*claim) grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	g := grant{claims: want}
	if most := int(c.max.Load()); most > 0 {
		if room := max(0, most-c.n+c.leaving.gone()); len(want) > room {
			g.claims = want[:room]
			g.refused = &LimitError{Max: most, Refused: len(want) - room}
		}
	}
	if c.maxBytes > 0 {
		room := c.maxBytes - c.memory.Bytes() - c.sources.Load() - c.pending
		fit := make([]*claim, 0, len(g.claims))
		for _, cl := range g.claims {
			if n := c.memory.Weight(cl.labels); g.bytes+n <= room {
				g.bytes += n
				fit = append(fit, cl)
			}
		}
		if n := len(g.claims) - len(fit); n > 0 {
			if g.refused == nil {
				g.refused = &LimitError{MaxBytes: c.maxBytes}
			}
			g.refused.Refused += n
		}
		g.claims = fit
	}
	c.n += len(g.claims)
	c.pending += g.bytes
	return g
}

func (c *census) isCounted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted
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

// release ends a grant, of which won series are new and registered. The others turned out not to be
// new, or could not be registered. Memory knows by now of those that are registered.
func (c *census) release(g grant, won int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n -= len(g.claims) - won
	c.pending -= g.bytes
}

// leaving counts the registered series that have no data left.
type leaving struct {
	ask   func(ctx context.Context, ids []metric.ScheduleID) (n int, err error) // nil if there is nobody to ask
	again *limits.Throttle
	work  limits.Errand
	n     atomic.Int64
}

func newLeaving(opts Options) *leaving {
	l := &leaving{ask: opts.Gone, work: limits.NewErrand(opts.Background)}
	if l.ask != nil {
		l.again = limits.NewThrottle(opts.Clock, recount)
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
		return fmt.Errorf("count the series without any data left: %w", err)
	}
	return nil
}
