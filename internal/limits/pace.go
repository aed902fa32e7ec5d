package limits

import (
	"context"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

// Pace limits the work per second. It is safe for concurrent use.
type Pace struct {
	clk       clock.Clock
	perSecond int

	mu   sync.Mutex
	next time.Duration // by the clock's Elapsed
}

// NewPace returns a pace of perSecond pieces of work; 0 is no limit.
func NewPace(clk clock.Clock, perSecond int) *Pace {
	return &Pace{clk: clk, perSecond: perSecond, next: clk.Elapsed()}
}

// Wait waits until n more pieces may be done. It returns an error only if ctx is done.
func (p *Pace) Wait(ctx context.Context, n int) error {
	if p.perSecond <= 0 || n == 0 {
		return context.Cause(ctx)
	}
	now := p.clk.Elapsed()
	p.mu.Lock()
	at := max(p.next, now) // what was not used is not made up for
	p.next = at + time.Duration(float64(n)/float64(p.perSecond)*float64(time.Second))
	p.mu.Unlock()
	return p.clk.Sleep(ctx, at-now)
}
