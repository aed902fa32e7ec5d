package limits

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/quern/quern/internal/clock"
)

// Rate bounds how much a client uses a second, over time. One request may use more than a second's worth, or it could
// never be sent; then others wait until that is made up for. So a request is taken as a whole or not at all. It is safe
// for concurrent use. (golang.org/x/time/rate takes no request that is larger than its burst.)
type Rate struct {
	perSecond int
	// idle is how much of the time in which nothing was used may be used later.
	idle    time.Duration
	elapsed func() time.Duration

	mu sync.Mutex
	// next is when all that was used is made up for, by elapsed.
	next time.Duration
}

// NewRate returns a rate. elapsed is the time that the rate goes by, such as a clock's Elapsed.
func NewRate(perSecond int, elapsed func() time.Duration) *Rate {
	return &Rate{perSecond: perSecond, idle: time.Second, elapsed: elapsed, next: elapsed() - time.Second}
}

// RateError says that a client has sent more than it may, and when it may go on.
type RateError struct {
	PerSecond int
	After     time.Duration
}

// Error implements error.
func (e *RateError) Error() string {
	return fmt.Sprintf("the token may send %d samples a second and has sent more: send again in %s, nothing of this request was kept",
		e.PerSecond, max(e.After.Round(time.Second), time.Second))
}

// use counts n more, unless more has been used than the rate allows: then it returns a *RateError.
func (r *Rate) use(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	if r.next > now {
		return &RateError{r.perSecond, r.next - now}
	}
	r.add(n, now)
	return nil
}

// add counts n more, and returns when they may be used. The caller holds mu.
func (r *Rate) add(n int, now time.Duration) time.Duration {
	at := max(r.next, now-r.idle)
	r.next = at + time.Duration(float64(n)/float64(r.perSecond)*float64(time.Second))
	return at
}

type rateKey struct{}

// WithRate returns the context of a request that counts against r, which may be nil.
func WithRate(ctx context.Context, r *Rate) context.Context {
	if r == nil {
		return ctx
	}
	return context.WithValue(ctx, rateKey{}, r)
}

// Spend counts that the request of a context uses n. The error is a *RateError, and nothing is counted then.
func Spend(ctx context.Context, n int) error {
	if r, ok := ctx.Value(rateKey{}).(*Rate); ok {
		return r.use(n)
	}
	return nil
}

// MaySpend returns the error that Spend would return, before it is known how much a request uses.
func MaySpend(ctx context.Context) error { return Spend(ctx, 0) }

// Pace spreads work over time. It is safe for concurrent use.
type Pace struct {
	clk  clock.Clock
	rate Rate
}

// NewPace returns a pace of perSecond pieces of work; 0 is no limit. What was not used is not made up for.
func NewPace(clk clock.Clock, perSecond int) *Pace {
	return &Pace{clk: clk, rate: Rate{perSecond: perSecond, next: clk.Elapsed()}}
}

// Wait waits until n more pieces may be done. It returns an error only if ctx is done.
func (p *Pace) Wait(ctx context.Context, n int) error {
	if p.rate.perSecond <= 0 || n == 0 {
		return context.Cause(ctx)
	}
	now := p.clk.Elapsed()
	p.rate.mu.Lock()
	at := p.rate.add(n, now)
	p.rate.mu.Unlock()
	return p.clk.Sleep(ctx, at-now)
}
