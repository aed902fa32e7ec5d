package limits

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Rate bounds how much a client uses a second, over time. One request may use more than a second's worth, or it could
// never be sent; then others wait until that is made up for. So a request is taken as a whole or not at all. It is safe
// for concurrent use.
type Rate struct {
	perSecond int
	elapsed   func() time.Duration

	mu sync.Mutex
	// next is when all that was used is made up for, by elapsed.
	next time.Duration
}

// NewRate returns a rate. elapsed is the time that the rate goes by, such as a clock's Elapsed.
func NewRate(perSecond int, elapsed func() time.Duration) *Rate {
	return &Rate{perSecond: perSecond, elapsed: elapsed, next: elapsed() - time.Second}
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

// check returns a *RateError while more has been used than the rate allows. The caller holds mu.
func (r *Rate) check(now time.Duration) error {
	if r.next > now {
		return &RateError{r.perSecond, r.next - now}
	}
	return nil
}

// use counts n more.
func (r *Rate) use(n int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.elapsed()
	if err := r.check(now); err != nil {
		return err
	}
	// What was not used in the last second may be used now.
	r.next = max(r.next, now-time.Second) + time.Duration(float64(n)/float64(r.perSecond)*float64(time.Second))
	return nil
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
func MaySpend(ctx context.Context) error {
	if r, ok := ctx.Value(rateKey{}).(*Rate); ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.check(r.elapsed())
	}
	return nil
}
