package admission

import (
	"context"
	"errors"
	"sync"
)

// ErrNoRoom means that other requests, or other requests of this client, hold the memory that a
// request needs.
var ErrNoRoom = errors.New("other requests hold the memory that is set aside for what is asked for, try again")

// Budget bounds the memory that requests of one kind hold together. It is safe for concurrent use.
type Budget struct {
	mu   sync.Mutex
	held holdings
}

// NewBudget returns a budget of limit bytes. One client holds up to half of them, or up to largest
// bytes if that is more: a request of that size must fit when nobody else holds any.
func NewBudget(limit, largest int64) *Budget {
	return &Budget{held: newHoldings(limit, max(half(limit), largest))}
}

// Claim starts a claim of a request to the budget. The claim holds nothing yet.
func (b *Budget) Claim(c Client) Claim { return Claim{budget: b, client: c} }

// Claim is what one request holds of a Budget. It is used by one goroutine at a time.
type Claim struct {
	budget *Budget
	client Client
	held   int64
}

// Grow adds n bytes to the claim. If there is no room for them, it returns false and changes
// nothing.
func (c *Claim) Grow(n int64) bool {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	if !c.budget.held.take(c.client, n) {
		return false
	}
	c.held += n
	return true
}

// Release gives back all bytes that the claim holds.
func (c *Claim) Release() {
	if c.held == 0 {
		return
	}
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	c.budget.held.give(c.client, c.held)
	c.held = 0
}

type claimKey struct{}

// WithClaim returns a context from which Charge takes the claim. Whoever made the claim releases
// it.
func WithClaim(ctx context.Context, c *Claim) context.Context {
	return context.WithValue(ctx, claimKey{}, c)
}

// Charge adds n bytes to the claim of ctx's request. Callers use it where a small request takes
// much memory. Without a claim Charge bounds nothing. The error is ErrNoRoom.
func Charge(ctx context.Context, n int64) error {
	if c, ok := ctx.Value(claimKey{}).(*Claim); ok && !c.Grow(n) {
		return ErrNoRoom
	}
	return nil
}

// Discharge gives back what the request that a context is of was charged, when it is not held any more but the request goes on.
func Discharge(ctx context.Context) {
	if c, ok := ctx.Value(claimKey{}).(*Claim); ok {
		c.Release()
	}
}
